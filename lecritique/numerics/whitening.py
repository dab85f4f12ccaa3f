"""Whitening: advantages of a batch with mean 0 and variance 1, as a step of its own. N is any shape of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lecritique.core.moments import Moments
from lecritique.numerics.precision import require_mask, select, widen

# Inside the root, as VP has it: a batch of equal advantages gives 0, not 0 / 0.
_VARIANCE_FLOOR = 1e-8


def advantage_moments(advantages_N: Tensor, action_mask_N: Tensor) -> Moments:
    """Count, mean and sum of squared deviations of the advantages of action tokens, in float64.

        mean = sum A / n,   M2 = sum (A - mean)^2

    Merge those of all micro-batches and ranks, then whiten each part with the whole.

    Args:
        advantages_N: [N], reward units.
        action_mask_N: [N] bool, True on action tokens; off it nothing is read.

    Raises:
        ValueError: a mask that is not boolean or shapes that differ.

    Source: method sheet section 6.
    """
    require_mask(action_mask_N, advantages_N)
    return Moments.of(advantages_N.detach()[action_mask_N].double().cpu().numpy())


def whiten(advantages_N: Tensor, action_mask_N: Tensor, moments: Moments | None = None) -> Tensor:
    """Advantages with the batch's mean taken off, divided by its standard deviation.

        A' = (A - mean) / sqrt(population variance + 1e-8),   over all action tokens of the batch

    Whitening twice changes nothing more, to 1e-8 over the variance. Equal advantages give 0. It may turn the sign of
    an advantage, so whatever depends on the sign comes before it.

    Args:
        advantages_N: [N], reward units.
        action_mask_N: [N] bool, True on action tokens; off it nothing is read and the result is 0.
        moments: of the whole batch, where this is a part of it (`advantage_moments`, merged); None: this is the whole.

    Returns:
        [N], dimensionless, float32 or wider, detached.

    Raises:
        ValueError: a mask that is not boolean or shapes that differ.

    Source: VP section 3 (option after fusion); method sheet sections 3 and 6.
    """
    whole = advantage_moments(advantages_N, action_mask_N) if moments is None else moments
    if whole.count == 0:
        return torch.zeros_like(widen(advantages_N.detach()))
    deviation = math.sqrt(whole.variance + _VARIANCE_FLOOR)
    return select(action_mask_N, (widen(advantages_N.detach()) - whole.mean) / deviation)
