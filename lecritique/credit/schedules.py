"""The order of scoring and training within one rollout batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lecritique.core.ids import GroupId
from lecritique.core.task import Task
from lecritique.core.trajectory import ContextInsertion, PolicyBatch, Trajectory, ValueSample
from lecritique.credit.crediting import BatchCredit, Crediting, metrics_of
from lecritique.credit.estimators import ScoredGroup
from lecritique.credit.warmup import ships
from lecritique.critic.context import ContextBuilder
from lecritique.critic.system import ValueSystem
from lecritique.policy.trainer import PolicyTrainer


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The valid members of one group as they come from the rollouts."""

    group_id: GroupId
    task: Task
    trajectories: tuple[Trajectory, ...]


@dataclass(kw_only=True, eq=False)
class Learner:
    """What a schedule works with; `values` is None for estimators without a critic."""

    policy: PolicyTrainer
    crediting: Crediting
    values: ValueSystem | None
    context: ContextBuilder
    warmup_updates: int
    ship_while_cold: bool
    batches_withheld: int = 0
    batches_empty: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class StepOutcome:
    """What a schedule did with one rollout batch; `trained` is whether the policy has a new version."""

    credit: BatchCredit
    trained: bool
    metrics: dict[str, float]


def score_then_train(learner: Learner, groups: Sequence[Group]) -> StepOutcome:
    """LC's schedule: score with the critic as it is, credit, update the policy, then train the critic.

    The values that credit a batch never come from a critic that has trained on it.
    """
    started = time.perf_counter()
    contexts = [learner.context(group.task) for group in groups]
    scored = scored_groups(learner.values, groups, contexts)
    seconds = {"seconds_values": time.perf_counter() - started}

    warm = _warm(learner, scored)
    credit = learner.crediting.credit(scored, warm=warm)
    metrics = metrics_of(credit, learner.crediting)

    started = time.perf_counter()
    version = learner.policy.version
    if warm or learner.ship_while_cold:
        batch = PolicyBatch.of(credit.policy_members, trained_version=version)
        learner.batches_empty += not batch.action_tokens
        metrics["groups_dropped"] += len(credit.critic_only)
        metrics |= learner.policy.step(batch)
    else:
        learner.batches_withheld += 1
    seconds["seconds_policy"] = time.perf_counter() - started

    started = time.perf_counter()
    if learner.values is not None:
        metrics["value_version"] = float(learner.values.evaluator.version)
        metrics |= learner.values.learn(value_samples(credit, groups, contexts))
    seconds["seconds_critic"] = time.perf_counter() - started
    metrics |= {
        "policy_steps": float(learner.policy.steps),
        "policy_batches_withheld": float(learner.batches_withheld),
        "policy_batches_empty": float(learner.batches_empty),
    }
    return StepOutcome(credit=credit, trained=learner.policy.version > version, metrics=metrics | seconds)


def scored_groups(
    values: ValueSystem | None, groups: Sequence[Group], contexts: Sequence[ContextInsertion | None]
) -> list[ScoredGroup]:
    """The groups with their values, all from one critic version."""
    if values is None:
        return [
            ScoredGroup(group_id=group.group_id, trajectories=group.trajectories, predictions=None) for group in groups
        ]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    spread = [context for group, context in zip(groups, contexts, strict=True) for _ in group.trajectories]
    predictions = iter(values.score(trajectories, spread))
    return [
        ScoredGroup(
            group_id=group.group_id,
            trajectories=group.trajectories,
            predictions=tuple(next(predictions) for _ in group.trajectories),
        )
        for group in groups
    ]


def value_samples(
    credit: BatchCredit, groups: Sequence[Group], contexts: Sequence[ContextInsertion | None]
) -> list[ValueSample]:
    """What the critic will train on: credited rollouts with frozen targets and the context they were scored with."""
    context_of = {group.group_id: context for group, context in zip(groups, contexts, strict=True)}
    return [
        ValueSample(
            rollout_id=member.trajectory.rollout_id,
            trajectories=(member.trajectory,),
            contexts=(context_of[member.trajectory.group_id],),
            value_targets=(member.value_targets,),
            value_version=member.value_version or 0,
            old_values=None if member.values is None else (member.values,),
        )
        for member in credit.members
        if member.trajectory.action_tokens
    ]


def _warm(learner: Learner, scored: Sequence[ScoredGroup]) -> bool:
    if learner.values is None:
        return True
    versions = [group.value_version for group in scored if group.value_version is not None]
    return ships(versions, live_version=learner.values.evaluator.version, warmup_updates=learner.warmup_updates)
