"""VASPO's order of scoring and training within one rollout batch (VP section 3; method sheet section 6).

 v_old ─► one critic epoch towards G, v_old fixed ─► values again ─► credit ─► policy (teacher, minibatches)

The critic that scores a batch has trained on the very returns that it then explains: the values of a rollout depend on
that rollout's own return, so LC's proof that the policy gradient is unbiased does not hold here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from lecritique.core.ids import RolloutId
from lecritique.core.trajectory import ContextInsertion, ValueSample
from lecritique.credit.estimators import ScoredGroup, TokenCredit
from lecritique.credit.schedules import (
    Group,
    Learner,
    StepOutcome,
    by_rollout,
    prepare,
    scored_groups,
    tasks_of,
    with_contexts,
)
from lecritique.policy.batches import by_rollouts


def train_then_score(learner: Learner, groups: Sequence[Group], *, pre_update: bool = True) -> StepOutcome:
    """Train the critic on the batch, score with what came of it, credit, and update the policy.

    The critic makes one epoch over the minibatches that the policy's update is made of, towards targets made with
    v_old, around which a clipped loss clips; nothing is kept for later batches. `explained_variance` is of v_old.

    Args:
        learner: with a critic.
        groups: the rollout batch.
        pre_update: False trains the critic after the policy instead, so that v_old credits: PPO's usual order.

    Raises:
        ValueError: a learner without a critic.
    """
    values = learner.values
    if values is None:
        raise ValueError("train_then_score needs a critic")
    started = time.perf_counter()
    groups, contexts, context_metrics = with_contexts(learner.context, groups)
    of_rollout = by_rollout(groups, contexts)
    scored = scored_groups(values, groups, contexts)
    before = learner.crediting.targets(scored)
    samples = samples_of(learner.crediting.large_enough(scored), before, of_rollout)
    seconds = {"seconds_values": time.perf_counter() - started, "seconds_critic": 0.0}

    def critic_epoch() -> dict[str, float]:
        began = time.perf_counter()
        found = values.epoch(critic_minibatches(samples, learner.policy.minibatch_size))
        seconds["seconds_critic"] = time.perf_counter() - began
        return found

    critic_metrics: dict[str, float] = {}
    if pre_update:
        critic_metrics = critic_epoch()
        started = time.perf_counter()
        scored = scored_groups(values, groups, contexts)
        seconds["seconds_values"] += time.perf_counter() - started

    prepared = prepare(learner, scored, of_rollout, tasks=tasks_of(groups), before=before if pre_update else None)
    metrics = prepared.metrics | {"value_version": float(values.evaluator.version)}
    metrics["groups_dropped"] += context_metrics.pop("groups_dropped", 0.0)
    started, version = time.perf_counter(), learner.policy.version
    if prepared.policy_batch is not None:
        metrics |= learner.policy.step(prepared.policy_batch)
    seconds["seconds_policy"] = time.perf_counter() - started

    if not pre_update:
        critic_metrics = critic_epoch()
    return StepOutcome(
        credit=prepared.credit,
        policy_batch=prepared.policy_batch,
        trained=learner.policy.version > version,
        metrics=metrics | context_metrics | critic_metrics | learner.counts() | seconds,
        contexts=of_rollout,
    )


def critic_minibatches(samples: Sequence[ValueSample], size: int | None) -> list[tuple[tuple[ValueSample, ...], float]]:
    """The samples of `size` rollouts at a time, with the share that the policy's minibatch of them has; None: all."""
    parts = by_rollouts(samples, lambda sample: sample.rollout_id, size or max(1, len(samples)))
    return [(tuple(part), share) for part, share in parts]


def samples_of(
    groups: Sequence[ScoredGroup],
    credits: Sequence[TokenCredit],
    contexts: Mapping[RolloutId, ContextInsertion | None],
) -> list[ValueSample]:
    """What the critic's epoch is made of: every rollout with action tokens, its target, and v_old beside it."""
    scored = [(trajectory, group.value_version or 0) for group in groups for trajectory in group.trajectories]
    return [
        ValueSample(
            rollout_id=trajectory.rollout_id,
            trajectories=(trajectory,),
            contexts=(contexts[trajectory.rollout_id],),
            value_targets=(credit.targets_T,),
            value_version=version,
            old_values=(credit.values_T,),
        )
        for (trajectory, version), credit in zip(scored, credits, strict=True)
        if trajectory.action_tokens
    ]
