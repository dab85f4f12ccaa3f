"""Gradient variance under several estimators, relative to no baseline and to each other, from shared resamples.

Shapes: R replicates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.gradient_statistics import GradientSums, ratio_interval
from lecritique.analysis.value_statistics import Resampling
from lecritique.core.metrics import null_if_undefined
from lecritique.numerics.statistics.bootstrap import BootstrapInterval

NONE = "none"
NONE_CENTRED = "none_centred"
# Of one trajectory's gradient, and of the mean over a group, which knows how the baselines tie its members together.
KINDS = {"trajectory": GradientSums.trace, "group": GradientSums.group_trace}


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Trace of a gradient's covariance: of the problems as they are, and of each resample [R]."""

    estimate: float
    replicates_R: NDArray[np.float64]
    problems: int

    def over(self, other: Trace) -> BootstrapInterval:
        """The ratio to another trace that was resampled by the same draws.

        Both see the same problems in every replicate, so what a hard problem adds to both cancels, and the interval of
        the ratio is narrower than those of the traces. NaN where the other one is not above 0.
        """
        estimate = self.estimate / other.estimate if other.estimate > 0 else math.nan
        return ratio_interval(self.replicates_R, other.replicates_R, estimate=estimate, units=self.problems)


Traces = Mapping[str, Mapping[str, Trace]]


def traces_of(sums: Mapping[str, GradientSums], draws: Resampling) -> Traces:
    """The traces of every estimator, by estimator and by kind (`trajectory`, `group`)."""
    ones = np.ones((1, draws.problems))
    return {
        name: {
            kind: Trace(
                estimate=float(trace(own, ones)[0]),
                replicates_R=trace(own, draws.counts_RC),
                problems=draws.problems,
            )
            for kind, trace in KINDS.items()
        }
        for name, own in sums.items()
    }


def variance_ratios(traces: Traces) -> dict[str, dict[str, Any]]:
    """Of each estimator the trace and its ratio to that of `none`, by kind."""
    return {
        name: {
            kind: {"trace": null_if_undefined(one.estimate), "ratio": record(one.over(traces[NONE][kind]))}
            for kind, one in of.items()
        }
        for name, of in traces.items()
    }


def contrasts(traces: Traces) -> list[dict[str, Any]]:
    """Of every two estimators the ratio trace(a) / trace(b), by kind; `b` is the one that stands first in `traces`."""
    return [
        {"a": a, "b": b} | {kind: record(traces[a][kind].over(traces[b][kind])) for kind in KINDS}
        for b, a in combinations(traces, 2)
    ]


def of_critics(found: Sequence[Mapping[str, Any]], critics: Sequence[str]) -> list[Mapping[str, Any]]:
    """The contrasts that say whether a critic deserves its place: against each other and against rewards alone.

    Those with `none` are left out, which `variance_ratios` has.
    """
    rivals = {NONE_CENTRED, "mean", "leave_one_out", *critics}
    return [pair for pair in found if pair["a"] in critics and pair["b"] in rivals]


def shown_name(name: str) -> str:
    """An estimator as tables and figures have it."""
    return "none, rewards centred" if name == NONE_CENTRED else name.replace("_", "-")


def record(interval: BootstrapInterval) -> dict[str, float | None]:
    """An interval as JSON; what is undefined is null."""
    return {
        "estimate": null_if_undefined(interval.estimate),
        "low": null_if_undefined(interval.low),
        "high": null_if_undefined(interval.high),
    }
