"""The summary of a critic's pretraining: how EV developed, and how the variants compare on held-out problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.core.metrics import ValueFit, null_if_undefined
from lecritique.numerics.statistics.bootstrap import BootstrapInterval, cluster_bootstrap
from lecritique.runtime.pretraining import Fitted


def pretraining_summary(
    fitted: Mapping[str, Fitted], settings: Mapping[str, Any], counts: Mapping[str, Any]
) -> dict[str, Any]:
    """All figures as JSON values; intervals by resampling held-out problems, with the same draws for all variants.

    Args:
        fitted: by variant, measured on the same problems.
        settings: as in pretrain.json.
        counts: of the responses.
    """
    intervals = explained_variance_intervals(fitted)
    variants = {
        variant: {
            "explained_variance": _interval(intervals[variant]),
            "seconds": one.seconds,
            "updates": one.curve[-1].update,
            "curve": [
                {key: null_if_undefined(value) if isinstance(value, float) else value for key, value in row.items()}
                for row in map(asdict, one.curve)
            ],
        }
        for variant, one in fitted.items()
    }
    summary = {**settings, "responses": dict(counts), "variants": variants}
    if "gain" in intervals:
        summary["privileged_minus_clean"] = _interval(intervals["gain"])
    return summary


def explained_variance_intervals(fitted: Mapping[str, Fitted]) -> dict[str, BootstrapInterval]:
    """Held-out EV of each variant at the end, and `gain`, privileged minus clean, where there are both.

    EV is recomputed from the pooled moments of the drawn problems, never averaged over problems.
    """
    sums = {variant: _sums(one.fits) for variant, one in fitted.items()}
    problems = len(next(iter(sums.values())))
    statistics = {variant: lambda rows, of=of: _ev(of[rows].sum(axis=0)) for variant, of in sums.items()}
    if {"clean", "privileged"} <= sums.keys():
        clean, privileged = sums["clean"], sums["privileged"]
        statistics["gain"] = lambda rows: _ev(privileged[rows].sum(axis=0)) - _ev(clean[rows].sum(axis=0))
    return cluster_bootstrap(statistics, np.arange(problems))


def _sums(fits: tuple[ValueFit, ...]) -> NDArray[np.float64]:
    """Tokens, and sums of errors, their squares, returns and their squares, [P, 5]: they add up over problems."""
    return np.array(
        [
            [
                fit.error.count,
                fit.error.count * fit.error.mean,
                fit.error.m2 + fit.error.count * fit.error.mean**2,
                fit.target.count * fit.target.mean,
                fit.target.m2 + fit.target.count * fit.target.mean**2,
            ]
            for fit in fits
        ]
    )


def _ev(sums: NDArray[np.float64]) -> float:
    tokens, error, error_squares, target, target_squares = sums
    variance = target_squares / tokens - (target / tokens) ** 2
    if variance < 1e-12:
        return float("nan")
    return float(1.0 - (error_squares / tokens - (error / tokens) ** 2) / variance)


def _interval(interval: BootstrapInterval) -> dict[str, float | int | None]:
    return {
        "estimate": null_if_undefined(interval.estimate),
        "low": null_if_undefined(interval.low),
        "high": null_if_undefined(interval.high),
        "problems": interval.units,
    }
