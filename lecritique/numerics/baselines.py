"""Baselines from the other rollouts of a group. K is the group size; NaN marks a rollout without a valid return."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lecritique.numerics.precision import widen

BaselineKind = Literal["mean", "leave_one_out"]
AdvantageScale = Literal["none", "std"]

# Keeps the division finite in a group whose returns are all equal; the value that GRPO implementations use.
_STD_FLOOR = 1e-6


def group_baselines(returns_K: Tensor, kind: BaselineKind = "mean") -> Tensor:
    """One baseline per rollout of a group.

        mean:           b_i = mean of the valid R_j
        leave_one_out:  b_i = mean of the valid R_j with j != i

    A NaN return is invalid: it is excluded from every baseline and its own baseline is NaN. The leave-one-out
    baseline is summed without R_i, not subtracted from the whole sum, so R_i cannot reach it even by rounding.
    R_i - b_i of leave_one_out is K/(K-1) times that of mean.

    Args:
        returns_K: [..., K], reward units, NaN where invalid.
        kind: `mean` or `leave_one_out`.

    Returns:
        [..., K], float32 or wider, detached.

    Raises:
        ValueError: a group with fewer than 2 valid returns (a mean over one gives advantage 0 whatever the
            return, and leave_one_out has nothing left), an infinite return, or an unknown kind.

    Source: LC eq. 3 and section 5; method sheet section 2.
    """
    returns = widen(returns_K.detach())
    valid = ~returns.isnan()
    if bool(returns.isinf().any()):
        raise ValueError("a group return is infinite, expected finite returns, or NaN for an invalid one")
    fewest = int(valid.sum(-1).min()) if returns.numel() else 0
    if fewest < 2:
        raise ValueError(f"baseline {kind!r} needs at least 2 rollouts with a valid return, got {fewest}")
    if kind == "mean":
        others = valid.unsqueeze(-2).expand(*valid.shape, valid.shape[-1])
    elif kind == "leave_one_out":
        itself = torch.eye(returns.shape[-1], dtype=torch.bool, device=returns.device)
        others = valid.unsqueeze(-2) & ~itself
    else:
        raise ValueError(f"baseline must be 'mean' or 'leave_one_out', got {kind!r}")
    rows = returns.unsqueeze(-2).expand(others.shape)
    total = torch.where(others, rows, torch.zeros_like(rows)).sum(-1)
    return torch.where(valid, total / others.sum(-1), torch.full_like(returns, torch.nan))


def group_advantages(
    returns_K: Tensor, kind: BaselineKind = "mean", scale: AdvantageScale = "none"
) -> tuple[Tensor, Tensor]:
    """Baselines and advantages of a group.

        A_i = R_i - b_i                       scale "none"
        A_i = (R_i - b_i) / (std(R) + 1e-6)   scale "std", sample standard deviation of the valid returns

    Each advantage is meant for every action token of its rollout. `mean` with `none` is LC's group baseline,
    `mean` with `std` is GRPO's.

    Args:
        returns_K: [..., K], reward units, NaN where invalid.
        kind: `mean` or `leave_one_out`.
        scale: `none` or `std`.

    Returns:
        baselines [..., K] and advantages [..., K], both NaN where the return is invalid; detached.

    Raises:
        ValueError: what `group_baselines` refuses, or an unknown scale.

    Source: LC eq. 3; 2402.03300 (std); method sheet section 2.
    """
    baselines = group_baselines(returns_K, kind)
    returns = widen(returns_K.detach())
    advantages = returns - baselines
    if scale == "none":
        return baselines, advantages
    if scale != "std":
        raise ValueError(f"scale must be 'none' or 'std', got {scale!r}")
    valid = ~returns.isnan()
    count = valid.sum(-1, keepdim=True)
    zero = torch.zeros_like(returns)
    mean = torch.where(valid, returns, zero).sum(-1, keepdim=True) / count
    deviations = torch.where(valid, returns - mean, zero)
    std = (deviations.square().sum(-1, keepdim=True) / (count - 1)).sqrt()
    return baselines, advantages / (std + _STD_FLOOR)


def optimal_constant_baseline(returns_N: Tensor, score_norm_sq_N: Tensor) -> float | None:
    """The one number that, taken from every return, leaves the policy gradient smallest; for diagnosis.

        b* = E[|s|^2 R] / E[|s|^2],   s = sum_t grad log pi(token t) of a trajectory

    It minimises E[(R - b)^2 |s|^2], and is the mean return only where scores are as large after one return as after
    another. Where failures have by far the larger scores, b* is near their return, and the mean return leaves more
    variance than no baseline at all.

    Args:
        returns_N: [N], reward units.
        score_norm_sq_N: [N], |s|^2, at least 0.

    Returns:
        b*, reward units; None where all scores are 0.

    Raises:
        ValueError: shapes that differ or a negative norm.

    Source: Greensmith et al. 2004; LC appendix C (there token by token); method sheet section 5.
    """
    if returns_N.shape != score_norm_sq_N.shape:
        raise ValueError(
            f"score norms have shape {tuple(score_norm_sq_N.shape)}, expected {tuple(returns_N.shape)} as the returns"
        )
    returns, weights = returns_N.detach().double(), score_norm_sq_N.detach().double()
    if bool((weights < 0).any()):
        raise ValueError(f"squared score norms must be at least 0, got {float(weights.min()):g}")
    total = float(weights.sum())
    return float((weights * returns).sum()) / total if total > 0.0 else None
