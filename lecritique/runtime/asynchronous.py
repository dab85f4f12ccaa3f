"""The asynchronous run: rollouts, value scoring, policy training and critic training go on at the same time.

                       ┌───────────── groups asked for, at most `rollout.in_flight` open ─────────────┐
                       ▼                                                                              │
 rollout engine ──► group finished ──► value evaluator ──► scored, one version ──► ready ──► batch ───┤
   ▲  consumes groups; waits for nobody    consumes requests;                                │        │
   │                                       waits a moment for company                        ▼        │
   │                                                        ┌────────── credit: rho, advantages, frozen targets
   │                                                        ▼                                ▼
   │                                                 policy trainer                    value trainer
   │                                        consumes one batch at a time;       consumes replay at its own pace;
   └──── new policy version, stale groups   waits for scored groups,            unblocks nobody but the evaluator,
         cancelled ◄──────────────────────  never for critic training           whose next version it publishes

The orchestrator is the one thread that decides. It consumes events, one at a time, and never waits for a role: it
waits for the next event. With `rollout.max_staleness` = 0 it holds everything else at a barrier: groups are asked for
when policy and critic are done with the batch before, scored in one request, and the run equals the synchronous loop
bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import Rollout
from lecritique.core.trajectory import ContextInsertion
from lecritique.credit.estimators import ScoredGroup
from lecritique.credit.schedules import Group, Prepared, group_contexts, prepare
from lecritique.critic.system import update_metrics
from lecritique.rollout.trajectories import trajectory_of
from lecritique.runtime.events import (
    CriticIdle,
    CriticTrained,
    Event,
    GroupFinished,
    MemberEnded,
    PolicyStepped,
    RoleFailed,
    Scored,
)
from lecritique.runtime.ledger import Ledger, Outcome, outcome_of
from lecritique.runtime.local_roles import as_role_failure
from lecritique.runtime.local_runtime import LocalRuntime
from lecritique.runtime.scoring import CompleteGroup, GroupScorer
from lecritique.runtime.steps import require_enough, rollout_metrics, valid_group

# How often the orchestrator looks up while nothing happens, for an interrupt or an evaluator that has room again.
_LOOK_UP_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One rollout batch from request to record."""

    index: int
    rollouts: list[tuple[Rollout, ...]]
    prepared: Prepared
    contexts: Mapping[RolloutId, ContextInsertion | None]
    metrics: dict[str, float]
    trained: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ready:
    """A group that can enter a batch; `scored` and `group` are None when no member can be trained on."""

    group_id: GroupId
    rollouts: tuple[Rollout, ...]
    group: Group | None
    scored: ScoredGroup | None

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version that sampled any of its tokens."""
        trajectories = self.group.trajectories if self.group else ()
        return min((t.oldest_policy_version for t in trajectories if t.action_tokens), default=None)


class Orchestrator:
    """Drives the roles of one run until its steps are done.

    Args:
        runtime: the roles and what they work on.
        ledger: where every group gets its one outcome.
        on_step: called after each step, with nothing of the policy in motion: here a run is recorded and checkpointed.
    """

    def __init__(
        self,
        runtime: LocalRuntime,
        ledger: Ledger,
        *,
        on_step: Callable[[Step], None],
    ) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._learner = runtime.learner
        self._ledger = ledger
        self._on_step = on_step
        self._events: SimpleQueue[Event] = SimpleQueue()
        runtime.connect(self._events.put)
        service = runtime.evaluator
        read = self._learner.values.scored if self._learner.values else None
        self._scorer = GroupScorer(service, self._events.put, read) if service else None
        rollout = self._config.rollout
        assert rollout.in_flight is not None
        self._groups_per_step = rollout.batch_size // rollout.group_size
        self._groups_in_flight = rollout.in_flight // rollout.group_size
        self._lockstep = rollout.max_staleness == 0
        self._next_step = 0
        # Groups that a resumed run had in flight: asked for again before new ones.
        self._again: list[GroupId] = []
        self._finished: dict[GroupId, _Ready] = {}
        self._contexts: dict[RolloutId, ContextInsertion | None] = {}
        self._context_counts: dict[str, float] = {}
        self._ready: list[_Ready] = []
        self._training: tuple[list[_Ready], Prepared, dict[str, float]] | None = None
        self._policy_result: PolicyStepped | None = None
        self._critic_batches = 0
        self._critic_idle = 0
        self._updates: list[Mapping[str, float]] = []
        self._groups_stale = 0
        self._step_began = self._batch_began = time.perf_counter()
        self._waits_for_values_since: float | None = None
        self._seconds_waited = 0.0

    def run(self, *, first_step: int = 0) -> None:
        """Every step from `first_step` on.

        Raises:
            LecritiqueError: the first failure of a role; the others have been stopped.
        """
        self._next_step = first_step
        self._again = list(self._ledger.open)
        try:
            self._runtime.start()
            self._step_began = self._batch_began = time.perf_counter()
            while self._next_step < self._config.run.steps and not self._runtime.spending.exhausted:
                self._ask_for_groups()
                if self._begin_batch() or self._complete_batch():
                    continue
                self._handle_next()
        except KeyboardInterrupt:
            # Not asked to stop but told to: nobody is waited for.
            self._runtime.stop(wait=False)
            raise
        finally:
            self._runtime.stop()

    # What to do next.

    def _ask_for_groups(self) -> None:
        """Keep as many groups open as may be, never more than the run still needs."""
        if self._lockstep and (self._ledger.open or not self._critic_at_rest):
            return
        training = len(self._training[0]) if self._training else 0
        # Those that came too late for the policy wait for the next batch to end; others are asked for in their place.
        too_late = sum(self._is_stale(ready) for ready in self._ready)
        open_now = len(self._ledger.open) - training - len(self._again) - too_late
        steps_left = self._config.run.steps - self._next_step - (self._training is not None)
        room = min(self._groups_in_flight, steps_left * self._groups_per_step) - open_now
        if room <= 0:
            return
        asked = self._again[:room]
        del self._again[:room]
        first = self._ledger.next_position
        for position in range(first, first + room - len(asked)):
            group_id = self._runtime.stream.group(position)
            self._ledger.issue(group_id, position)
            asked.append(group_id)
        self._runtime.rollouts.play(asked)

    def _begin_batch(self) -> bool:
        """Credit the oldest ready groups and hand them to the trainers, when there are enough of them."""
        if self._training is not None:
            return False
        stale = [ready for ready in self._ready if self._is_stale(ready)]
        fresh = [ready for ready in self._ready if not self._is_stale(ready)]
        self._watch_for_values(len(fresh))
        if len(fresh) < self._groups_per_step:
            return False
        batch = fresh[: self._groups_per_step]
        if self._lockstep:
            batch.sort(key=lambda ready: self._ledger.position(ready.group_id))
        members = [ready for ready in self._ready if ready in batch or ready in stale] if stale else batch
        self._ready = [ready for ready in self._ready if ready not in members]
        require_enough([ready.rollouts for ready in batch], self._config)
        self._credit(batch, stale, members)
        return True

    def _credit(self, batch: list[_Ready], stale: list[_Ready], members: list[_Ready]) -> None:
        scored = [ready.scored for ready in members if ready.scored is not None]
        too_old = frozenset(ready.group_id for ready in stale)
        contexts = {t.rollout_id: self._contexts.get(t.rollout_id) for group in scored for t in group.trajectories}
        with self._runtime.timeline.span("orchestrator", "credit"):
            tasks = {ready.group_id: ready.group.task for ready in members if ready.group is not None}
            prepared = prepare(self._learner, scored, contexts, tasks=tasks, too_old=too_old)
        metrics = self._batch_metrics(batch, prepared, scored)
        for ready in stale:
            self._groups_stale += 1
            self._end(ready.group_id, "stale", ready)
        self._training = (batch, prepared, metrics)
        self._policy_result = None
        if prepared.policy_batch is not None:
            self._runtime.policy.train(prepared.policy_batch)
        else:
            self._policy_result = PolicyStepped(metrics={}, manifest=None)
        if self._runtime.value_training is not None:
            self._critic_batches += 1
            self._runtime.value_training.learn(prepared.value_samples)

    def _complete_batch(self) -> bool:
        """Record the step once the policy is done with it (and, in lockstep, the critic too)."""
        if self._training is None or self._policy_result is None:
            return False
        if self._lockstep and not self._critic_at_rest:
            return False
        batch, prepared, metrics = self._training
        result = self._policy_result
        self._training = self._policy_result = None
        if result.manifest is not None:
            oldest_useful = self._learner.policy.version - self._config.rollout.max_staleness
            cancels = self._config.rollout.on_stale == "cancel"
            self._runtime.rollouts.adopt(result.manifest, oldest_useful=oldest_useful if cancels else 0)
        metrics |= {**result.metrics, **self._step_metrics()}
        index, self._next_step = self._next_step, self._next_step + 1
        for ready in batch:
            self._end(ready.group_id, outcome_of(ready.rollouts, prepared.policy_batch), ready, step=index)
        self._on_step(
            Step(
                index=index,
                rollouts=[ready.rollouts for ready in batch],
                prepared=prepared,
                contexts={r.rollout_id: self._contexts.get(r.rollout_id) for ready in batch for r in ready.rollouts},
                metrics=metrics,
                trained=result.manifest is not None,
            )
        )
        for ready in batch:
            self._forget(ready.rollouts)
        return True

    # What has happened.

    def _handle_next(self) -> None:
        try:
            event = self._events.get(timeout=_LOOK_UP_SECONDS)
        except Empty:
            self._runtime.require_health()
            if self._scorer:
                self._scorer.ask_again()
            return
        match event:
            case MemberEnded():
                self._member_ended(event.rollout)
            case GroupFinished():
                self._group_finished(event)
            case Scored():
                assert self._scorer is not None
                self._scored(self._scorer.take(event))
                self._scorer.ask_again()
            case PolicyStepped():
                self._policy_result = event
            case CriticTrained():
                self._updates.append(event.metrics)
            case CriticIdle():
                self._critic_idle = event.batches
            case RoleFailed():
                raise as_role_failure(event.role, event.error) from event.error

    def _member_ended(self, rollout: Rollout) -> None:
        """Score it before its group is complete, where its context is known already."""
        builder = self._learner.context
        if self._scorer is None or self._lockstep or builder.needs_siblings:
            return
        trajectory = trajectory_of(rollout)
        if trajectory.action_tokens:
            self._contexts[rollout.rollout_id] = builder(rollout.task)
            self._scorer.score_early([trajectory], [self._contexts[rollout.rollout_id]])

    def _group_finished(self, event: GroupFinished) -> None:
        self._runtime.spending.played(event.rollouts)
        if event.cancelled:
            self._groups_stale += 1
            self._ledger.close(event.group_id, "stale", step=self._next_step, staleness=None, value_version=None)
            self._forget(event.rollouts)
            return
        group = valid_group(event.rollouts)
        ready = _Ready(group_id=event.group_id, rollouts=event.rollouts, group=group, scored=None)
        if group is None or self._scorer is None:
            self._finished[event.group_id] = ready
        else:
            with self._runtime.timeline.span("orchestrator", "context"):
                self._finished[event.group_id] = self._with_contexts(ready, group)
        if not self._lockstep:
            self._have_scored([self._finished[event.group_id]])
        elif len(self._finished) == self._groups_per_step:
            self._have_scored(sorted(self._finished.values(), key=lambda r: self._ledger.position(r.group_id)))

    def _with_contexts(self, ready: _Ready, group: Group) -> _Ready:
        contexts = group_contexts(self._learner.context, group)
        if contexts is None:  # too long, or alone: counted, and left out of the batch that it counts for
            alone = len({t.rollout_id for t in group.trajectories}) < 2
            self._count_context("groups_dropped" if alone else "groups_too_long", 1)
            return _Ready(group_id=ready.group_id, rollouts=ready.rollouts, group=None, scored=None)
        for trajectory, context in zip(group.trajectories, contexts, strict=True):
            self._contexts[trajectory.rollout_id] = context
            self._count_context("contexts_trimmed", context is not None and context.trimmed)
        return ready

    def _count_context(self, name: str, number: float) -> None:
        if self._learner.context.needs_siblings:
            self._context_counts[name] = self._context_counts.get(name, 0.0) + number

    def _have_scored(self, finished: Sequence[_Ready]) -> None:
        """Send groups to the evaluator, together; those without a critic or without a valid member are ready."""
        asked = []
        for ready in finished:
            group = ready.group
            if group is None:
                self._make_ready(ready, None)
            elif self._scorer is None:
                self._make_ready(
                    ready, ScoredGroup(group_id=group.group_id, trajectories=group.trajectories, predictions=None)
                )
            else:
                contexts = tuple(self._contexts[t.rollout_id] for t in group.trajectories)
                asked.append(CompleteGroup(group_id=group.group_id, trajectories=group.trajectories, contexts=contexts))
        if asked and self._scorer is not None:
            newest = self._learner.values.trainer.updates if self._lockstep and self._learner.values else 0
            self._scored(self._scorer.score(asked, minimum_version=newest))

    def _scored(self, groups: Sequence[ScoredGroup]) -> None:
        for group in groups:
            self._make_ready(self._finished[group.group_id], group)

    def _make_ready(self, ready: _Ready, scored: ScoredGroup | None) -> None:
        self._finished.pop(ready.group_id, None)
        self._ready.append(_Ready(group_id=ready.group_id, rollouts=ready.rollouts, group=ready.group, scored=scored))

    # Facts and figures.

    @property
    def _critic_at_rest(self) -> bool:
        return self._runtime.value_training is None or self._critic_idle == self._critic_batches

    def _is_stale(self, ready: _Ready) -> bool:
        oldest = ready.oldest_version
        return oldest is not None and self._learner.policy.version - oldest > self._config.rollout.max_staleness

    def _watch_for_values(self, fresh: int) -> None:
        """Time in which the policy is idle only because groups that are complete have no values yet."""
        waits = fresh < self._groups_per_step <= fresh + len(self._finished)
        if waits and self._waits_for_values_since is None:
            self._waits_for_values_since = time.perf_counter()
        elif not waits and self._waits_for_values_since is not None:
            self._seconds_waited += time.perf_counter() - self._waits_for_values_since
            self._waits_for_values_since = None

    def _batch_metrics(
        self, batch: Sequence[_Ready], prepared: Prepared, scored: Sequence[ScoredGroup]
    ) -> dict[str, float]:
        now = time.perf_counter()
        # From batch to batch: what the engine sampled meanwhile is about what the batch holds.
        seconds, self._batch_began = now - self._batch_began, now
        metrics = {**rollout_metrics([r.rollouts for r in batch], seconds), **prepared.metrics}
        metrics["groups_dropped"] += self._context_counts.pop("groups_dropped", 0.0)
        if self._learner.context.needs_siblings:
            metrics |= {name: self._context_counts.pop(name, 0.0) for name in ("groups_too_long", "contexts_trimmed")}
        versions = [group.value_version for group in scored if group.value_version is not None]
        values = self._learner.values
        if values is not None:
            metrics["value_version"] = float(min(versions)) if versions else float(values.evaluator.version)
            metrics["value_version_lag"] = values.trainer.updates - metrics["value_version"]
        ages = [self._learner.policy.version - r.oldest_version for r in batch if r.oldest_version is not None]
        metrics["staleness_mean"] = math.fsum(ages) / len(ages) if ages else math.nan
        metrics["groups_stale"], self._groups_stale = float(self._groups_stale), 0
        metrics["groups_open"] = float(len(self._ledger.open))
        metrics["groups_ready"] = float(len(self._ready))
        return metrics

    def _step_metrics(self) -> dict[str, float]:
        now = time.perf_counter()
        metrics = {**self._learner.counts(), "seconds": now - self._step_began}
        if self._learner.values is not None:
            metrics |= {**self._learner.values.metrics(), **update_metrics(self._updates)}
            self._updates = []
            metrics["seconds_waiting_values"], self._seconds_waited = self._seconds_waited, 0.0
        self._step_began = now
        metrics |= self._runtime.spending.step(metrics["seconds"])
        return {**metrics, **self._runtime.metrics(metrics["seconds"])}

    def _end(self, group_id: GroupId, outcome: Outcome, ready: _Ready, *, step: int | None = None) -> None:
        oldest = ready.oldest_version
        scored = ready.scored.value_version if ready.scored else None
        # What an update made is one version on from what it trained on.
        at = self._learner.policy.version - (outcome == "trained")
        self._ledger.close(
            group_id,
            outcome,
            step=self._next_step if step is None else step,
            staleness=None if oldest is None else at - oldest,
            value_version=scored,
        )
        if outcome == "stale":
            self._forget(ready.rollouts)

    def _forget(self, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self._contexts.pop(rollout.rollout_id, None)
        if self._scorer:
            self._scorer.forget(rollouts[0].rollout_id.group)
