"""LC's order of scoring and training within one rollout batch, and what every order is made of.

VASPO's order is in `train_then_score.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lecritique.core.errors import CheckpointError
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.task import Task
from lecritique.core.trajectory import ContextInsertion, CreditedTrajectory, PolicyBatch, Trajectory, ValueSample
from lecritique.credit.crediting import BatchCredit, Crediting, metrics_of
from lecritique.credit.estimators import ScoredGroup, TokenCredit
from lecritique.credit.warmup import ships
from lecritique.critic.context import ContextBuilder, ContextTooLong
from lecritique.critic.siblings import sibling_of
from lecritique.critic.system import ValueSystem
from lecritique.critic.teacher import TeacherPrompts
from lecritique.policy.trainer import PolicyTrainer


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The valid members of one group as they come from the rollouts."""

    group_id: GroupId
    task: Task
    trajectories: tuple[Trajectory, ...]


@dataclass(kw_only=True, eq=False)
class Learner:
    """What a schedule works with; `values` is None without a critic, `teacher_prompts` without a teacher.

    In the `shadow` the critic is trained and measured, and the policy is credited by its groups alone.
    """

    policy: PolicyTrainer
    crediting: Crediting
    values: ValueSystem | None
    context: ContextBuilder
    warmup_updates: int
    ship_while_cold: bool
    shadow: bool = False
    teacher_prompts: TeacherPrompts | None = None
    batches_withheld: int = 0
    batches_empty: int = 0

    def counts(self) -> dict[str, float]:
        """Metrics of what was done so far."""
        return {
            "policy_steps": float(self.policy.steps),
            "policy_batches_withheld": float(self.batches_withheld),
            "policy_batches_empty": float(self.batches_empty),
        }

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs of all parts; the tensors are those in use."""
        return {
            "policy": self.policy.state(),
            "crediting": self.crediting.state(),
            "values": self.values.state() if self.values else None,
            "batches_withheld": self.batches_withheld,
            "batches_empty": self.batches_empty,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; whoever samples has to adopt the policy's version.

        Raises:
            CheckpointError: it is of other parts.
        """
        if (state["values"] is None) != (self.values is None):
            raise CheckpointError("the checkpoint and this run are not both with a critic or both without")
        self.policy.restore(state["policy"])
        self.crediting.restore(state["crediting"])
        if self.values is not None:
            self.values.restore(state["values"])
        self.batches_withheld = int(state["batches_withheld"])
        self.batches_empty = int(state["batches_empty"])


@dataclass(frozen=True, kw_only=True, eq=False)
class StepOutcome:
    """What a schedule did with one rollout batch; `trained` is whether the policy has a new version."""

    credit: BatchCredit
    policy_batch: PolicyBatch | None
    trained: bool
    metrics: dict[str, float]
    contexts: Mapping[RolloutId, ContextInsertion | None]


def score_then_train(learner: Learner, groups: Sequence[Group]) -> StepOutcome:
    """LC's schedule: score with the critic as it is, credit, update the policy, then train the critic.

    The values that credit a batch never come from a critic that has trained on it.
    """
    started = time.perf_counter()
    groups, contexts, context_metrics = with_contexts(learner.context, groups)
    scored = scored_groups(learner.values, groups, contexts)
    seconds = {"seconds_values": time.perf_counter() - started}

    prepared = prepare(learner, scored, by_rollout(groups, contexts), tasks=tasks_of(groups))
    metrics = prepared.metrics
    metrics["groups_dropped"] += context_metrics.pop("groups_dropped", 0.0)
    metrics |= context_metrics

    started = time.perf_counter()
    version = learner.policy.version
    if prepared.policy_batch is not None:
        metrics |= learner.policy.step(prepared.policy_batch)
    seconds["seconds_policy"] = time.perf_counter() - started

    started = time.perf_counter()
    if learner.values is not None:
        metrics["value_version"] = float(learner.values.evaluator.version)
        metrics |= learner.values.learn(prepared.value_samples)
    seconds["seconds_critic"] = time.perf_counter() - started
    return StepOutcome(
        credit=prepared.credit,
        policy_batch=prepared.policy_batch,
        trained=learner.policy.version > version,
        metrics=metrics | learner.counts() | seconds,
        contexts=by_rollout(groups, contexts),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A credited batch: what the policy trains on (None while a cold critic withholds it) and what the critic does."""

    credit: BatchCredit
    policy_batch: PolicyBatch | None
    value_samples: list[ValueSample]
    metrics: dict[str, float]


def prepare(
    learner: Learner,
    scored: Sequence[ScoredGroup],
    contexts: Mapping[RolloutId, ContextInsertion | None],
    *,
    tasks: Mapping[GroupId, Task],
    too_old: frozenset[GroupId] = frozenset(),
    before: Sequence[TokenCredit] | None = None,
) -> Prepared:
    """Credit a scored batch with the estimator, or by the group alone while the critic is cold or in the shadow.

    Args:
        learner: counts what is withheld and what is empty.
        scored: the groups, in the order in which they were scored.
        contexts: what the critic read beside each rollout.
        tasks: of each group, for what a teacher is told.
        too_old: groups that the critic may learn from and the policy may not: stale ones.
        before: values and targets from before the critic was trained on the batch, where it was.
    """
    warm = _warm(learner, [group for group in scored if group.group_id not in too_old])
    credit = learner.crediting.credit(scored, warm=warm and not learner.shadow, before=before)
    metrics = metrics_of(credit, learner.crediting)
    policy_batch = None
    if warm or learner.ship_while_cold:
        members = tuple(m for m in credit.policy_members if m.trajectory.group_id not in too_old)
        policy_batch = PolicyBatch.of(
            told(members, tasks, learner.teacher_prompts), trained_version=learner.policy.version
        )
        learner.batches_empty += not policy_batch.action_tokens
        metrics["groups_dropped"] += len(credit.critic_only)
    else:
        learner.batches_withheld += 1
    return Prepared(
        credit=credit,
        policy_batch=policy_batch,
        value_samples=value_samples(credit, contexts) if learner.values is not None else [],
        metrics=metrics,
    )


def told(
    members: Sequence[CreditedTrajectory], tasks: Mapping[GroupId, Task], prompts: TeacherPrompts | None
) -> tuple[CreditedTrajectory, ...]:
    """The members with what the teacher reads in place of their prompt."""
    if prompts is None:
        return tuple(members)
    of_group = {group_id: prompts(task) for group_id, task in tasks.items()}
    return tuple(replace(member, teacher_prompt=of_group[member.trajectory.group_id]) for member in members)


def tasks_of(groups: Sequence[Group]) -> dict[GroupId, Task]:
    """The task of each group."""
    return {group.group_id: group.task for group in groups}


# One context per trajectory of each group.
Contexts = Sequence[Sequence[ContextInsertion | None]]


def group_contexts(builder: ContextBuilder, group: Group) -> list[ContextInsertion | None] | None:
    """What the critic reads beside each trajectory of the group; None when the group cannot be scored and is left out.

    The context of a rollout is made from the task and, where it is needed, from the other rollouts of the group that
    did not fail. Left out are groups of one rollout under a context of siblings, and those that are too long with
    'critic.context.on_overflow' = "skip" (all of the group, so that long responses do not vanish from their group).

    Raises:
        DataError: the task lacks what the context is made from, or siblings are too long for the critic.
    """
    if not builder.needs_siblings:
        return [builder(group.task)] * len(group.trajectories)
    segments: dict[RolloutId, list[Trajectory]] = {}
    for trajectory in group.trajectories:
        segments.setdefault(trajectory.rollout_id, []).append(trajectory)
    if len(segments) < 2:
        return None
    members = {rollout_id: sibling_of(parts, builder.renderer) for rollout_id, parts in segments.items()}
    try:
        made = {
            rollout_id: builder(group.task, [member for other, member in members.items() if other != rollout_id])
            for rollout_id in members
        }
        contexts = [made[trajectory.rollout_id] for trajectory in group.trajectories]
        for trajectory, context in zip(group.trajectories, contexts, strict=True):
            builder.require_room(trajectory, context)
    except ContextTooLong:
        if builder.overflow_is_an_error:
            raise
        return None
    return contexts


def with_contexts(
    builder: ContextBuilder, groups: Sequence[Group]
) -> tuple[list[Group], list[list[ContextInsertion | None]], dict[str, float]]:
    """The groups that can be scored, the contexts of each, and metrics of what was cut or left out."""
    kept, contexts = [], []
    metrics = dict.fromkeys(("groups_dropped", "groups_too_long", "contexts_trimmed"), 0.0)
    for group in groups:
        built = group_contexts(builder, group)
        if built is None:
            alone = len({trajectory.rollout_id for trajectory in group.trajectories}) < 2
            metrics["groups_dropped" if alone else "groups_too_long"] += 1
            continue
        kept.append(group)
        contexts.append(built)
        metrics["contexts_trimmed"] += sum(context is not None and context.trimmed for context in built)
    return kept, contexts, metrics if builder.needs_siblings else {}


def by_rollout(groups: Sequence[Group], contexts: Contexts) -> dict[RolloutId, ContextInsertion | None]:
    """The context of each rollout."""
    return {
        trajectory.rollout_id: context
        for group, built in zip(groups, contexts, strict=True)
        for trajectory, context in zip(group.trajectories, built, strict=True)
    }


def scored_groups(values: ValueSystem | None, groups: Sequence[Group], contexts: Contexts) -> list[ScoredGroup]:
    """The groups with their values, all from one critic version."""
    if values is None:
        return [
            ScoredGroup(group_id=group.group_id, trajectories=group.trajectories, predictions=None) for group in groups
        ]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    predictions = iter(values.score(trajectories, [context for built in contexts for context in built]))
    return [
        ScoredGroup(
            group_id=group.group_id,
            trajectories=group.trajectories,
            predictions=tuple(next(predictions) for _ in group.trajectories),
        )
        for group in groups
    ]


def value_samples(credit: BatchCredit, contexts: Mapping[RolloutId, ContextInsertion | None]) -> list[ValueSample]:
    """What the critic will train on: credited rollouts with frozen targets and the context they were scored with."""
    return [
        ValueSample(
            rollout_id=member.trajectory.rollout_id,
            trajectories=(member.trajectory,),
            contexts=(contexts[member.trajectory.rollout_id],),
            value_targets=(member.value_targets,),
            value_version=member.value_version or 0,
            old_values=None if member.values is None else (member.values,),
        )
        for member in credit.members
        if member.trajectory.action_tokens
    ]


def _warm(learner: Learner, scored: Sequence[ScoredGroup]) -> bool:
    """Whether the batch ships: the critic that scored it is warm, or is not what credits the policy."""
    if learner.values is None or learner.shadow:
        return True
    versions = [group.value_version for group in scored if group.value_version is not None]
    return ships(versions, live_version=learner.values.evaluator.version, warmup_updates=learner.warmup_updates)
