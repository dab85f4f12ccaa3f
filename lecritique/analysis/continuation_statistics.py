"""Predictions against continuations: Brier score and its parts, EV, ECE and the contrast C, with paired intervals.

A critic predicts what a frozen policy will earn from a prefix on; the label is what K continuations earned. Problems
count equally in means and in EV; the intervals resample problems, all critics on the same draws.

Shapes: N items (a prefix of a problem), K continuations, P problems, R replicates, F fractions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.value_statistics import Resampled, Resampling, in_cells, per_problem, resampled
from lecritique.core.metrics import null_if_undefined
from lecritique.numerics.statistics.bootstrap import BootstrapInterval, percentile_bounds
from lecritique.numerics.statistics.calibration import CALIBRATION_BINS, continuation_brier
from lecritique.numerics.statistics.positions import late_gain_contrast

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

CLEAN = "clean"
STRATA = ("short", "middle", "long")
_UNDEFINED_VARIANCE = 1e-12
# What a gain over the clean critic is counted in: lower is better, but for the explained variance.
_HIGHER_IS_BETTER = frozenset({"explained_variance"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """Prefixes with the outcomes of their continuations, and what each critic said of them.

    `problem_N` in [0, P), `fraction_N` in [0, F), `stratum_N` the problem's tertile of length; `outcomes_NK` and the
    predictions [N] of each critic in reward units. A problem has a fraction once at most.
    """

    problem_N: Integers
    fraction_N: Integers
    stratum_N: Integers
    outcomes_NK: Floats
    predictions: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.problem_N)


def continuation_statistics(items: Items, fractions: Sequence[float], draws: Resampling) -> dict[str, Any]:
    """Every statistic of every critic, its gain over the clean one, and the contrast C, with intervals.

    Args:
        items: those that every critic could read.
        fractions: of the response, ascending; C needs three of them.
        draws: of the problems.

    Returns:
        `critics` and `gains` by critic and subset (`all`, `fractions`, `lengths`), and `contrasts` by critic and
        stratum; a JSON object, what is undefined is null.

    Source: VP G.2-G.4, eq. 22-24; method sheet section 8.
    """
    subsets = _subsets(items, fractions)
    found = {
        name: {
            kind: {label: item_statistics(items, name, chosen, draws) for label, chosen in masks.items()}
            for kind, masks in subsets.items()
        }
        for name in items.predictions
    }
    others = [name for name in found if name != CLEAN and CLEAN in found]
    return {
        "critics": {name: _records(of, lambda _, __, one: one.intervals()) for name, of in found.items()},
        "gains": {
            name: _records(found[name], lambda kind, label, one: _gain(found[CLEAN][kind][label], one))
            for name in others
        },
        "contrasts": {name: _contrasts(items, name, fractions, draws) for name in others},
    }


def item_statistics(items: Items, critic: str, chosen: Mask, draws: Resampling) -> Resampled:
    """Statistics of one critic on some of the items; `explained_variance` and `calibration_error` in every replicate.

        brier = squared_error + noise,   squared_error = mean (p - ybar)^2,   noise = mean_k (y_k - ybar)^2
        EV = 1 - Var_w(ybar - p) / Var_w(ybar)
        ECE = sum_b (n_b / n) |mean ybar - mean p in bin b|,   bins of p clipped to [0, 1]

    Means and EV weigh an item by 1 / (chosen items of its problem), ECE weighs items equally. ECE is NaN where outcomes
    leave [0, 1].

    Args:
        items: all.
        critic: whose predictions.
        chosen: [N] bool.
        draws: of the problems.

    Returns:
        all NaN of no item; EV is NaN where the continuations' means do not vary.

    Source: VP eq. 23, 24; method sheet section 8.
    """
    problem, y = items.problem_N[chosen], items.outcomes_NK[chosen]
    p = items.predictions[critic][chosen]
    mean = y.mean(axis=1)
    probabilities = bool(len(y)) and float(y.min()) >= 0.0 and float(y.max()) <= 1.0
    w = 1.0 / np.maximum(np.bincount(problem, minlength=draws.problems), 1)[problem]
    brier, error = continuation_brier(p, y) if len(p) else p, p - mean
    off = mean - (mean.mean() if len(mean) else 0.0)
    columns = [None, w, w * brier, w * error, w * error**2, w * off, w * off**2]
    inside = np.clip(p, 0.0, 1.0)
    place = np.minimum((inside * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    cells = [in_cells(v, place, CALIBRATION_BINS, problem, draws.problems) for v in (inside, mean)]
    sums = np.concatenate([per_problem(columns, problem, draws.problems), *cells], axis=1)
    return resampled(lambda s: _of_sums(s, probabilities), sums, draws.sums(sums), tokens=len(p))


def _of_sums(sums: Floats, probabilities: bool) -> dict[str, Floats]:
    n, w, brier, error, error_sq, off, off_sq = sums[:, :7].T
    p_b, y_b = np.split(sums[:, 7:], 2, axis=1)
    variance = np.maximum(off_sq / w - (off / w) ** 2, 0.0)
    unexplained = np.maximum(error_sq / w - (error / w) ** 2, 0.0)
    return {
        "brier": brier / w,
        "squared_error": error_sq / w,
        "noise": (brier - error_sq) / w,
        "bias": error / w,
        "explained_variance": np.where(variance < _UNDEFINED_VARIANCE, np.nan, 1.0 - unexplained / variance),
        # n_b |mean y - mean p| = |sum y - sum p|
        "calibration_error": np.abs(y_b - p_b).sum(axis=1) / n if probabilities else np.full(len(n), np.nan),
    }


def contrast_by_problem(items: Items, critic: str) -> tuple[Integers, Floats]:
    """The problems that have all three prefixes, and the contrast C of each (eq. 22)."""
    briers = {name: continuation_brier(items.predictions[name], items.outcomes_NK) for name in (CLEAN, critic)}
    whole = np.flatnonzero(np.bincount(items.problem_N, minlength=1) == 3)
    at_P3 = {name: np.empty((len(whole), 3)) for name in briers}
    kept = np.isin(items.problem_N, whole)
    row = np.searchsorted(whole, items.problem_N[kept])
    for name, brier in briers.items():
        at_P3[name][row, items.fraction_N[kept]] = brier[kept]
    return whole, late_gain_contrast(at_P3[CLEAN], at_P3[critic])


def _contrasts(items: Items, critic: str, fractions: Sequence[float], draws: Resampling) -> dict[str, Any] | None:
    if len(fractions) != 3:
        return None
    problems, C_P = contrast_by_problem(items, critic)
    stratum = np.zeros(draws.problems, dtype=np.int64)
    stratum[items.problem_N] = items.stratum_N
    chosen = {"all": np.ones(len(problems), dtype=np.bool_)}
    chosen |= {name: stratum[problems] == t for t, name in enumerate(STRATA)}
    column_P1 = np.full((draws.problems, 1), np.nan)
    found = {}
    for name, those in chosen.items():
        column_P1[:] = np.nan
        column_P1[problems[those], 0] = C_P[those]
        (interval,) = mean_intervals(column_P1, draws)
        found[name] = {"problems": int(those.sum()), **interval_record(interval)}
    return found


def mean_intervals(columns_PB: Floats, draws: Resampling) -> list[BootstrapInterval]:
    """The mean over problems of each column, NaN entries left out, with its interval over problems."""
    known = np.isfinite(columns_PB)
    with np.errstate(divide="ignore", invalid="ignore"):
        filled = np.where(known, columns_PB, 0.0)
        estimates = filled.sum(axis=0) / known.sum(axis=0)
        replicates_RB = draws.sums(filled) / draws.sums(known.astype(np.float64))
    return [
        _interval(float(estimates[b]), replicates_RB[:, b], int(known[:, b].sum())) for b in range(columns_PB.shape[1])
    ]


def interval_record(interval: BootstrapInterval) -> dict[str, float | None]:
    """As JSON holds it."""
    return {
        "estimate": null_if_undefined(interval.estimate),
        "low": null_if_undefined(interval.low),
        "high": null_if_undefined(interval.high),
    }


def _interval(estimate: float, replicates_R: Floats, units: int) -> BootstrapInterval:
    low, high = percentile_bounds(replicates_R)
    if units < 2:  # one problem drawn again and again shows no spread
        low = high = math.nan
    undefined = int((~np.isfinite(replicates_R)).sum())
    return BootstrapInterval(estimate=estimate, low=low, high=high, units=units, undefined=undefined)


def _subsets(items: Items, fractions: Sequence[float]) -> dict[str, dict[str, Mask]]:
    return {
        "all": {"all": np.ones(len(items), dtype=np.bool_)},
        "fractions": {f"{fraction:g}": items.fraction_N == f for f, fraction in enumerate(fractions)},
        "lengths": {name: items.stratum_N == t for t, name in enumerate(STRATA)},
    }


def _gain(clean: Resampled, other: Resampled) -> dict[str, BootstrapInterval]:
    """What the other critic is better by, statistic by statistic."""
    better, worse = other.minus(clean), clean.minus(other)
    names = ("brier", "explained_variance", "calibration_error")
    return {name: better[name] if name in _HIGHER_IS_BETTER else worse[name] for name in names}


def _records(found: Mapping[str, Mapping[str, Resampled]], of: Any) -> dict[str, Any]:
    return {
        kind: {
            label: {
                "items": one.tokens,
                "problems": one.problems,
                **{name: interval_record(interval) for name, interval in of(kind, label, one).items()},
            }
            for label, one in labelled.items()
        }
        for kind, labelled in found.items()
    }
