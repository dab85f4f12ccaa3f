"""What is done to a policy batch before it is trained on: whitening, and the cut into optimizer batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.core.ids import RolloutId
from lecritique.core.trajectory import PolicyBatch
from lecritique.numerics.whitening import whiten

Array = NDArray[np.float64]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, eq=False)
class Minibatch:
    """The rollouts of one optimizer step with their own global denominators.

    `share` is below 1 for one that is short of rollouts: its loss counts less, so that its responses weigh what those
    of a full one do.
    """

    batch: PolicyBatch
    share: float


def minibatches(batch: PolicyBatch, size: int) -> list[Minibatch]:
    """The batch in its own order, `size` rollouts at a time; all segments of a rollout stay together.

    The configuration makes batches a multiple of `size`; one from which rollouts failed ends in a short minibatch.
    """
    return [
        Minibatch(batch=PolicyBatch.of(tuple(part), trained_version=batch.trained_version), share=share)
        for part, share in by_rollouts(batch.members, lambda member: member.trajectory.rollout_id, size)
    ]


def by_rollouts(
    items: Sequence[Item], rollout_of: Callable[[Item], RolloutId], size: int
) -> list[tuple[list[Item], float]]:
    """Items of `size` rollouts at a time in their own order, with their share; a rollout's items stay together."""
    segments: dict[RolloutId, list[Item]] = {}
    for item in items:
        segments.setdefault(rollout_of(item), []).append(item)
    rollouts = list(segments.values())
    full = min(size, len(rollouts))
    parts = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
    return [([item for rollout in part for item in rollout], len(part) / full) for part in parts]


def whitened(batch: PolicyBatch) -> PolicyBatch:
    """The batch with its advantages whitened over all of its action tokens; 0 off the action mask."""
    masks = [member.trajectory.action_mask for member in batch.members]
    flat = np.concatenate([member.advantages[mask] for member, mask in zip(batch.members, masks, strict=True)])
    every = torch.from_numpy(flat)
    pieces = np.split(whiten(every, torch.ones_like(every, dtype=torch.bool)).numpy(), np.cumsum(_tokens(batch))[:-1])
    return replace(
        batch,
        members=tuple(
            replace(member, advantages=_spread(piece, mask))
            for member, piece, mask in zip(batch.members, pieces, masks, strict=True)
        ),
    )


def with_old_logprobs(batch: PolicyBatch, scored: Sequence[Array]) -> PolicyBatch:
    """The batch with the log-probs that the trainer gave each member's action tokens, nats."""
    return replace(
        batch,
        members=tuple(
            replace(member, old_logprobs=_spread(column, member.trajectory.action_mask))
            for member, column in zip(batch.members, scored, strict=True)
        ),
    )


def with_teacher_logprobs(batch: PolicyBatch, scored: Sequence[Array]) -> PolicyBatch:
    """The batch with the log-probs that a teacher gave each member's action tokens, nats."""
    return replace(
        batch,
        members=tuple(
            replace(member, teacher_logprobs=_spread(column, member.trajectory.action_mask))
            for member, column in zip(batch.members, scored, strict=True)
        ),
    )


def _tokens(batch: PolicyBatch) -> list[int]:
    return [member.trajectory.action_tokens for member in batch.members]


def _spread(on_actions: Array, mask: NDArray[np.bool_]) -> Array:
    column = np.zeros(len(mask))
    column[mask] = on_actions
    return column
