"""An asynchronous run, simulated: the rules of `runtime/asynchronous.py` with durations instead of work.

At most `rollout.in_flight` rollouts are open. A member is scored when it ends, siblings with their group; where the
critic has moved on between the members of a group, the older values are asked for again. The policy takes the oldest
complete groups, waits for scores and never for the critic, and publishes; what has become older than
`rollout.max_staleness` is cancelled. The critic trains after each batch, on its own GPUs or, colocated, one update at a
time in turns with the evaluator. With `rollout.max_staleness` = 0 groups are asked for when policy and critic are done
with a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import simpy

from lecritique.planning.generation import EngineCosts, GeneratingGpu, SimulatedRollout
from lecritique.planning.lengths import Lengths, MeasuredLengths
from lecritique.planning.worker import Worker

_GROUPS_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class AsynchronousSettings:
    """What the rules read. Sizes are in groups; `score_with_group` for siblings; `colocated` evaluator and trainer.

    Values are asked for in batches of at most `score_tokens`.
    """

    group_size: int
    groups_per_step: int
    groups_in_flight: int
    max_staleness: int
    has_critic: bool
    colocated: bool = False
    score_with_group: bool = False
    score_tokens: int = 16384
    updates_per_step: float = 1.0
    update_rollouts: int = 1
    cancel_stale: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Means over the steps that count. Seconds, tokens/s; idle shares of each role's time, 0 to 1.

    `staleness` is that of the metric `staleness_mean`: policy versions since the oldest token of a group, over groups;
    `oldest` is the largest. `scored` are values asked for, one for each rollout and time.
    """

    step_seconds: float
    tokens_per_second: float
    staleness: float
    oldest: int
    stale_groups: float
    rows_per_gpu: float
    scored: float
    idle: dict[str, float]


class Durations(Protocol):
    """Seconds of the trainers' and the evaluator's pieces of work, of rollouts given by their sampled tokens."""

    @property
    def publish_seconds(self) -> float:
        """New weights of the policy on their way to the engines."""
        ...

    @property
    def credit_seconds(self) -> float:
        """What the orchestrator does with a batch before the trainers have it."""
        ...

    def policy_seconds(self, tokens: Sequence[float]) -> float:
        """Everything that the policy trainer does with a batch."""
        ...

    def score_value_seconds(self, tokens: Sequence[float]) -> float:
        """The evaluator on these rollouts."""
        ...

    def train_value_seconds(self, tokens: Sequence[float]) -> float:
        """A critic update on these rollouts."""
        ...


@dataclass(eq=False)
class _Group:
    """`left` members generate, `unscored` wait for an answer; `values` are the critic's versions that members have."""

    rollouts: list[SimulatedRollout]
    left: int
    gpu: GeneratingGpu
    unscored: int = 0
    repairs: int = 0
    values: dict[SimulatedRollout, int] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """The oldest version that sampled a token of it."""
        return min(rollout.version for rollout in self.rollouts)


class AsynchronousRun:
    """One simulated run.

    Args:
        settings: the rules' sizes.
        work: how long each piece takes.
        costs: of generating.
        lengths: of rollouts.
        gpus: that generate.
        most_rows: of one of them.
        chunk_tokens: of an engine's chunk, 0 without.
        seed: of the lengths.
    """

    def __init__(
        self,
        settings: AsynchronousSettings,
        work: Durations,
        costs: EngineCosts,
        lengths: Lengths | MeasuredLengths,
        *,
        gpus: int,
        most_rows: int,
        chunk_tokens: int = 0,
        seed: int = 0,
    ) -> None:
        self._settings = settings
        self._work = work
        self._lengths = lengths
        self._environment = simpy.Environment()
        self._rng = np.random.default_rng(seed)
        self._drawn: list[np.ndarray] = []
        self._gpus = [
            GeneratingGpu(
                self._environment,
                costs,
                prompt_tokens=lengths.prompt,
                most_rows=most_rows,
                on_end=self._rollout_ended,
                chunk_tokens=chunk_tokens,
            )
            for _ in range(gpus)
        ]
        self._orchestrator = Worker(self._environment)
        self._policy = Worker(self._environment)
        self._value_trainer = Worker(self._environment)
        self._evaluator = self._value_trainer if settings.colocated else Worker(self._environment)
        self._groups: dict[int, _Group] = {}
        self._ready: list[int] = []
        self._training: list[int] = []
        self._issued = 0
        self._version = 0
        self._value_version = 0
        self._scored = 0
        self._requests: deque[tuple[int, list[SimulatedRollout]]] = deque()
        self._scoring = False
        self._batch_version = 0
        self._owed = 0.0
        self._updating = False
        self._update_tokens = 0.0
        self._stale = 0
        self._steps: list[tuple[float, float, float, int]] = []  # time, tokens, mean staleness, largest

    def run(self, steps: int, *, skip: int) -> Outcome:
        """So many steps, of which the first `skip` do not count."""
        self._ask_for_groups()
        self._advance_to(skip)
        counted_from = self._snapshot()
        self._advance_to(steps)
        return self._outcome(counted_from, skip)

    def _advance_to(self, steps: int) -> None:
        while len(self._steps) < steps:
            try:
                self._environment.step()
            except simpy.core.EmptySchedule as error:
                raise RuntimeError(f"the simulated run came to a halt after {len(self._steps)} steps") from error

    # What the orchestrator does.

    def _ask_for_groups(self) -> None:
        if not self._settings.max_staleness and (self._training or self._updating):
            return
        # Those that came too late are ended with the next batch; others are asked for in their place.
        too_late = sum(self._is_stale(number) for number in self._ready)
        open_now = len(self._groups) - len(self._training) - too_late
        for _ in range(self._settings.groups_in_flight - open_now):
            number, self._issued = self._issued, self._issued + 1
            rollouts = [SimulatedRollout(number, float(tokens)) for tokens in self._next_lengths()]
            # A group stays together, so that its prompt is read once; one of K > rows is parted by waiting.
            gpu = min(self._gpus, key=lambda gpu: gpu.load)
            self._groups[number] = _Group(rollouts, len(rollouts), gpu)
            gpu.play(rollouts)

    def _next_lengths(self) -> np.ndarray:
        if not self._drawn:
            self._drawn = list(self._lengths.groups(_GROUPS_AT_ONCE, self._settings.group_size, self._rng))
        return self._drawn.pop()

    def _rollout_ended(self, rollout: SimulatedRollout) -> None:
        group = self._groups.get(rollout.group)
        if group is None:
            return
        group.left -= 1
        settings = self._settings
        if not settings.has_critic:
            if not group.left:
                self._make_ready(rollout.group)
        elif not settings.score_with_group:
            self._score(rollout.group, [rollout])
        elif not group.left:
            self._score(rollout.group, group.rollouts)

    def _score(self, number: int, members: list[SimulatedRollout]) -> None:
        self._scored += len(members)
        self._groups[number].unscored += len(members)
        self._requests.append((number, members))
        self._score_requests()

    def _score_requests(self) -> None:
        """One batch at a time, by one version; what comes while it waits for its turn is in the next one."""
        if not self._requests or self._scoring:
            return
        self._scoring = True
        batch = self._next_requests()
        tokens = [member.tokens for _, members in batch for member in members]
        self._evaluator.work(lambda: self._begin_to_score(tokens), lambda: self._answered(batch))

    def _next_requests(self) -> list[tuple[int, list[SimulatedRollout]]]:
        """The oldest, up to `score_tokens`."""
        batch: list[tuple[int, list[SimulatedRollout]]] = []
        read = 0.0
        while self._requests:
            tokens = sum(member.tokens + self._lengths.prompt for member in self._requests[0][1])
            if batch and read + tokens > self._settings.score_tokens:
                break
            batch.append(self._requests.popleft())
            read += tokens
        return batch

    def _begin_to_score(self, tokens: list[float]) -> float:
        self._batch_version = self._value_version
        return self._work.score_value_seconds(tokens)

    def _answered(self, batch: list[tuple[int, list[SimulatedRollout]]]) -> None:
        self._scoring = False
        for number, members in batch:
            self._have_values(number, members, self._batch_version)
        self._score_requests()

    def _have_values(self, number: int, members: list[SimulatedRollout], version: int) -> None:
        group = self._groups.get(number)
        if group is None:  # cancelled meanwhile
            return
        group.unscored -= len(members)
        group.values |= dict.fromkeys(members, version)
        if group.left or group.unscored:
            return
        newest, oldest = max(group.values.values()), min(group.values.values())
        if newest == oldest:
            self._make_ready(number)
            return
        # A group is credited by one version. The critic may have moved on again meanwhile: then all in one request.
        old = [member for member, found in group.values.items() if group.repairs or found < newest]
        group.repairs += 1
        self._score(number, old)

    def _make_ready(self, number: int) -> None:
        self._ready.append(number)
        self._begin_batch()

    def _begin_batch(self) -> None:
        if self._training:
            return
        settings = self._settings
        stale = [number for number in self._ready if self._is_stale(number)]
        fresh = [number for number in self._ready if number not in set(stale)]
        if len(fresh) < settings.groups_per_step:
            return
        self._training = fresh[: settings.groups_per_step]
        taken = {*self._training, *stale}
        self._ready = [number for number in self._ready if number not in taken]
        self._end(stale)
        # The versions do not move while a batch is in hand: its age is that of now.
        self._orchestrator.work(self._work.credit_seconds, self._hand_over)

    def _hand_over(self) -> None:
        members = [rollout for number in self._training for rollout in self._groups[number].rollouts]
        ages = [self._version - self._groups[number].oldest for number in self._training]
        tokens = sum(rollout.tokens for rollout in members)
        seconds = self._work.policy_seconds([rollout.tokens for rollout in members])
        self._policy.work(seconds, lambda: self._policy_stepped(tokens, float(np.mean(ages)), max(ages)))
        self._train_critic([rollout.tokens for rollout in members])
        self._ask_for_groups()

    def _train_critic(self, tokens: list[float]) -> None:
        settings = self._settings
        if not settings.has_critic:
            return
        self._owed += settings.updates_per_step
        self._update_tokens = float(np.mean(tokens))
        self._update_critic()

    def _update_critic(self) -> None:
        """One update at a time: whoever shares the trainer's GPUs has a turn in between."""
        if self._updating or self._owed < 1:
            return
        self._owed -= 1
        self._updating = True
        seconds = self._work.train_value_seconds([self._update_tokens] * self._settings.update_rollouts)
        self._value_trainer.work(seconds, self._critic_updated)

    def _critic_updated(self) -> None:
        self._value_version += 1
        self._updating = False
        self._update_critic()
        self._ask_for_groups()

    def _policy_stepped(self, tokens: float, staleness: float, oldest: int) -> None:
        done, self._training = self._training, []
        self._end(done, stale=False)
        self._version += 1
        self._steps.append((self._environment.now, tokens, staleness, oldest))
        oldest_useful = self._version - self._settings.max_staleness if self._settings.cancel_stale else 0
        for gpu in self._gpus:
            gpu.adopt(self._version, self._work.publish_seconds, partial(self._give_up, gpu, oldest_useful))
        self._ask_for_groups()
        self._begin_batch()

    def _give_up(self, gpu: GeneratingGpu, oldest_useful: int) -> None:
        """End the groups that still generate on this one and hold a token from before `oldest_useful`."""
        too_old = {
            number
            for number, group in self._groups.items()
            if group.gpu is gpu
            and group.left
            and any(0 <= rollout.version < oldest_useful for rollout in group.rollouts)
        }
        if not too_old:
            return
        gpu.forget(too_old)
        gpu.cancel(lambda rollout: rollout.group in too_old)
        self._end(sorted(too_old))
        self._ask_for_groups()

    def _is_stale(self, number: int) -> bool:
        return self._version - self._groups[number].oldest > self._settings.max_staleness

    def _end(self, numbers: list[int], *, stale: bool = True) -> None:
        self._stale += len(numbers) if stale else 0
        for number in numbers:
            del self._groups[number]

    # What is told of it.

    def _snapshot(self) -> tuple[float, dict[str, float], int, int]:
        generating = sum(gpu.busy_seconds for gpu in self._gpus) / len(self._gpus)
        busy = {"inference": generating, "policy trainer": self._policy.busy_seconds}
        if self._settings.has_critic:
            busy["value trainer"] = self._value_trainer.busy_seconds
            if not self._settings.colocated:
                busy["evaluator"] = self._evaluator.busy_seconds
        return self._environment.now, busy, self._scored, self._stale

    def _outcome(self, since: tuple[float, dict[str, float], int, int], skip: int) -> Outcome:
        until = self._snapshot()
        seconds = until[0] - since[0]
        counted = self._steps[skip:]
        # Work that has begun counts in full, so a share may be a little over 1.
        idle = {role: max(0.0, 1 - (until[1][role] - since[1][role]) / seconds) for role in until[1]}
        return Outcome(
            step_seconds=seconds / len(counted),
            tokens_per_second=sum(tokens for _, tokens, _, _ in counted) / seconds,
            staleness=float(np.mean([staleness for _, _, staleness, _ in counted])),
            oldest=max(oldest for *_, oldest in counted),
            stale_groups=(until[3] - since[3]) / len(counted),
            rows_per_gpu=self._settings.groups_in_flight * self._settings.group_size / len(self._gpus),
            scored=(until[2] - since[2]) / len(counted),
            idle=idle,
        )


def rollout_seconds(
    costs: EngineCosts,
    lengths: Lengths | MeasuredLengths,
    *,
    groups: int,
    group_size: int,
    gpus: int,
    most_rows: int,
    chunk_tokens: int = 0,
    seed: int = 0,
) -> tuple[float, float]:
    """One batch alone, as a synchronous run plays it.

    Returns:
        (seconds until the last rollout has ended, mean share of that time in which a GPU had none left).
    """
    environment, rng = simpy.Environment(), np.random.default_rng(seed)
    ended_at = [0.0]
    engines = [
        GeneratingGpu(
            environment,
            costs,
            prompt_tokens=lengths.prompt,
            most_rows=most_rows,
            on_end=lambda _: ended_at.append(environment.now),
            chunk_tokens=chunk_tokens,
        )
        for _ in range(gpus)
    ]
    for number, tokens in enumerate(lengths.groups(groups, group_size, rng)):
        engines[number % gpus].play([SimulatedRollout(number, float(count)) for count in tokens])
    environment.run()
    return ended_at[-1], 1 - sum(engine.busy_seconds for engine in engines) / (gpus * ended_at[-1])
