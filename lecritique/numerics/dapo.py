"""What DAPO adds to the clipped surrogate: a soft penalty on overlong responses, and groups that say nothing.

Its surrogate is `ppo_loss` with eps_low 0.2 and eps_high 0.28, reduced by `token_mean`; its advantage is
`group_advantages` with scale `std`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lecritique.numerics.precision import widen


def overlong_penalty(lengths_B: Tensor | Sequence[int], limit: int = 16384, cache: int = 4096) -> Tensor:
    """What a response's return is lowered by for coming near the length limit, or for passing it.

        penalty = clip((limit - cache - length) / cache, -1, 0)

    0 up to limit - cache tokens, falling linearly to -1 at the limit, -1 beyond. Add it to the return.

    Args:
        lengths_B: [B], action tokens of each response.
        limit: tokens at which the penalty is -1.
        cache: tokens over which it grows, in [1, limit].

    Returns:
        [B], in [-1, 0], reward units, float64.

    Raises:
        ValueError: a cache outside [1, limit].

    Source: 2503.14476 eq. 13; method sheet section 1.
    """
    if not 1 <= cache <= limit:
        raise ValueError(f"cache must be in [1, limit = {limit}] tokens, got {cache}")
    lengths = torch.as_tensor(lengths_B, dtype=torch.float64)
    return ((limit - cache - lengths) / cache).clamp(min=-1.0, max=0.0)


def zero_variance(returns_K: Tensor) -> Tensor:
    """Whether all valid returns of a group are equal, so that a group baseline gives every member advantage 0.

        zero variance  <=>  max R_i = min R_i over the valid i

    Decided on the returns themselves, not on a variance with its rounding. A group without a valid return, or with
    one, has none either.

    Args:
        returns_K: [..., K], reward units, NaN where invalid.

    Returns:
        [...] bool, True = the group says nothing.

    Raises:
        ValueError: a group of size 0.

    Source: 2503.14476 section 3.2 (dynamic sampling); method sheet section 1.
    """
    if returns_K.shape[-1] == 0:
        raise ValueError("a group needs at least 1 rollout, got 0")
    returns = widen(returns_K.detach())
    invalid = returns.isnan()
    highest = returns.masked_fill(invalid, -torch.inf).amax(-1)
    lowest = returns.masked_fill(invalid, torch.inf).amin(-1)
    return highest <= lowest
