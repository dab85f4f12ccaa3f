"""How large scores are after high and after low returns, and what that leaves a constant baseline to do.

With A = R - b the gradient of a trajectory is (R - b) s, s the sum of its tokens' scores. Where failures have much
larger scores than successes, taking anything from their returns costs more than it saves: then no baseline at all
(A = R, failures at 0 silent) has less variance than the mean, and only a critic that tells failures from successes
can do better.

Shapes: P problems, R replicates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.gradient_statistics import ratio_interval
from lecritique.analysis.score_gradients import ScoreGradients
from lecritique.analysis.value_statistics import Resampling, per_problem
from lecritique.analysis.variance_ratios import record
from lecritique.credit.estimators import ScoredGroup

Floats = NDArray[np.float64]


def study_score_norms(
    gradients: ScoreGradients, groups: Sequence[ScoredGroup], draws: Resampling, *, middle: float
) -> dict[str, Any]:
    """Squared score norms of the trajectories by outcome, and the best constant baseline.

    Args:
        gradients: of the policy.
        groups: one a problem.
        draws: of the problems.
        middle: returns above it are high.

    Returns:
        as `score_norm_statistics`.
    """
    returns, norms, problem = [], [], []
    for index, group in enumerate(groups):
        for trajectory in group.trajectories:
            if trajectory.action_tokens:
                one = gradients.weighted(trajectory, [np.ones(len(trajectory))])
                norms.append(float(one.double().square().sum()))
                returns.append(trajectory.episode_return)
                problem.append(index)
    return score_norm_statistics(np.array(returns), np.array(norms), np.array(problem), draws, middle=middle)


def score_norm_statistics(
    returns_N: Floats, norms_sq_N: Floats, problem_N: NDArray[np.int64], draws: Resampling, *, middle: float
) -> dict[str, Any]:
    """Means of |s|^2 by outcome, b* and what constant baselines leave of E[R^2 |s|^2], with intervals over problems.

        b* = E[|s|^2 R] / E[|s|^2],   size(b) = E[(R - b)^2 |s|^2] / E[R^2 |s|^2]

    Args:
        returns_N: reward units.
        norms_sq_N: |s|^2.
        problem_N: in [0, P).
        draws: of the problems.
        middle: returns above it are high.

    Returns:
        `high`, `low`: mean |s|^2 and number of trajectories; `optimal_constant` b*, `size_at_optimum`, and
        `mean_return` with `size_at_mean`; undefined ones are null.

    Source: Greensmith et al. 2004; method sheet section 5.
    """
    high = returns_N > middle
    s, sR = norms_sq_N, norms_sq_N * returns_N
    columns = [None, returns_N, s, sR, sR * returns_N, high.astype(np.float64), s * high]
    sums_P7 = per_problem(columns, problem_N, draws.problems)
    whole = _of_sums(sums_P7.sum(axis=0, keepdims=True))
    replicated = _of_sums(draws.sums(sums_P7))
    found: dict[str, Any] = {}
    for name, (above, below) in replicated.items():
        estimate = _ratio(float(whole[name][0][0]), float(whole[name][1][0]))
        found[name] = record(ratio_interval(above, below, estimate=estimate, units=draws.problems))
    return {**found, "trajectories": {"high": int(high.sum()), "low": int((~high).sum())}}


def _of_sums(sums: Floats) -> dict[str, tuple[Floats, Floats]]:
    """Each statistic as what stands above and below the line of its fraction."""
    n, R, s, sR, sRR, n_high, s_high = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        best, mean = sR / s, R / n
    return {
        "high": (s_high, n_high),
        "low": (s - s_high, n - n_high),
        "optimal_constant": (sR, s),
        "size_at_optimum": (sRR - best * sR, sRR),
        "mean_return": (R, n),
        "size_at_mean": (sRR - 2.0 * mean * sR + mean**2 * s, sRR),
    }


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.nan
