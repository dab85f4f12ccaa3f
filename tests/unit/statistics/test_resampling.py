"""Cluster and block bootstrap: what is drawn, what is shared, and against an exact bootstrap distribution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lecritique.numerics.statistics.bootstrap import (
    block_draws,
    block_length,
    cluster_bootstrap,
    cluster_draws,
    finite_mean,
    percentile_bounds,
    seed_block_bootstrap,
)
from lecritique.numerics.statistics.calibration import expected_calibration_error, weighted_explained_variance


def test_percentile_bounds_leave_out_what_is_undefined() -> None:
    replicates = np.append(np.arange(101.0), [math.nan, math.nan])
    assert percentile_bounds(replicates) == pytest.approx((2.5, 97.5))
    assert percentile_bounds(replicates, 0.8) == pytest.approx((10.0, 90.0))
    assert all(math.isnan(bound) for bound in percentile_bounds([math.nan]))


def test_whole_clusters_are_drawn() -> None:
    cluster = np.array(["b", "a", "b", "c", "a", "b"])
    seen: list[tuple[int, ...]] = []

    def record(rows: np.ndarray) -> float:
        seen.append(tuple(rows.tolist()))
        return 0.0

    cluster_bootstrap({"record": record}, cluster, replicates=200, seed=1)
    assert seen[-1] == tuple(range(6))
    members = [[1, 4], [0, 2, 5], [3]]
    drawn = cluster_draws(3, replicates=200, seed=1)
    for rows, chosen in zip(seen[:-1], drawn, strict=True):
        assert list(rows) == [row for c in chosen for row in members[c]]
    assert len({tuple(sorted(c)) for c in drawn.tolist()}) == 10  # every multiset of three turns up


def test_statistics_share_their_draws_and_are_recomputed() -> None:
    rng = np.random.default_rng(0)
    problem = np.repeat(np.arange(30), 3)
    y = (rng.random(90) < 0.5).astype(float)
    a = np.clip(0.6 * y + 0.4 * rng.random(90), 0, 1)
    statistics = {
        "a": lambda rows: weighted_explained_variance(a[rows], y[rows]),
        "shifted": lambda rows: weighted_explained_variance(a[rows] + 3.0, y[rows]),
        "difference": lambda rows: (
            weighted_explained_variance(a[rows], y[rows]) - weighted_explained_variance(a[rows] + 3.0, y[rows])
        ),
        "ece": lambda rows: expected_calibration_error(a[rows], y[rows]),
    }
    found = cluster_bootstrap(statistics, problem, replicates=300)
    assert (found["a"].low, found["a"].high) == pytest.approx((found["shifted"].low, found["shifted"].high))
    assert (found["difference"].low, found["difference"].high) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert found["a"].low < found["a"].estimate < found["a"].high and found["a"].units == 30
    members = [np.flatnonzero(problem == c) for c in range(30)]
    literal = []
    for drawn in cluster_draws(30, replicates=300):
        rows = np.concatenate([members[c] for c in drawn])
        literal.append(expected_calibration_error(a[rows], y[rows]))
    assert (found["ece"].low, found["ece"].high) == percentile_bounds(literal)


def test_undefined_replicates_are_counted() -> None:
    y = np.array([0.0, 0.0, 1.0])
    found = cluster_bootstrap({"ev": lambda rows: weighted_explained_variance(y[rows], y[rows])}, range(3))["ev"]
    constant = ((2 / 3) ** 3 + (1 / 3) ** 3) * 2000
    assert abs(found.undefined - constant) < 4 * math.sqrt(2000 * constant / 2000 * (1 - constant / 2000))
    assert found.low == found.high == pytest.approx(1.0)


def test_bounds_equal_the_enumerated_bootstrap_distribution() -> None:
    values = np.array([0.0, 1.0, 3.0, 7.0])
    exact = np.sort([np.mean(draw) for draw in itertools.product(values, repeat=4)])
    found = cluster_bootstrap({"mean": lambda rows: float(values[rows].mean())}, range(4), replicates=20_000)["mean"]
    for bound, level in ((found.low, 0.025), (found.high, 0.975)):
        below, above = np.mean(exact < bound - 1e-9), np.mean(exact <= bound + 1e-9)
        assert below - 0.004 <= level <= above + 0.004


def test_draws_are_uniform_and_reproducible() -> None:
    draws = cluster_draws(5)
    assert draws.shape == (2000, 5)
    counts = np.bincount(draws.ravel(), minlength=5)
    assert ((counts - 2000) ** 2 / 2000).sum() < 18.5  # chi-square, 4 degrees of freedom, p = .001
    assert np.array_equal(draws, cluster_draws(5)) and not np.array_equal(draws, cluster_draws(5, seed=1))


def test_blocks_are_circular_runs_of_the_square_root() -> None:
    assert [block_length(w) for w in (0, 1, 2, 6, 7, 50, 100)] == [1, 1, 1, 2, 3, 7, 10]
    draws = block_draws(10, np.random.default_rng(0), (400,))
    assert draws.shape == (400, 10)
    blocks = draws[:, :9].reshape(400, 3, 3)
    assert ((np.diff(blocks, axis=2) - 1) % 10 == 0).all()
    starts = np.bincount(blocks[:, :, 0].ravel(), minlength=10)
    assert starts.min() > 70 and (draws.max(), draws.min()) == (9, 0)
    assert block_draws(1, np.random.default_rng(0), (3,)).tolist() == [[0]] * 3


def test_seed_bootstrap_of_constant_windows_is_the_bootstrap_of_their_means() -> None:
    ends = np.array([0.0, 1.0, 3.0, 7.0])
    found = seed_block_bootstrap([np.full(9, end) for end in ends])
    exact = np.sort([np.mean(draw) for draw in itertools.product(ends, repeat=4)])
    assert found.estimate == 2.75 and found.units == 4
    for bound, level in ((found.low, 0.025), (found.high, 0.975)):
        assert np.mean(exact < bound - 1e-9) - 0.011 <= level <= np.mean(exact <= bound + 1e-9) + 0.011


def test_paired_arms_share_seeds_and_steps() -> None:
    rng = np.random.default_rng(3)
    a = [rng.normal(size=20) for _ in range(4)]
    shifted = seed_block_bootstrap([x + 0.5 for x in a], a)
    assert (shifted.low, shifted.high) == pytest.approx((0.5, 0.5), abs=1e-12)
    alone = seed_block_bootstrap(a)
    assert alone.high - alone.low > 0.1


def test_seeds_without_an_endpoint_are_left_out() -> None:
    nothing, some = np.full(5, math.nan), np.array([1.0, math.nan, 3.0, 2.0, 2.0])
    assert seed_block_bootstrap([nothing, some]).units == 1
    assert seed_block_bootstrap([nothing, some]).estimate == 2.0
    empty = seed_block_bootstrap([nothing])
    assert empty.units == 0 and math.isnan(empty.estimate) and math.isnan(empty.low)
    single = seed_block_bootstrap([np.array([0.5])])
    assert single.estimate == 0.5 and math.isnan(single.low)


def test_finite_mean_over_either_axis() -> None:
    values = np.array([[1.0, math.nan, 3.0], [math.nan, math.inf, math.nan]])
    np.testing.assert_array_equal(finite_mean(values), [2.0, math.nan])
    np.testing.assert_array_equal(finite_mean(values, axis=0), [1.0, math.nan, 3.0])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="level"):
        percentile_bounds([1.0], 1.0)
    for clusters, replicates in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="clusters and replicates"):
            cluster_draws(clusters, replicates=replicates)
    with pytest.raises(ValueError, match="at least one row"):
        cluster_bootstrap({}, [])
    with pytest.raises(ValueError, match="at least one step"):
        block_draws(0, np.random.default_rng(0), (2,))
    with pytest.raises(ValueError, match="same seeds"):
        seed_block_bootstrap([np.zeros(3)], [])
