"""What `--dry-run` prints: the resolved configuration, the batch arithmetic and a memory estimate."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lecritique.cli.output import console
from lecritique.config.resolve import teacher_content, uses_critic, uses_teacher
from lecritique.config.schema import RunConfig, TrainThenScore
from lecritique.runtime.build import Base

_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}


def print_plan(base: Base) -> None:
    """Print it."""
    console.print_json(json.dumps(base.config.model_dump(mode="json")))
    for line in arithmetic(base.config):
        console.print(line, soft_wrap=True)
    for line in memory(base.language.model.num_parameters(), base.config):
        console.print(line, soft_wrap=True)


def arithmetic(config: RunConfig) -> Iterator[str]:
    """Rollouts, groups and updates in words."""
    size, group = config.rollout.batch_size, config.rollout.group_size
    steps = config.run.steps
    yield (
        f"Batch: {size} rollouts = {size // group} groups of {group}; "
        f"{steps} steps = {steps * size:,} rollouts of {config.task.type}."
    )
    rounds, policy = config.rollout.dynamic_sampling, config.policy
    if rounds:
        yield f"Dynamic sampling: up to {rounds} rounds a step, so at most {(rounds + 1) * size:,} rollouts."
    if uses_teacher(config):
        yield f"Teacher: {policy.teacher.type}, told {teacher_content(config)}."
    if not uses_critic(config):
        origin = (
            "the teacher stands in for advantages"
            if policy.loss.type == "opsd"
            else "the baseline comes from the group"
        )
        yield f"Critic: none, {origin}."
        return
    critic, replay = config.critic, config.critic.replay
    if isinstance(critic.schedule, TrainThenScore):
        of = policy.minibatch_size or size
        when = "before it is scored" if critic.schedule.pre_update else "after the policy"
        yield (
            f"Critic: {size // of} updates of {of} rollouts a step, one epoch of the batch {when}, context "
            f"{critic.context.type}."
        )
    else:
        yield (
            f"Critic: {critic.updates_per_policy_step:g} updates of {replay.batch_size} rollouts a step, each rollout "
            f"at most {replay.max_uses} times, {replay.capacity} held, context {critic.context.type}."
        )
    kind = "discarded" if critic.warmup == "discard" else "credited by leave-one-out"
    yield f"Warm-up: batches scored before critic version {critic.warmup_updates} are {kind}."


def memory(parameters: int, config: RunConfig) -> Iterator[str]:
    """Bytes of weights and optimizer states per role (activations and caches come on top)."""
    width = _BYTES[config.runtime.dtype]
    roles = {"engine": 1, "policy trainer (weights, gradient, two moments)": 4}
    if uses_critic(config):
        roles |= {"evaluator": 1, "value trainer (weights, gradient, two moments)": 4}
    if uses_teacher(config):
        roles["teacher"] = 1
    total = 0
    for role, copies in roles.items():
        total += copies * parameters * width
        yield f"Memory: {role} {copies * parameters * width / 2**20:,.1f} MiB"
    # The weight store keeps the latest published version of each role.
    stored = (2 if uses_critic(config) else 1) * parameters * width
    yield f"Memory: weight store {stored / 2**20:,.1f} MiB; all roles {(total + stored) / 2**20:,.1f} MiB"
