"""Fit and calibration of predictions with problem-bootstrap intervals, from sums per problem.

Everything here is a function of sums over tokens, and those are sums over problems: a replicate that draws problem c
m_rc times has the sums m_r @ S. So 2,000 replicates are one matrix product, and two critics that are compared see the
same draws. Only AUC is not such a function; its replicates are, of counts in cells of the ranked predictions.

Shapes: N tokens, C problems, R replicates, B bins of the prediction, A cells of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lecritique.numerics.statistics.bootstrap import (
    LEVEL,
    REPLICATES,
    BootstrapInterval,
    cluster_draws,
    percentile_bounds,
)
from lecritique.numerics.statistics.calibration import CALIBRATION_BINS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FIT = ("explained_variance", "bias", "mse")
CALIBRATION = (
    "brier", "reliability", "resolution", "uncertainty", "within_bins", "calibration_error", "auc",
)  # fmt: skip
AUC_CELLS = 1024
_FEWEST_AUC_CELLS = 64
# Counts that an AUC holds for each of success and failure: problems times cells.
_AUC_COUNTS = 8_000_000
_REPLICATES_AT_ONCE = 64
# Expectations over float32 probabilities may pass an end of [0, 1] by rounding.
_ROUNDING = 1e-6
_UNDEFINED_VARIANCE = 1e-12


class Resampling:
    """How often each of C problems is drawn in each of R replicates; the same for everything that is compared.

    Args:
        problems: C, at least 1.
        replicates: R.
    """

    def __init__(self, problems: int, *, replicates: int = REPLICATES) -> None:
        self.problems = problems
        self.replicates = replicates
        # Two bytes a count: 2,000 replicates of 50,000 problems are 200 MB.
        self._counts_RC = np.empty((replicates, problems), dtype=np.uint16)
        for r, drawn in enumerate(cluster_draws(problems, replicates=replicates)):
            self._counts_RC[r] = np.bincount(drawn, minlength=problems)

    @property
    def counts_RC(self) -> Floats:
        """[R, C] how often replicate r has problem c."""
        return self._counts_RC.astype(np.float64)

    def sums(self, sums_CS: Floats) -> Floats:
        """[R, S] sums over the drawn problems."""
        counts = self._counts_RC
        parts = [counts[r : r + _REPLICATES_AT_ONCE] for r in range(0, self.replicates, _REPLICATES_AT_ONCE)]
        return np.concatenate([part.astype(np.float64) @ sums_CS for part in parts])


@dataclass(frozen=True, kw_only=True, eq=False)
class Resampled:
    """Statistics of one critic on one set of tokens: by name the estimate, and [R] replicates (NaN: undefined)."""

    estimates: Mapping[str, float]
    replicates: Mapping[str, Floats]
    problems: int
    tokens: int

    def interval(self, name: str) -> BootstrapInterval:
        """The percentile interval of one statistic."""
        return _interval(self.estimates[name], self.replicates[name], self.problems)

    def intervals(self) -> dict[str, BootstrapInterval]:
        """The percentile interval of every statistic."""
        return {name: self.interval(name) for name in self.estimates}

    def minus(self, other: Resampled) -> dict[str, BootstrapInterval]:
        """Intervals of the differences to another critic on the same draws, of the statistics that both have."""
        return {
            name: _interval(
                self.estimates[name] - other.estimates[name],
                self.replicates[name] - other.replicates[name],
                self.problems,
            )
            for name in self.estimates
            if name in other.estimates
        }


def resampled_fit(predictions_N: Floats, targets_N: Floats, problem_N: Integers, draws: Resampling) -> Resampled:
    """`resampled_fits` of one set of tokens."""
    return resampled_fits([(predictions_N, targets_N, problem_N)], draws)[0]


def resampled_fits(subsets: Iterable[tuple[Floats, Floats, Integers]], draws: Resampling) -> list[Resampled]:
    """Explained variance, bias and mean squared error of predictions of the targets, on several sets of tokens.

        EV = 1 - Var(G - V) / Var(G),   bias = mean(V - G),   MSE = mean (V - G)^2

    Args:
        subsets: of each set the predictions [N] and targets [N], finite, reward units, and the problems [N] in [0, C).
        draws: of the problems.

    Returns:
        one a set; EV is NaN where Var(G) < 1e-12, all are NaN of no tokens.

    Source: LC section 4.3; method sheet sections 3 and 8.
    """
    sums, sizes = [], []
    for predictions_N, targets_N, problem_N in subsets:
        centre = float(targets_N.mean()) if len(targets_N) else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            columns = _powers(predictions_N - targets_N, targets_N - centre)
            sums.append(per_problem(columns, problem_N, draws.problems))
        sizes.append(len(targets_N))
    replicated_R5 = np.split(draws.sums(np.concatenate(sums, axis=1)), len(sums), axis=1) if sums else []
    return [
        resampled(_fit, own, replicated, tokens=size)
        for own, replicated, size in zip(sums, replicated_R5, sizes, strict=True)
    ]


def resampled_calibration(
    predictions_N: Floats,
    outcomes_N: Floats,
    correct_N: NDArray[np.bool_],
    problem_N: Integers,
    draws: Resampling,
    *,
    bins: int = CALIBRATION_BINS,
) -> Resampled | None:
    """Brier score with its parts and calibration error against the outcomes, AUC against correctness.

        as `brier_parts` with bins, `expected_calibration_error` and `area_under_curve` say

    AUC counts predictions in cells of the ranks, ties in a cell half: exact up to as many distinct predictions as there
    are cells, off by less than 1/2 of the largest cell's share of pairs beyond. There are 1,024 cells, fewer from 8,000
    problems on and 64 at least.

    Args:
        predictions_N: [N], finite, reward units.
        outcomes_N: [N], finite: the reward of the token's rollout.
        correct_N: [N] bool.
        problem_N: [N], in [0, C).
        draws: of the problems.
        bins: equal-width bins of the prediction.

    Returns:
        None where the numbers are no probabilities: a prediction or an outcome outside [0, 1], or no tokens.

    Source: Murphy 1973; Naeini et al. 2015; Mann and Whitney 1947; method sheet section 8.
    """
    if not len(predictions_N) or not (_are_probabilities(predictions_N) and _are_probabilities(outcomes_N)):
        return None
    p, y = np.clip(predictions_N, 0.0, 1.0), np.clip(outcomes_N, 0.0, 1.0)
    plain = per_problem(_products(p, y), problem_N, draws.problems)
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    binned = [in_cells(w, place, bins, problem_N, draws.problems) for w in (None, p, y)]
    del y, place  # a hundred MB each where there are millions of tokens
    cell, cells = rank_cells(p, max(_FEWEST_AUC_CELLS, min(AUC_CELLS, _AUC_COUNTS // draws.problems)))
    ranked = [in_cells(w.astype(np.float64), cell, cells, problem_N, draws.problems) for w in (correct_N, ~correct_N)]
    del cell
    # One after the other: [R, A] is held for one of the two only.
    of_bins, of_ranks = np.concatenate([plain, *binned], axis=1), np.concatenate(ranked, axis=1)
    calibration = resampled(lambda sums: _calibration(sums, bins), of_bins, draws.sums(of_bins), tokens=len(p))
    auc = resampled(_auc, of_ranks, draws.sums(of_ranks), tokens=len(p))
    return Resampled(
        estimates={**calibration.estimates, **auc.estimates},
        replicates={**calibration.replicates, **auc.replicates},
        problems=len(np.unique(problem_N)),
        tokens=len(p),
    )


def reliability_curve(
    predictions_N: Floats, outcomes_N: Floats, *, bins: int = CALIBRATION_BINS
) -> list[dict[str, float | int | None]]:
    """Tokens, mean prediction and mean outcome of each equal-width bin; None in a bin without tokens."""
    place = np.minimum((np.clip(predictions_N, 0.0, 1.0) * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=w, minlength=bins) for w in (predictions_N, outcomes_N)]
    return [
        {
            "tokens": int(count[b]),
            "predicted": float(sums[0][b] / count[b]) if count[b] else None,
            "observed": float(sums[1][b] / count[b]) if count[b] else None,
        }
        for b in range(bins)
    ]


def rank_cells(p_N: Floats, most: int = AUC_CELLS) -> tuple[Integers, int]:
    """A cell for each prediction, in order, equal ones in one cell; and how many cells there are."""
    distinct, count = np.unique(p_N, return_counts=True)
    if len(distinct) <= most:
        return np.searchsorted(distinct, p_N), len(distinct)
    cell_of = np.minimum(((np.cumsum(count) - count / 2) * most / len(p_N)).astype(np.int64), most - 1)
    lowest = distinct[np.searchsorted(cell_of, np.unique(cell_of))]
    return np.searchsorted(lowest, p_N, side="right") - 1, len(lowest)


def _are_probabilities(x: Floats) -> bool:
    return bool(x.min() >= -_ROUNDING and x.max() <= 1.0 + _ROUNDING)


def _powers(error_N: Floats, target_N: Floats) -> Iterator[Floats | None]:
    """What `_fit` sums, one column at a time; None counts."""
    yield None
    for column in (error_N, target_N):
        yield column
        yield column**2


def _products(p_N: Floats, y_N: Floats) -> Iterator[Floats | None]:
    """What `_calibration` sums beside its bins, one column at a time; None counts."""
    yield None
    yield p_N * p_N
    yield p_N * y_N
    yield y_N
    yield y_N * y_N


def per_problem(columns: Iterable[Floats | None], problem_N: Integers, problems: int) -> Floats:
    """[C, S] sums of each column over the tokens of each problem."""
    return np.stack([np.bincount(problem_N, weights=column, minlength=problems) for column in columns], axis=1)


def in_cells(weights_N: Floats | None, place_N: Integers, cells: int, problem_N: Integers, problems: int) -> Floats:
    """[C, cells] sums of the weights; None counts."""
    flat = np.bincount(problem_N * cells + place_N, weights=weights_N, minlength=problems * cells)
    return flat.astype(np.float64).reshape(problems, cells)


def resampled(
    of_sums: Callable[[Floats], dict[str, Floats]], sums_CS: Floats, replicated_RS: Floats, *, tokens: int
) -> Resampled:
    """Statistics of sums whose first column counts the tokens of each problem, or of ranks."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        whole = of_sums(sums_CS.sum(axis=0, keepdims=True))
        replicated = of_sums(replicated_RS)
    return Resampled(
        estimates={name: float(column[0]) for name, column in whole.items()},
        replicates=replicated,
        problems=int((sums_CS[:, 0] > 0).sum()),
        tokens=tokens,
    )


def _fit(sums: Floats) -> dict[str, Floats]:
    n, error, error_sq, target, target_sq = sums.T
    variance = np.maximum(target_sq / n - (target / n) ** 2, 0.0)
    unexplained = np.maximum(error_sq / n - (error / n) ** 2, 0.0)
    explained = np.where(variance < _UNDEFINED_VARIANCE, np.nan, 1.0 - unexplained / variance)
    return {"explained_variance": explained, "bias": error / n, "mse": error_sq / n}


def _calibration(sums: Floats, bins: int) -> dict[str, Floats]:
    n, p_sq, p_y, y, y_sq = sums[:, :5].T
    n_b, p_b, y_b = np.split(sums[:, 5:], 3, axis=1)
    held = np.maximum(n_b, 1.0)
    p_bar, y_bar, mean = p_b / held, y_b / held, y / n
    share = n_b / n[:, None]
    p_off_sq = p_sq / n - (share * p_bar**2).sum(axis=1)
    p_off_y_off = p_y / n - (share * p_bar * y_bar).sum(axis=1)
    return {
        "brier": (p_sq - 2.0 * p_y + y_sq) / n,
        "reliability": (share * (p_bar - y_bar) ** 2).sum(axis=1),
        "resolution": (share * (y_bar - mean[:, None]) ** 2).sum(axis=1),
        "uncertainty": y_sq / n - mean**2,
        "within_bins": p_off_sq - 2.0 * p_off_y_off,
        "calibration_error": (share * np.abs(y_bar - p_bar)).sum(axis=1),
    }


def _auc(sums: Floats) -> dict[str, Floats]:
    wins, losses = np.split(sums, 2, axis=1)
    below = np.cumsum(losses, axis=1) - losses / 2.0
    return {"auc": (wins * below).sum(axis=1) / (wins.sum(axis=1) * losses.sum(axis=1))}


def _interval(estimate: float, replicates_R: Floats, problems: int) -> BootstrapInterval:
    low, high = percentile_bounds(replicates_R, LEVEL)
    if problems < 2:  # one problem drawn again and again shows no spread
        low = high = math.nan
    undefined = int((~np.isfinite(replicates_R)).sum())
    return BootstrapInterval(estimate=estimate, low=low, high=high, units=problems, undefined=undefined)
