"""Intervals of training-curve endpoints: block bootstrap over steps inside resampled seeds (method sheet, section 8).

The equations are those of `numerics.statistics`; what is decided here is how few seeds are too few.
Neighbouring steps are correlated, so steps are drawn in circular blocks; runs of one seed are the unit, so
seeds are drawn with replacement. Two arms that share a seed share its draws, step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lecritique.numerics.statistics.bootstrap import (
    LEVEL,
    REPLICATES,
    block_length,
    finite_mean,
    seed_block_bootstrap,
)

__all__ = [
    "FEWEST_SEEDS",
    "LEVEL",
    "REPLICATES",
    "Interval",
    "block_length",
    "chance_exclusion",
    "endpoint_interval",
    "finite_mean",
    "paired_interval",
]

FEWEST_SEEDS = 3

# Share of such 95% intervals that leave out zero although normal seeds do not differ from it: percentile intervals
# of few seeds are too narrow. Simulated without noise between steps, 3,000 times each; noise lowers it somewhat.
_CHANCE_EXCLUSION = {3: 0.24, 4: 0.20, 5: 0.16, 6: 0.15, 8: 0.11, 10: 0.09}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with a percentile interval; the bounds are NaN where there is nothing to resample."""

    estimate: float
    low: float
    high: float
    seeds: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of zero and enough seeds stand behind it to say so."""
        return self.seeds >= FEWEST_SEEDS and (self.low > 0 or self.high < 0)


def chance_exclusion(seeds: int) -> float | None:
    """How often an interval of so few seeds leaves out zero by chance; None of fewer than three."""
    known = [count for count in _CHANCE_EXCLUSION if count <= seeds]
    return _CHANCE_EXCLUSION[max(known)] if known else None


def endpoint_interval(windows: Sequence[NDArray[np.float64]]) -> Interval:
    """Mean endpoint over seeds, from each seed's window [W] of steps."""
    return _interval(windows, None)


def paired_interval(a: Sequence[NDArray[np.float64]], b: Sequence[NDArray[np.float64]]) -> Interval:
    """Mean over seeds of endpoint(a) - endpoint(b); entry s of `a` and `b` are the windows of one seed."""
    return _interval(a, b)


def _interval(a: Sequence[NDArray[np.float64]], b: Sequence[NDArray[np.float64]] | None) -> Interval:
    found = seed_block_bootstrap(a, b)
    return Interval(estimate=found.estimate, low=found.low, high=found.high, seeds=found.units)
