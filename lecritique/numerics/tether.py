"""Tether: how far to trust the critic over the leave-one-out baseline, and the advantage that follows.

x_t = V_t - B and y_t = Q_t - B with B the leave-one-out baseline of the rollout and Q_t = V_t + GAE_t.
Shapes: T trajectory length, N action tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lecritique.numerics.precision import require_mask, require_shape, select, widen

# Below this mean square the critic says what the group says and the slope is undefined.
_UNDEFINED_XX = 1e-12
# Rounding of values that were stored in float32: half a unit in the last place of either operand, with room to spare.
_FLOAT32_ROUNDING = 2.0**-23
# Action tokens of a bucket, in which one coefficient holds.
_BUCKET_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class TetherSums:
    """Token-weighted sums of x^2, xy and y^2 in float64, mergeable in any order."""

    weight: float = 0.0
    sxx: float = 0.0
    sxy: float = 0.0
    syy: float = 0.0

    def merge(self, other: TetherSums) -> TetherSums:
        """The sums over both."""
        return TetherSums(
            weight=self.weight + other.weight,
            sxx=self.sxx + other.sxx,
            sxy=self.sxy + other.sxy,
            syy=self.syy + other.syy,
        )

    def mse(self, rho: float) -> float:
        """Mean of (y - rho x)^2 over the tokens: the squared error of the baseline (1 - rho) B + rho V; NaN of none."""
        if not self.weight:
            return math.nan
        return (self.syy - 2.0 * rho * self.sxy + rho * rho * self.sxx) / self.weight

    @property
    def mse_group(self) -> float:
        """`mse(0)`: the squared error of the leave-one-out baseline alone."""
        return self.mse(0.0)


def tether_pairs(
    advantages_T: Tensor, values_T: Tensor, baseline: float, action_mask_T: Tensor
) -> tuple[Tensor, Tensor]:
    """What the fit sees of one rollout: x and y of its action tokens, in order.

        x_t = V_t - B,   y_t = V_t + GAE_t - B

    A difference within float32 rounding of V_t and B counts as 0: a critic that repeats the group's baseline,
    stored in float32, carries no information, whatever the size of the rewards.

    Args:
        advantages_T: [..., T], GAE with the critic, reward units.
        values_T: [..., T], reward units.
        baseline: B, the leave-one-out mean of the rollout.
        action_mask_T: [..., T] bool, True on sampled tokens.

    Returns:
        x [N] and y [N], float64, detached.

    Raises:
        ValueError: a mask that is not boolean or shapes that differ.

    Source: LC section 5 eq. 15; method sheet section 5.
    """
    require_mask(action_mask_T, values_T)
    require_shape("advantages", advantages_T, values_T)
    values_N = values_T.detach()[action_mask_T].double()
    advantages_N = advantages_T.detach()[action_mask_T].double()
    raw_N = values_N - baseline
    resolution_N = _FLOAT32_ROUNDING * values_N.abs().clamp(min=abs(baseline))
    x_N = torch.where(raw_N.abs() <= resolution_N, torch.zeros_like(raw_N), raw_N)
    return x_N, raw_N + advantages_N


def tether_sums(x_N: Tensor, y_N: Tensor, mask_N: Tensor | None = None) -> TetherSums:
    """The sums that the fit needs, over the tokens on the mask.

        weight = n,  sxx = sum x^2,  sxy = sum x y,  syy = sum y^2

    Args:
        x_N: [N], V_t - B.
        y_N: [N], Q_t - B.
        mask_N: [N] bool, True = counted; None counts all.

    Raises:
        ValueError: shapes that differ or a mask that is not boolean.

    Source: LC eq. 15; method sheet section 5.
    """
    require_shape("y", y_N, x_N)
    x = select(mask_N, x_N.detach().double())
    y = select(mask_N, y_N.detach().double())
    weight = x.numel() if mask_N is None else int(mask_N.sum())
    return TetherSums(
        weight=float(weight), sxx=float((x * x).sum()), sxy=float((x * y).sum()), syy=float((y * y).sum())
    )


def tether_fit(sums: TetherSums, *, ridge: float = 1e-6) -> float | None:
    """The slope of y on x through the origin, with a relative ridge; not clipped.

        rho_hat = S_xy / (S_xx + ridge max(S_xx, S_yy))

    It minimises the mean squared error of Q_t against (1 - rho) B + rho V_t. Duplicating all tokens, or scaling
    all rewards, changes nothing. V = Q gives 1, V = B is undefined.

    Args:
        sums: of the window.
        ridge: at least 0, dimensionless.

    Returns:
        rho_hat, or None where it is undefined: no tokens, S_xx / n <= 1e-12, or a result that is not finite.

    Raises:
        ValueError: a negative ridge.

    Source: LC eq. 15, ridge from LC's code; method sheet section 5.
    """
    if not ridge >= 0.0:
        raise ValueError(f"ridge must be at least 0, got {ridge}")
    if sums.weight <= 0 or not sums.sxx / sums.weight > _UNDEFINED_XX:
        return None
    slope = sums.sxy / (sums.sxx + ridge * max(sums.sxx, sums.syy))
    return slope if math.isfinite(slope) else None


def tether_ema(rho: float, fit: float | None, *, decay: float = 0.95, clip: bool = True) -> float:
    """The next coefficient after a window.

        rho <- decay rho + (1 - decay) clip(rho_hat, 0, 1)

    No bias correction: from rho = 0, a constant fit f gives f (1 - decay^k) after k windows. An undefined fit
    (None) leaves rho as it is. `clip = False` takes rho_hat as it is.

    Args:
        rho: coefficient so far.
        fit: rho_hat of the window, or None.
        decay: in [0, 1).
        clip: whether rho_hat is clipped to [0, 1].

    Raises:
        ValueError: a decay outside [0, 1).

    Source: LC section 5, appendix C; method sheet section 5.
    """
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"decay must be in [0, 1), got {decay}")
    if fit is None:
        return rho
    return decay * rho + (1.0 - decay) * (min(max(fit, 0.0), 1.0) if clip else fit)


def tether_buckets(horizon: int) -> int:
    """How many buckets of positions a response of at most `horizon` action tokens has.

        buckets = clip(floor(horizon / 1024), 2, 128)

    Rounded down: what is left over joins the last bucket, so that none is fitted on a stump.

    Args:
        horizon: most action tokens of a response, at least 1.

    Raises:
        ValueError: a horizon below 1.

    Source: LC section 7.3 and its code; the rounding is ours; method sheet section 5.
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1 token, got {horizon}")
    return min(max(horizon // _BUCKET_TOKENS, 2), 128)


def tether_bucket(position_N: Tensor, buckets: int) -> Tensor:
    """The bucket of an action token.

        bucket = min(floor(position / 1024), buckets - 1)

    Args:
        position_N: [N] integers, 0-based index of the token among the action tokens of its rollout.
        buckets: at least 1.

    Returns:
        [N], int64, in [0, buckets).

    Raises:
        ValueError: fewer than 1 bucket or a negative position.

    Source: LC section 7.3 and its code; method sheet section 5.
    """
    if buckets < 1:
        raise ValueError(f"buckets must be at least 1, got {buckets}")
    if bool((position_N < 0).any()):
        raise ValueError(f"positions must be at least 0, got {int(position_N.min())}")
    return torch.div(position_N.long(), _BUCKET_TOKENS, rounding_mode="floor").clamp(max=buckets - 1)


def tether_bucket_sums(x_N: Tensor, y_N: Tensor, buckets: int) -> list[TetherSums]:
    """`tether_sums` of one rollout, bucket by bucket.

        sums_b = tether_sums over the tokens with tether_bucket(position) = b,   position = 0 .. N-1

    One bucket, or their merge: `tether_sums` of all tokens, to rounding.

    Args:
        x_N: [N], V_t - B of all action tokens of the rollout, in order, see `tether_pairs`.
        y_N: [N], Q_t - B.
        buckets: at least 1.

    Returns:
        one per bucket; a bucket that the rollout does not reach has weight 0.

    Raises:
        ValueError: shapes that differ or fewer than 1 bucket.

    Source: LC section 7.3; method sheet section 5.
    """
    require_shape("y", y_N, x_N)
    bucket_N = tether_bucket(torch.arange(len(x_N), device=x_N.device), buckets)
    weights = torch.bincount(bucket_N, minlength=buckets).tolist()
    per_token = torch.split(x_N, weights), torch.split(y_N, weights)
    return [tether_sums(x, y) for x, y in zip(*per_token, strict=True)]


def score_norm_optimum(x_N: Tensor, y_N: Tensor, score_norm_sq_N: Tensor) -> float | None:
    """The coefficient of least gradient variance, for diagnosis: tokens weighted by the size of their score.

        rho* = E[|s|^2 x y] / E[|s|^2 x^2],   s_t = grad log pi(token t)

    It minimises E[|s|^2 (y - rho x)^2], the second moment of the token's gradient. With equal scores it is
    `tether_fit` without ridge. Not clipped.

    Args:
        x_N: [N], V_t - B.
        y_N: [N], Q_t - B.
        score_norm_sq_N: [N], |s_t|^2, at least 0.

    Returns:
        rho*, or None where it is undefined, as in `tether_fit` with x^2 weighted.

    Raises:
        ValueError: shapes that differ or a negative norm.

    Source: LC appendix C; method sheet section 5.
    """
    require_shape("score norms", score_norm_sq_N, x_N)
    weight_N = score_norm_sq_N.detach().double()
    if bool((weight_N < 0).any()):
        raise ValueError(f"squared score norms must be at least 0, got {float(weight_N.min()):g}")
    total = float(weight_N.sum())
    if not total > 0.0:
        return None
    # Scaled to mean 1, so that what counts as undefined does not depend on the number of parameters.
    root_N = (weight_N * (len(x_N) / total)).sqrt()
    return tether_fit(tether_sums(root_N * x_N.detach().double(), root_N * y_N.detach().double()), ridge=0.0)


def tether_advantages(
    advantages_T: Tensor,
    values_T: Tensor,
    baseline: Tensor | float,
    rho: Tensor | float,
    *,
    action_mask_T: Tensor | None = None,
) -> Tensor:
    """GAE moved towards the leave-one-out baseline.

        A_t = GAE_t + (1 - rho) (V_t - B) = Q_t - ((1 - rho) B + rho V_t)

    At rho = 1 it is the value estimator bit for bit. At rho = 0 with gamma = lambda = 1 it is the leave-one-out
    advantage R - B, to rounding.

    Args:
        advantages_T: [..., T], GAE with the critic, reward units.
        values_T: [..., T], reward units.
        baseline: [...] or one number, leave-one-out mean of each rollout.
        rho: the coefficient, or [..., T] one per token (token-bucketed), read once per group, before the group's own
            returns enter any fit.
        action_mask_T: [..., T] bool; off the mask the result is 0 and `values_T` is not read. None: all are actions.

    Returns:
        [..., T], float32 or wider, detached.

    Raises:
        ValueError: shapes that differ, a mask that is not boolean, or a rho that is not finite.

    Source: LC section 5 eq. 15; method sheet section 5.
    """
    require_shape("values", values_T, advantages_T)
    advantages = select(action_mask_T, widen(advantages_T.detach()))
    rho_T = torch.as_tensor(rho, dtype=torch.float64, device=advantages.device).detach()
    if rho_T.dim():
        require_shape("rho", rho_T, advantages_T)
        rho_T = select(action_mask_T, rho_T, fill=1.0)
    if not bool(rho_T.isfinite().all()):
        raise ValueError(f"rho must be finite, got {rho}")
    if isinstance(baseline, Tensor):
        baseline = widen(baseline.detach()).unsqueeze(-1)
    gap = select(action_mask_T, widen(values_T.detach()) - baseline)
    # Where rho is 1, adding 0 * x would turn -0.0 into 0.0 and keep an infinite value.
    return torch.where(rho_T == 1.0, advantages, advantages + (1.0 - rho_T).to(advantages.dtype) * gap)
