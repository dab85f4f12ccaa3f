"""What every loop does around a rollout batch: requests before it, groups and figures after it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from lecritique.config.schema import RunConfig
from lecritique.core.errors import BudgetExceeded, DataError, RoleFailure
from lecritique.core.ids import GroupId
from lecritique.core.metrics import Mean
from lecritique.core.rollout import GroupRequest, Rollout
from lecritique.credit.schedules import Group
from lecritique.rollout.trajectories import trajectory_of
from lecritique.runtime.build import Parts, sampling_of
from lecritique.tasks.protocol import Environment, checked_task


def training_request(parts: Parts, group_id: GroupId) -> GroupRequest:
    """What the driver is asked for a group that is trained on."""
    config = parts.config
    return group_request(
        parts.environment, config, group_id, group_size=config.rollout.group_size, seed=config.run.seed
    )


def group_request(
    environment: Environment, config: RunConfig, group_id: GroupId, *, group_size: int, seed: int
) -> GroupRequest:
    """So many rollouts of a row, sampled and limited as the resolved configuration says."""
    limit = config.sampling.max_total_tokens
    assert limit is not None
    return GroupRequest(
        group_id=group_id,
        task=checked_task(environment, group_id.row),
        group_size=group_size,
        sampling=sampling_of(config),
        max_turn_tokens=config.sampling.max_turn_tokens,
        max_total_tokens=limit,
        seed=seed,
    )


def valid_group(members: Sequence[Rollout]) -> Group | None:
    """The members that have a reward; a failed one is excluded, never counted as wrong. None without any."""
    valid = [member for member in members if member.reward is not None]
    if not valid:
        return None
    return Group(
        group_id=valid[0].rollout_id.group,
        task=valid[0].task,
        trajectories=tuple(trajectory_of(member) for member in valid),
    )


def valid_groups(rollouts: Sequence[tuple[Rollout, ...]]) -> list[Group]:
    """The groups that have a valid member."""
    return [group for group in map(valid_group, rollouts) if group is not None]


def rollout_metrics(rollouts: Sequence[tuple[Rollout, ...]], seconds: float) -> dict[str, float]:
    """Metrics of what was collected in so many seconds."""
    members = [member for group in rollouts for member in group]
    valid = [member for member in members if member.reward is not None]
    tokens = [sum(len(turn.completion.token_ids) for turn in member.turns) for member in valid]
    return {
        "reward": Mean(math.fsum(member.reward or 0.0 for member in valid), len(valid)).value(),
        "rollouts": float(len(members)),
        "rollouts_failed": float(len(members) - len(valid)),
        "truncated_fraction": Mean(float(sum(member.truncated for member in valid)), len(valid)).value(),
        "response_tokens": Mean(float(sum(tokens)), len(valid)).value(),
        "turns": Mean(float(sum(len(member.turns) for member in valid)), len(valid)).value(),
        "tokens_per_second": sum(tokens) / seconds,
    }


def require_enough(rollouts: Sequence[tuple[Rollout, ...]], config: RunConfig) -> None:
    """Raise RoleFailure, or DataError for prompts that are too long, when too many of the rollouts failed."""
    members = [member for group in rollouts for member in group]
    failed = [member for member in members if member.error is not None]
    if len(failed) <= config.rollout.max_failed_fraction * len(members):
        return
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(m.status for m in failed).most_common())
    message = (
        f"{len(failed)} of {len(members)} rollouts failed ({kinds}), more than 'rollout.max_failed_fraction' = "
        f"{config.rollout.max_failed_fraction} allows; the first: {failed[0].error}"
    )
    # A prompt over the limit is a matter of the data, not of a role.
    raise DataError(message) if isinstance(failed[0].error, BudgetExceeded) else RoleFailure(message)
