"""Percentile intervals: whole problems resampled, or blocks of steps inside resampled seeds.

Shapes: N rows, C clusters (problems), R replicates, S seeds, W steps of an endpoint's window.
Draws depend on nothing but the number of clusters or steps and the seed, so intervals can be computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

REPLICATES = 2000
LEVEL = 0.95
_RNG_SEED = 2016


@dataclass(frozen=True, kw_only=True)
class BootstrapInterval:
    """An estimate with its percentile interval; NaN bounds where no replicate was defined.

    `units` clusters or seeds were resampled; in `undefined` replicates the statistic was NaN, and they were left out.
    """

    estimate: float
    low: float
    high: float
    units: int
    undefined: int = 0


def percentile_bounds(replicates_R: ArrayLike, level: float = LEVEL) -> tuple[float, float]:
    """The interval between the tails of a bootstrap distribution.

        low, high = quantiles (1 - level) / 2 and (1 + level) / 2, linearly interpolated

    Args:
        replicates_R: [R], NaN where the statistic was undefined: left out.
        level: in (0, 1).

    Returns:
        low and high, both NaN when no replicate is finite.

    Raises:
        ValueError: a level outside (0, 1).

    Source: Efron 1979; method sheet section 8.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level}")
    replicates = np.asarray(replicates_R, dtype=np.float64)
    known = replicates[np.isfinite(replicates)]
    if not known.size:
        return math.nan, math.nan
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(known, [tail, 1.0 - tail])
    return float(low), float(high)


def cluster_draws(clusters: int, *, replicates: int = REPLICATES, seed: int = _RNG_SEED) -> Indices:
    """Which clusters each replicate is made of.

        d_rc ~ uniform{0, ..., C - 1}, independent

    One call serves every statistic that is to be compared: critics scored on the same draws differ only by what
    they predict.

    Args:
        clusters: C, at least 1.
        replicates: R, at least 1.
        seed: of the generator.

    Returns:
        [R, C] int, cluster numbers.

    Raises:
        ValueError: no clusters or no replicates.

    Source: method sheet section 8.
    """
    if clusters < 1 or replicates < 1:
        raise ValueError(f"a bootstrap needs clusters and replicates, got {clusters} and {replicates}")
    return np.random.default_rng(seed).integers(clusters, size=(replicates, clusters))


def cluster_bootstrap(
    statistics: Mapping[str, Callable[[Indices], float]],
    cluster_of_N: ArrayLike,
    *,
    replicates: int = REPLICATES,
    level: float = LEVEL,
    seed: int = _RNG_SEED,
) -> dict[str, BootstrapInterval]:
    """Percentile intervals of several statistics by resampling whole clusters (problems) with replacement.

        theta_r = statistic(rows of the clusters d_r1, ..., d_rC),   interval = percentiles of theta_1, ..., theta_R

    Every statistic sees the same draws and is recomputed from the drawn rows: a ratio such as EV or an ECE is never
    averaged over problems. The difference of two critics is one more statistic: `lambda rows: f(a[rows]) - f(b[rows])`.
    One row a cluster: the ordinary bootstrap.

    Args:
        statistics: by name, each a function of row numbers [M] into the caller's columns; a cluster that is drawn
            twice has its rows twice. NaN where undefined.
        cluster_of_N: [N], the problem of each row, any values that can be compared.
        replicates: R.
        level: in (0, 1).
        seed: of the draws.

    Returns:
        one interval per name; `estimate` is the statistic of all rows as they are.

    Raises:
        ValueError: no rows, or what `cluster_draws` and `percentile_bounds` refuse.

    Source: VP G.2-G.4; method sheet section 8.
    """
    _, cluster = np.unique(np.asarray(cluster_of_N), return_inverse=True)
    if not cluster.size:
        raise ValueError("a bootstrap needs at least one row, got none")
    order = np.argsort(cluster, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(cluster))[:-1])
    draws = cluster_draws(len(members), replicates=replicates, seed=seed)
    replicated = {name: np.empty(replicates) for name in statistics}
    for r, drawn in enumerate(draws):
        rows = np.concatenate([members[c] for c in drawn])
        for name, statistic in statistics.items():
            replicated[name][r] = statistic(rows)
    everything = np.arange(len(cluster))
    found = {}
    for name, statistic in statistics.items():
        low, high = percentile_bounds(replicated[name], level)
        undefined = int((~np.isfinite(replicated[name])).sum())
        estimate = float(statistic(everything))
        found[name] = BootstrapInterval(estimate=estimate, low=low, high=high, units=len(members), undefined=undefined)
    return found


def block_length(window: int) -> int:
    """Steps in a block of the block bootstrap.

        length = max(1, round(sqrt(W)))

    Args:
        window: W, steps of the endpoint's window.

    Raises:
        ValueError: a negative window.

    Source: ours; method sheet section 8.
    """
    return max(1, round(math.sqrt(window)))


def block_draws(window: int, rng: np.random.Generator, shape: tuple[int, ...]) -> Indices:
    """Steps of resampled windows, drawn in circular blocks so that neighbours stay neighbours.

        step_rj = (start_rb + j mod L) mod W,   b = floor(j / L),   start_rb ~ uniform{0, ..., W - 1}

    L is `block_length` of W. A window of one step gives that step.

    Args:
        window: W, at least 1.
        rng: generator, advanced by the draw.
        shape: of the replicates.

    Returns:
        [*shape, W] int, steps in [0, W).

    Raises:
        ValueError: a window below 1.

    Source: Politis and Romano 1992 (circular blocks); method sheet section 8.
    """
    if window < 1:
        raise ValueError(f"a block bootstrap needs at least one step, got {window}")
    block = block_length(window)
    starts = rng.integers(window, size=(*shape, math.ceil(window / block)))
    steps = (starts[..., None] + np.arange(block)) % window
    return np.asarray(steps.reshape(*shape, -1)[..., :window])


def finite_mean(values: Array, axis: int = -1) -> Array:
    """Mean over finite values.

        mean = sum of finite values / their number,   NaN of none

    Args:
        values: any shape.
        axis: that is averaged over.

    Returns:
        `values`' shape without the axis.

    Raises:
        ValueError: an axis that `values` does not have.

    Source: ours.
    """
    finite = np.isfinite(values)
    count = finite.sum(axis=axis)
    total = np.where(finite, values, 0.0).sum(axis=axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def seed_block_bootstrap(
    windows_a: Sequence[Array],
    windows_b: Sequence[Array] | None = None,
    *,
    replicates: int = REPLICATES,
    level: float = LEVEL,
    seed: int = _RNG_SEED,
) -> BootstrapInterval:
    """Interval of the mean endpoint over seeds: block bootstrap over steps inside resampled seeds.

        estimate = mean_s e(a_s)                 alone
        estimate = mean_s (e(a_s) - e(b_s))      paired,   e = mean of the finite steps of a window

    A replicate draws seeds with replacement, and inside each drawn seed its steps in blocks. Paired arms share both
    draws, seed by seed and step by step, so that what is common to them cancels; windows of different length (an
    unfinished run) share the seeds only. Seeds whose endpoint is undefined are left out.

    Args:
        windows_a: one [W] per seed, the steps of the endpoint's window.
        windows_b: the same for the other arm, seed by seed; None for one arm alone.
        replicates: R.
        level: in (0, 1).
        seed: of the draws.

    Returns:
        the interval; `units` is the number of seeds with an endpoint. All NaN without one, NaN bounds for a single
        seed of a single step.

    Raises:
        ValueError: different numbers of seeds, or a level outside (0, 1).

    Source: method sheet section 8.
    """
    if windows_b is not None and len(windows_a) != len(windows_b):
        raise ValueError(f"paired arms need the same seeds, got {len(windows_a)} and {len(windows_b)} windows")
    others: Sequence[Array | None] = [None] * len(windows_a) if windows_b is None else windows_b
    pairs = [(a, b) for a, b in zip(windows_a, others, strict=True) if math.isfinite(_endpoint(a, b))]
    S = len(pairs)
    if not S:
        return BootstrapInterval(estimate=math.nan, low=math.nan, high=math.nan, units=0)
    estimate = float(np.mean([_endpoint(a, b) for a, b in pairs]))
    if S == 1 and max(len(a) for a, _ in pairs) < 2:
        return BootstrapInterval(estimate=estimate, low=math.nan, high=math.nan, units=S)
    rng = np.random.default_rng(seed)
    drawn_RS = rng.integers(S, size=(replicates, S))
    replicated_SRS = np.stack([_endpoint_replicates(a, b, rng, (replicates, S)) for a, b in pairs])
    means_R = finite_mean(np.take_along_axis(replicated_SRS, drawn_RS[None], axis=0)[0])
    low, high = percentile_bounds(means_R, level)
    undefined = int((~np.isfinite(means_R)).sum())
    return BootstrapInterval(estimate=estimate, low=low, high=high, units=S, undefined=undefined)


def _endpoint(a: Array, b: Array | None) -> float:
    return float(finite_mean(a) - (0.0 if b is None else finite_mean(b)))


def _endpoint_replicates(a: Array, b: Array | None, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Endpoints (differences, with `b`) of resampled steps of one seed, of the given shape."""
    steps = block_draws(len(a), rng, shape)
    found = finite_mean(a[steps])
    if b is None:
        return found
    return np.asarray(found - finite_mean(b[steps if len(a) == len(b) else block_draws(len(b), rng, shape)]))
