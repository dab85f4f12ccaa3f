"""Endpoints of runs and the summary of a comparison, as plain JSON."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.arm_tests import areas, budget_of, method_of_tests, seed_tests, spent
from lecritique.analysis.bootstrap import (
    FEWEST_SEEDS,
    LEVEL,
    REPLICATES,
    Interval,
    block_length,
    chance_exclusion,
    endpoint_interval,
    finite_mean,
    paired_interval,
)
from lecritique.analysis.read import Comparison, Run, load_comparison
from lecritique.analysis.remembered import remembered
from lecritique.core.metrics import CATALOG, null_if_undefined

SUMMARY_SCHEMA = 1
ENDPOINT_STEPS = 50
ENDPOINT_METRICS = ("reward", "explained_variance", "rho")
PAIRED_METRICS = ("reward", "explained_variance")


def endpoint_window(values: NDArray[Any]) -> NDArray[Any]:
    """The steps that an endpoint averages: the last 50, or the last third of a run of fewer than 150 steps."""
    recorded = len(values)
    width = ENDPOINT_STEPS if recorded >= 3 * ENDPOINT_STEPS else max(1, recorded // 3)
    return values[-width:] if recorded else values


def endpoint(values: NDArray[np.float64]) -> float | None:
    """Mean over the finite values of the endpoint's window, None where there are none."""
    return null_if_undefined(float(finite_mean(endpoint_window(values))))


def run_summary(run: Run) -> dict[str, Any]:
    """Endpoints of one run, null where a metric is undefined."""
    names = [name for name in CATALOG if name in run.metrics]
    return {
        "schema": SUMMARY_SCHEMA,
        "arm": run.arm,
        "seed": run.seed,
        "estimator": run.estimator,
        "state": run.state,
        "steps": len(run.steps),
        **{f"{name}_last": endpoint(run.series(name)) for name in dict.fromkeys((*ENDPOINT_METRICS, *names))},
    }


def comparison_summary(comparison: Comparison) -> dict[str, Any]:
    """Endpoints of every arm and seed, and paired differences of every two arms.

    Lists follow `seeds`; null stands where a run or value is missing.
    """
    budget = budget_of(comparison)
    return {
        "schema": SUMMARY_SCHEMA,
        "recipe": comparison.recipe,
        "base_reward": comparison.base_reward,
        "seeds": list(comparison.seeds),
        "arms": {arm: _arm_summary(comparison, arm) for arm in comparison.arms},
        "paired": [
            _paired(comparison, metric, a, b)
            for metric in PAIRED_METRICS
            for a, b in itertools.combinations(comparison.arms, 2)
        ],
        "method": {**method_of_intervals(comparison), "tests": method_of_tests(comparison)},
        "budget": None if budget is None else {"unit": budget[0], "limit": budget[1]},
        "spent": spent(comparison),
        "area": areas(comparison),
    }


def method_of_intervals(comparison: Comparison) -> dict[str, Any]:
    """How the endpoints and intervals were made, for the summary and the page."""
    windows = sorted({len(endpoint_window(run.steps)) for run in comparison.runs.values() if len(run.steps)})
    return {
        "name": "block bootstrap over steps inside resampled seeds",
        "replicates": REPLICATES,
        "level": LEVEL,
        "window_steps": windows,
        "block_steps": [block_length(window) for window in windows],
        "note": "no significance claimed from fewer than three seeds",
        "fewest_seeds": FEWEST_SEEDS,
        "chance_exclusion": chance_exclusion(len(comparison.seeds)),
    }


def write_summary(directory: str | Path, out: str | Path | None = None) -> Path:
    """Write the summary of a comparison (`summary.json` inside it, unless `out` says otherwise)."""
    summary = comparison_summary(load_comparison(directory))
    target = Path(out) if out is not None else Path(directory) / "summary.json"
    target.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return target


@remembered
def paired_endpoint(comparison: Comparison, metric: str, a: str, b: str) -> Interval:
    """Mean paired difference a - b of the endpoint of `metric` over the seeds where both have one."""
    pairs = [(x, y) for x, y in zip(_windows(comparison, metric, a), _windows(comparison, metric, b), strict=True)]
    both = [(x, y) for x, y in pairs if x is not None and y is not None]
    return paired_interval([x for x, _ in both], [y for _, y in both])


@remembered
def arm_endpoint(comparison: Comparison, metric: str, arm: str) -> Interval:
    """Mean endpoint of `metric` over the arm's seeds."""
    return endpoint_interval([w for w in _windows(comparison, metric, arm) if w is not None])


def _arm_summary(comparison: Comparison, arm: str) -> dict[str, Any]:
    runs = comparison.runs_of(arm)
    last = {
        f"{name}_last": [None if run is None else endpoint(run.series(name)) for run in runs]
        for name in ENDPOINT_METRICS
    }
    base = comparison.base_reward
    gain = [None if r is None or base is None else r - base for r in last["reward_last"]]
    intervals = {f"{name}_interval": _as_json(arm_endpoint(comparison, name, arm)) for name in PAIRED_METRICS}
    return {
        **last,
        "reward_gain": gain,
        **intervals,
        "steps": [None if run is None else len(run.steps) for run in runs],
        "states": ["missing" if run is None else run.state for run in runs],
    }


def _paired(comparison: Comparison, metric: str, a: str, b: str) -> dict[str, Any]:
    found = paired_endpoint(comparison, metric, a, b)
    return {
        "metric": metric,
        "a": a,
        "b": b,
        "difference": null_if_undefined(found.estimate),
        "low": null_if_undefined(found.low),
        "high": null_if_undefined(found.high),
        "seeds": found.seeds,
        **seed_tests(_endpoints(comparison, metric, a), _endpoints(comparison, metric, b)),
    }


def _endpoints(comparison: Comparison, metric: str, arm: str) -> list[float | None]:
    """The endpoint of every seed."""
    return [None if run is None else endpoint(run.series(metric)) for run in comparison.runs_of(arm)]


def _windows(comparison: Comparison, metric: str, arm: str) -> list[NDArray[np.float64] | None]:
    """The endpoint window of every seed, None where the run is missing or has no finite value there."""
    found: list[NDArray[np.float64] | None] = []
    for run in comparison.runs_of(arm):
        window = None if run is None else endpoint_window(run.series(metric))
        found.append(window if window is not None and np.isfinite(window).any() else None)
    return found


def _as_json(interval: Interval) -> dict[str, Any]:
    return {
        "mean": null_if_undefined(interval.estimate),
        "low": null_if_undefined(interval.low),
        "high": null_if_undefined(interval.high),
    }
