"""The synchronous loop's step: collect a batch, run the schedule, hand the policy's new version to the engine.

stream ─► collect (engine + environments) ─► the configured schedule: scores, credit, policy and critic updates ─┐
  ▲                                                                                                             │
  └──────────────────────────── engine adopts the policy's new weights ◄────────────────────────────────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from lecritique.config.resolve import uses_critic
from lecritique.config.schema import RunConfig, TrainThenScore
from lecritique.core.rollout import Rollout
from lecritique.credit.schedules import Group, Learner, StepOutcome, score_then_train
from lecritique.credit.train_then_score import train_then_score
from lecritique.numerics.dapo import zero_variance
from lecritique.rollout.collect import collect
from lecritique.runtime.build import Parts
from lecritique.runtime.engines import engine_restarts
from lecritique.runtime.ledger import outcome_of
from lecritique.runtime.steps import require_enough, rollout_metrics, training_request, valid_groups

Schedule = Callable[[Learner, Sequence[Group]], StepOutcome]


@dataclass(frozen=True, kw_only=True, eq=False)
class SynchronousStep:
    """What one step collected, did and measured."""

    rollouts: list[tuple[Rollout, ...]]
    outcome: StepOutcome
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Collected:
    """The groups of a step's batch, in order of the stream, and those that others were asked for in place of."""

    batch: list[tuple[Rollout, ...]]
    replaced: list[tuple[Rollout, ...]]


def train_step(parts: Parts, step: int) -> SynchronousStep:
    """One rollout batch from request to new weights."""
    if parts.config.runtime.loop != "synchronous":
        raise ValueError("these roles were built for 'runtime.loop' = 'asynchronous', whose evaluator is a thread")
    started = time.perf_counter()
    collected = collect_batch(parts)
    rollouts = collected.batch
    seconds_rollout = time.perf_counter() - started
    everything = [*collected.batch, *collected.replaced]
    require_enough(everything, parts.config)
    for members in everything:
        parts.spending.played(members)
    version = parts.learner.policy.version
    outcome = schedule_of(parts.config)(parts.learner, valid_groups(rollouts))
    _close(parts, step, collected, outcome, version=version)
    # Also where the policy stayed as it was: no cache outlives a step, so a resumed run finds the engine as it left it.
    parts.engine.adopt(parts.learner.policy.publish())
    seconds = time.perf_counter() - started
    metrics = {
        **rollout_metrics(everything, seconds_rollout),
        **_sampling_metrics(parts.config, collected),
        **outcome.metrics,
        "engine_restarts": float(engine_restarts(parts.engine)),
        "seconds_rollout": seconds_rollout,
        "seconds": seconds,
        **parts.spending.step(seconds),
    }
    return SynchronousStep(rollouts=rollouts, outcome=outcome, metrics=metrics)


def schedule_of(config: RunConfig) -> Schedule:
    """The configured order of scoring and training; without a critic there is only one."""
    chosen = config.critic.schedule
    if uses_critic(config) and isinstance(chosen, TrainThenScore):
        return partial(train_then_score, pre_update=chosen.pre_update)
    return score_then_train


def collect_batch(parts: Parts) -> Collected:
    """The next groups of the stream; with dynamic sampling others in place of those that say nothing, round by round.

    Those of the last round stay, whatever they say: a batch is never short.
    """
    rollout = parts.config.rollout
    batch: list[tuple[Rollout, ...]] = []
    replaced: list[tuple[Rollout, ...]] = []
    for rounds_left in range(rollout.dynamic_sampling, -1, -1):
        batch += _next_groups(parts, rollout.batch_size // rollout.group_size - len(batch))
        silent = [members for members in batch if says_nothing(members)]
        if not silent or not rounds_left:
            break
        replaced += silent
        batch = [members for members in batch if not says_nothing(members)]
    return Collected(batch=batch, replaced=replaced)


def says_nothing(members: Sequence[Rollout]) -> bool:
    """Whether all rewards of a group are equal, failed members aside; one that failed as a whole is a failure."""
    rewards = [member.reward for member in members if member.reward is not None]
    return bool(rewards) and bool(zero_variance(torch.tensor(rewards, dtype=torch.float64)))


def _next_groups(parts: Parts, count: int) -> list[tuple[Rollout, ...]]:
    """Rollouts of the groups of the stream that were not asked for yet."""
    first = parts.ledger.next_position
    group_ids = parts.stream.groups(first, count)
    for position, group_id in enumerate(group_ids, start=first):
        parts.ledger.issue(group_id, position)
    requests = [training_request(parts, group_id) for group_id in group_ids]
    return collect(requests, environment=parts.environment, renderer=parts.renderer, engine=parts.engine)


def _sampling_metrics(config: RunConfig, collected: Collected) -> dict[str, float]:
    if not config.rollout.dynamic_sampling:
        return {}
    return {
        "groups_resampled": float(len(collected.replaced)),
        "groups_without_variance": float(sum(says_nothing(members) for members in collected.batch)),
    }


def _close(parts: Parts, step: int, collected: Collected, outcome: StepOutcome, *, version: int) -> None:
    """What became of each group, in the ledger, in order of the stream."""
    versions = {m.trajectory.group_id: m.value_version for m in outcome.credit.members}
    every = [(members, outcome_of(members, outcome.policy_batch)) for members in collected.batch]
    every += [(members, "filtered") for members in collected.replaced]
    for members, ended in sorted(every, key=lambda pair: parts.ledger.position(pair[0][0].rollout_id.group)):
        group_id = members[0].rollout_id.group
        oldest = [v for m in members for turn in m.turns for v in turn.completion.policy_version.tolist()]
        parts.ledger.close(
            group_id,
            ended,
            step=step,
            staleness=version - min(oldest) if oldest else None,
            value_version=versions.get(group_id),
        )
