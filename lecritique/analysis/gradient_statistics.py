"""Moments and tests of gradient estimates from squared norms and inner products of problem sums.

A gradient has too many numbers to keep its covariance; its trace needs only norms and inner products. Whole problems
are the units: rollouts of one problem share it, and group baselines tie the members of a group together.

Shapes: P problems, R replicates, F sign patterns, D parameters (or cells of a sketch).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from lecritique.numerics.statistics.bootstrap import BootstrapInterval, percentile_bounds

Floats = NDArray[np.float64]

FLIPS = 10_000
ALPHA = 0.01
POWER = 0.8
_RNG_SEED = 2016
_CHUNK = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientSums:
    """What is kept of one estimator's per-trajectory gradients g_i.

    Of each problem: `trajectories` [P] their number, `norms_sq` [P] the sum of |g_i|^2 over them, and `gram` [P, P] the
    inner products of the sums of g_i.
    """

    trajectories: Floats
    norms_sq: Floats
    gram: Floats

    def mean_norm_sq(self, weights_RP: Floats) -> Floats:
        """|E g|^2 from pairs of different problems, [R]: unbiased, and below 0 by chance where E g is small.

        sum_{p != q} w_p w_q <S_p, S_q> / sum_{p != q} w_p w_q n_p n_q,   S_p the sum of problem p
        """
        diagonal = np.square(weights_RP) @ np.diag(self.gram)
        pairs = ((weights_RP @ self.gram) * weights_RP).sum(axis=1) - diagonal
        total = weights_RP @ self.trajectories
        with np.errstate(invalid="ignore"):  # a replicate of one problem alone has no pair
            return np.asarray(pairs / (total**2 - np.square(weights_RP) @ np.square(self.trajectories)))

    def trace(self, weights_RP: Floats) -> Floats:
        """Trace of the covariance of a trajectory's gradient, [R]: E|g|^2 - |E g|^2."""
        size = (weights_RP @ self.norms_sq) / (weights_RP @ self.trajectories)
        return np.asarray(size - self.mean_norm_sq(weights_RP))

    def group_trace(self, weights_RP: Floats) -> Floats:
        """The same of the mean gradient of a problem's trajectories, whose correlation is in it."""
        own = np.diag(self.gram) / np.square(self.trajectories)
        return np.asarray((weights_RP @ own) / weights_RP.sum(axis=1) - self.mean_norm_sq(weights_RP))


def ratio_interval(above_R: Floats, below_R: Floats, *, estimate: float, units: int) -> BootstrapInterval:
    """Interval of a ratio whose parts were replicated on the same draws."""
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates = above_R / below_R
    low, high = percentile_bounds(replicates)
    undefined = int((~np.isfinite(replicates)).sum())
    return BootstrapInterval(estimate=estimate, low=low, high=high, units=units, undefined=undefined)


@dataclass(frozen=True, kw_only=True)
class MeanTest:
    """Is the mean of P vectors zero?

    `mean_norm_sq` estimates |E D|^2 without bias; `p_value` is one-sided; a mean of norm `detectable_norm` would be
    found with probability 0.8 at level 0.01.
    """

    mean_norm_sq: float
    p_value: float
    detectable_norm: float
    problems: int

    @property
    def flagged(self) -> bool:
        """Whether the mean is not zero, at level 0.01."""
        return self.p_value < ALPHA


def mean_is_zero(gram_PP: Floats, *, flips: int = FLIPS, seed: int = _RNG_SEED) -> MeanTest:
    """Sign-flip test of the hypothesis that independent vectors D_p have mean zero.

        U = sum_{p != q} <D_p, D_q> / (P (P - 1)),   p = (1 + #{U(s D) >= U(D)}) / (1 + flips)

    U is unbiased for |E D|^2, so many parameters that carry nothing but noise do not hide a mean. Exact where the D_p
    are symmetric around zero, for many problems otherwise. `detectable_norm` is sqrt(m) with

        m = q_.99 + z_.8 sqrt(Var U_0 + 4 m lambda / P),   lambda = tr C^2 / tr C

    q_.99 and Var U_0 are of U under flips, C the covariance of D: a mean that points no particular way.

    Args:
        gram_PP: [P, P] inner products <D_p, D_q>.
        flips: sign patterns that are drawn.
        seed: of the draws.

    Returns:
        NaN of fewer than 8 problems, from which nothing is concluded at level 0.01.

    Raises:
        ValueError: not square, or not finite.

    Source: Chen and Qin 2010 (the statistic); Fisher 1935 (the flips); ours.
    """
    P = len(gram_PP)
    if gram_PP.shape != (P, P) or not np.isfinite(gram_PP).all():
        raise ValueError(f"expected finite inner products [P, P], got shape {gram_PP.shape}")
    if P < 8:  # 2^(1 - 7) > 0.01: no pattern of signs is rare enough
        return MeanTest(mean_norm_sq=math.nan, p_value=math.nan, detectable_norm=math.nan, problems=P)
    pairs = np.array(gram_PP, dtype=np.float64)
    np.fill_diagonal(pairs, 0.0)
    scale = P * (P - 1)
    observed = float(pairs.sum()) / scale
    rng = np.random.default_rng(seed)
    flipped = np.concatenate(
        [_flipped(pairs, rng, min(_CHUNK, flips - start)) / scale for start in range(0, flips, _CHUNK)]
    )
    rounding = 1e-12 * float(np.abs(pairs).sum()) / scale
    p_value = (1 + int((flipped >= observed - rounding).sum())) / (1 + flips)
    detectable = _detectable_norm(flipped, spread=float(np.trace(gram_PP)) / P, problems=P)
    return MeanTest(mean_norm_sq=observed, p_value=p_value, detectable_norm=detectable, problems=P)


def _detectable_norm(flipped_F: Floats, *, spread: float, problems: int) -> float:
    noise, threshold = float(flipped_F.var()), float(np.quantile(flipped_F, 1 - ALPHA))
    # Var U_0 = 2 tr C^2 / (P (P - 1)), and tr C is the mean of |D|^2.
    eigenvalue = noise * problems * (problems - 1) / 2.0 / spread if spread > 0 else 0.0
    found = threshold
    for _ in range(50):
        found = threshold + NormalDist().inv_cdf(POWER) * math.sqrt(noise + 4.0 * found * eigenvalue / problems)
    return math.sqrt(max(found, 0.0))


def _flipped(pairs_PP: Floats, rng: np.random.Generator, count: int) -> Floats:
    signs = 1.0 - 2.0 * rng.integers(2, size=(count, len(pairs_PP)))
    return np.asarray(((signs @ pairs_PP) * signs).sum(axis=1))
