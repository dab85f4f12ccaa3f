"""Whether arms differ, and by how much for what they spent: tests over seeds, effect sizes, areas under curves.

The equations are those of `numerics.statistics`; here is decided what is tested. The unit is the seed: an endpoint or
an area is one number of a run, and two arms are compared on the seeds that both have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.read import Comparison, Run, nested
from lecritique.core.metrics import null_if_undefined
from lecritique.core.spending import UNITS
from lecritique.numerics.statistics.bootstrap import finite_mean
from lecritique.numerics.statistics.effects import (
    area_under_curve,
    mean_difference,
    paired_effect_size,
    probability_of_improvement,
    standardised_difference,
)
from lecritique.numerics.statistics.paired_test import FEWEST_PAIRS, FLIPS, sign_flips

FEW_SEEDS_NOTE = "fewer than three seeds: no test, no interval, no significance claimed"

# Beyond this, squares and differences are not finite any more.
_LARGEST = 1e100

Seeds = Sequence[float | None]


def seed_tests(a: Seeds, b: Seeds) -> dict[str, Any]:
    """Tests and effect sizes of arm `a` against `b`, for the summary.

    Args:
        a: one number for each seed, None where there is none.
        b: the same seeds of the other arm.
    """
    both = _both(a, b)
    of_a, of_b = (np.array([pair[side] for pair in both], dtype=np.float64) for side in (0, 1))
    differences = of_a - of_b
    test = sign_flips(differences)
    improvement = probability_of_improvement(of_a, of_b)
    tested = len(both) >= FEWEST_PAIRS
    return {
        "permutation_p": null_if_undefined(test.p),
        "permutation_exact": test.exact if tested else None,
        "permutation_standard_error": test.standard_error if tested else None,
        "effect_dz": null_if_undefined(paired_effect_size(differences)),
        "difference_in_sds": null_if_undefined(standardised_difference(of_a, of_b)),
        "probability_of_improvement": {
            "value": null_if_undefined(improvement.estimate),
            "low": null_if_undefined(improvement.low),
            "high": null_if_undefined(improvement.high),
        },
        "note": None if tested else FEW_SEEDS_NOTE,
    }


def budget_of(comparison: Comparison) -> tuple[str, float] | None:
    """The unit and limit in which all runs were matched, None where the number of steps was."""
    found = set()
    for run in comparison.runs.values():
        section = nested(run.config, "run", "budget")
        for unit, limit in section.items() if isinstance(section, Mapping) else ():
            if unit in UNITS and isinstance(limit, int | float) and 0 < limit < _LARGEST:
                found.add((str(unit), float(limit)))
    return found.pop() if len(found) == 1 else None


def spent(comparison: Comparison) -> dict[str, dict[str, list[float | None]]]:
    """What each arm's runs have spent in every unit, by seed; null where a run is missing or did not count it."""
    return {
        arm: {unit: [_spent(run, metric) for run in comparison.runs_of(arm)] for unit, metric in UNITS.items()}
        for arm in comparison.arms
    }


def areas(comparison: Comparison) -> dict[str, Any]:
    """The mean reward over what was spent, of every run, and its paired differences; for the summary.

    The axis is the budget's, or rollouts; it ends where the first of the finished runs ends, so that all count alike.
    """
    budget = budget_of(comparison)
    unit = budget[0] if budget else "rollouts"
    curves = {key: curve for key, run in comparison.runs.items() if (curve := _curve(run, unit)) is not None}
    ended = {key for key in curves if comparison.runs[key].finished} or set(curves)
    until = min((float(curves[key][0][-1]) for key in ended), default=0.0)
    if budget:
        until = min(until, budget[1])
    of_arm = {arm: [_area(curves.get((arm, seed)), until) for seed in comparison.seeds] for arm in comparison.arms}
    return {
        "metric": "reward",
        "unit": unit,
        "until": until or None,
        "arms": of_arm,
        "paired": [
            {"a": a, "b": b, **_difference(of_arm[a], of_arm[b]), **seed_tests(of_arm[a], of_arm[b])}
            for i, a in enumerate(comparison.arms)
            for b in comparison.arms[i + 1 :]
        ],
    }


def method_of_tests(comparison: Comparison) -> dict[str, Any]:
    """How the tests were made."""
    arms = len(comparison.arms)
    return {
        "permutation": "two-sided sign flips of paired differences between seeds, all patterns where there are few",
        "flips": FLIPS,
        "fewest_seeds": FEWEST_PAIRS,
        "effect_dz": "mean paired difference / its standard deviation between seeds",
        "difference_in_sds": "mean difference / root of the arms' mean variance between seeds",
        "probability_of_improvement": "share of all pairs of runs in which a beats b, seeds resampled jointly",
        "area": "mean reward over the axis, from 0 to where the first run ends",
        "pairs": arms * (arms - 1) // 2,
        "correction": "none: with many pairs some small p-values are chance",
    }


def _difference(a: Seeds, b: Seeds) -> dict[str, Any]:
    found = mean_difference([x - y for x, y in _both(a, b)])
    return {
        "difference": null_if_undefined(found.estimate),
        "low": null_if_undefined(found.low),
        "high": null_if_undefined(found.high),
        "seeds": found.units,
    }


def _both(a: Seeds, b: Seeds) -> list[tuple[float, float]]:
    """The seeds for which both arms have a number; what a broken run wrote beyond all measure is none."""
    return [
        (x, y)
        for x, y in zip(a, b, strict=True)
        if x is not None and y is not None and abs(x) < _LARGEST and abs(y) < _LARGEST
    ]


def _spent(run: Run | None, metric: str) -> float | None:
    if run is None:
        return None
    known = run.series(metric)[np.isfinite(run.series(metric))]
    return float(known[-1]) if len(known) else None


def _curve(run: Run, unit: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Totals and rewards at every step; None where the run does not say what it spent."""
    totals = run.series(UNITS[unit])
    if unit == "rollouts" and not np.isfinite(totals).all():  # runs of earlier versions
        totals = np.cumsum(run.series("rollouts"))
    rising = len(totals) > 0 and np.isfinite(totals).all() and (np.diff(totals, prepend=0.0) >= 0).all()
    return (totals, run.series("reward")) if rising else None


def _area(curve: tuple[NDArray[np.float64], NDArray[np.float64]] | None, until: float) -> float | None:
    if curve is None or not until > 0 or curve[0][-1] < until:
        return None
    return null_if_undefined(area_under_curve(*curve, until=until))


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean over seeds that have a value, None of none."""
    return null_if_undefined(float(finite_mean(np.array([np.nan if v is None else v for v in values], dtype=float))))


def area_means(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """The mean area of each arm of a summary."""
    return {arm: mean_of(values) for arm, values in summary["area"]["arms"].items()}
