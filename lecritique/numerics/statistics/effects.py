"""How large a difference between two arms is: effect sizes over seeds, probability of improvement, area under a curve.

Shapes: S seeds, N steps of a curve.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lecritique.numerics.statistics.bootstrap import (
    LEVEL,
    REPLICATES,
    BootstrapInterval,
    cluster_draws,
    percentile_bounds,
)

FEWEST_FOR_INTERVAL = 3


def paired_effect_size(differences_S: ArrayLike) -> float:
    """Cohen's d_z: the mean paired difference in units of its own spread between seeds.

        d_z = mean(d) / sd(d),   sd with S - 1

    What is common to the two runs of a seed cancels, so d_z says how surely a new seed shows the difference, not how
    large it is beside what seeds differ in anyway: that is `standardised_difference`.

    Args:
        differences_S: [S], one arm minus the other, any unit.

    Returns:
        NaN of fewer than 2 seeds, and of differences that are all the same.

    Raises:
        ValueError: not one-dimensional, or a difference that is not finite.

    Source: Cohen 1988, 2.3; Lakens 2013.
    """
    differences = _seeds(differences_S)
    spread = _spread(differences)
    return float(differences.mean()) / spread if spread > 0 else math.nan


def standardised_difference(a_S: ArrayLike, b_S: ArrayLike) -> float:
    """The mean difference of two arms in units of what seeds of one arm differ by.

        d = (mean(a) - mean(b)) / sqrt((var(a) + var(b)) / 2),   var with S - 1

    Args:
        a_S: [S], one arm's value of every seed.
        b_S: [S], the other's.

    Returns:
        NaN of fewer than 2 seeds, and where seeds of neither arm differ.

    Raises:
        ValueError: different numbers of seeds, or a value that is not finite.

    Source: Cohen 1988, 2.2; Lakens 2013 (d_av with the root of the mean variance).
    """
    a, b = _paired_seeds(a_S, b_S)
    pooled = math.sqrt((_spread(a) ** 2 + _spread(b) ** 2) / 2.0)
    return float(a.mean() - b.mean()) / pooled if pooled > 0 else math.nan


def probability_of_improvement(
    a_S: ArrayLike, b_S: ArrayLike, *, replicates: int = REPLICATES, level: float = LEVEL
) -> BootstrapInterval:
    """How often a run of one arm beats a run of the other, whatever their seeds, with an interval.

        P(a > b) = mean over s, r of [a_s > b_r] + [a_s = b_r] / 2

    Every run meets every run, so that the size of a difference counts for nothing. A replicate draws seeds with
    replacement, the same for both arms, as runs of one seed belong together.

    Args:
        a_S: [S], one arm's value of every seed.
        b_S: [S], the other's, of the same seeds.
        replicates: R.
        level: in (0, 1).

    Returns:
        NaN of no seed; bounds NaN of fewer than 3.

    Raises:
        ValueError: different numbers of seeds, a value that is not finite, or a level outside (0, 1).

    Source: Agarwal et al. 2021 (arXiv:2108.13264), 4.3; Mann and Whitney 1947.
    """
    a, b = _paired_seeds(a_S, b_S)
    S = len(a)
    if not S:
        return BootstrapInterval(estimate=math.nan, low=math.nan, high=math.nan, units=0)
    wins_SS = (a[:, None] > b[None, :]) + 0.5 * (a[:, None] == b[None, :])
    low, high = math.nan, math.nan
    if S >= FEWEST_FOR_INTERVAL:
        drawn_RS = cluster_draws(S, replicates=replicates)
        # A seed drawn m times meets the others m times: the mean over pairs of drawn seeds is m' wins m / S^2, which
        # needs no array of replicates times pairs.
        times_RS = np.bincount((drawn_RS + S * np.arange(replicates)[:, None]).ravel(), minlength=replicates * S)
        times_RS = times_RS.reshape(replicates, S).astype(np.float64)
        low, high = percentile_bounds(((times_RS @ wins_SS) * times_RS).sum(axis=1) / S**2, level)
    return BootstrapInterval(estimate=float(wins_SS.mean()), low=low, high=high, units=S)


def mean_difference(
    differences_S: ArrayLike, *, replicates: int = REPLICATES, level: float = LEVEL
) -> BootstrapInterval:
    """The mean paired difference, with an interval from resampled seeds.

        theta_r = mean of d over seeds drawn with replacement

    Args:
        differences_S: [S], one arm minus the other.
        replicates: R.
        level: in (0, 1).

    Returns:
        NaN of no seed; bounds NaN of fewer than 3.

    Raises:
        ValueError: not one-dimensional, a difference that is not finite, or a level outside (0, 1).

    Source: Efron 1979; method sheet section 8.
    """
    differences = _seeds(differences_S)
    S = len(differences)
    if not S:
        return BootstrapInterval(estimate=math.nan, low=math.nan, high=math.nan, units=0)
    low, high = math.nan, math.nan
    if S >= FEWEST_FOR_INTERVAL:
        low, high = percentile_bounds(differences[cluster_draws(S, replicates=replicates)].mean(axis=1), level)
    return BootstrapInterval(estimate=float(differences.mean()), low=low, high=high, units=S)


def area_under_curve(spent_N: ArrayLike, values_N: ArrayLike, *, until: float) -> float:
    """The mean of a curve over what was spent: the area under it, divided by the length of its axis.

        area = sum_i y_i w_i / sum_i w_i,   w_i = min(x_i, until) - min(x_{i-1}, until),   x_{-1} = 0

    Step i spent x_i - x_{i-1} and earned y_i while it did: nothing is interpolated between steps, and two runs count
    alike however many steps they made of the same budget. Steps whose value is undefined are left out.

    Args:
        spent_N: x, [N], total so far at the end of each step, not falling.
        values_N: y, [N], NaN where undefined.
        until: where the axis ends, above 0.

    Returns:
        in the unit of y; NaN where no step with a value spent anything.

    Raises:
        ValueError: different lengths, a total that falls or is not finite, or an end that is not above 0.

    Source: ours; Agarwal et al. 2021 (arXiv:2108.13264) compare sample efficiency by the same area.
    """
    spent, values = np.asarray(spent_N, dtype=np.float64), np.asarray(values_N, dtype=np.float64)
    if spent.shape != values.shape or spent.ndim != 1:
        raise ValueError(f"a curve needs one value for each total, got shapes {values.shape} and {spent.shape}")
    steps = np.diff(spent, prepend=0.0)
    if not np.isfinite(spent).all() or (steps < 0).any():
        raise ValueError("totals must be finite and not fall")
    if not until > 0:
        raise ValueError(f"the axis must end above 0, got {until}")
    weights = np.diff(np.minimum(spent, until), prepend=0.0) * np.isfinite(values)
    total = float(weights.sum())
    return float((weights * np.nan_to_num(values, posinf=0.0, neginf=0.0)).sum()) / total if total > 0 else math.nan


def _spread(values: NDArray[np.float64]) -> float:
    """Standard deviation with S - 1; 0 of fewer than two, and of values that differ by rounding only."""
    if len(values) < 2:
        return 0.0
    spread = float(values.std(ddof=1))
    return spread if spread > 1e-12 * float(np.abs(values).max()) else 0.0


def _seeds(values_S: ArrayLike) -> NDArray[Any]:
    values = np.asarray(values_S, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"seeds must be [S] and finite, got shape {values.shape}")
    return values


def _paired_seeds(a_S: ArrayLike, b_S: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    a, b = _seeds(a_S), _seeds(b_S)
    if len(a) != len(b):
        raise ValueError(f"paired arms need the same seeds, got {len(a)} and {len(b)}")
    return a, b
