"""Groups with given returns and values, one number a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from small_models import trajectory

from lecritique.core.ids import GroupId
from lecritique.core.trajectory import ValuePrediction
from lecritique.credit.estimators import ScoredGroup

MASK = (0, 1, 1, 0, 1)


def group(
    returns: Sequence[float],
    values: Sequence[Sequence[float]] | None = None,
    *,
    row: int = 0,
    masks: Sequence[Sequence[int]] | None = None,
    version: int = 99,
) -> ScoredGroup:
    """A group whose member m has return `returns[m]` and values `values[m]` on its action tokens."""
    masks = [MASK] * len(returns) if masks is None else masks
    members = tuple(
        trajectory(mask, member=m, row=row, episode_return=reward)
        for m, (mask, reward) in enumerate(zip(masks, returns, strict=True))
    )
    predictions = None
    if values is not None:
        predictions = tuple(
            ValuePrediction(rollout_id=t.rollout_id, values=spread(column, t.action_mask), value_version=version)
            for t, column in zip(members, values, strict=True)
        )
    return ScoredGroup(group_id=GroupId(row, 0), trajectories=members, predictions=predictions)


def random_group(seed: int, *, size: int = 4, row: int = 0, version: int = 99) -> ScoredGroup:
    """Ragged members with observation tokens between, random values and binary returns of both kinds."""
    rng = np.random.default_rng([seed, row])
    masks = [[0, *(rng.random(rng.integers(2, 9)) < 0.7).astype(int), 1] for _ in range(size)]
    returns = [1.0, 0.0, *(rng.random(size) < 0.5).astype(float)][:size]
    return group(returns, [rng.random(sum(mask)) for mask in masks], row=row, masks=masks, version=version)


def spread(column: Sequence[float], mask: np.ndarray) -> np.ndarray:
    """A column on the action tokens, 0 elsewhere."""
    out = np.zeros(len(mask))
    out[np.asarray(mask, dtype=bool)] = column
    return out
