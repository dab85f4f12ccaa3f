"""Effect sizes, probability of improvement and area under a curve: by hand, against loops, and their identities."""

from __future__ import annotations

import itertools
import math
import statistics
import tracemalloc

import numpy as np
import pytest

from lecritique.numerics.statistics.bootstrap import cluster_draws, percentile_bounds
from lecritique.numerics.statistics.effects import (
    area_under_curve,
    mean_difference,
    paired_effect_size,
    probability_of_improvement,
    standardised_difference,
)
from lecritique.numerics.statistics.paired_test import FLIPS, sign_flip_test, sign_flips


def test_effect_sizes_by_hand() -> None:
    assert paired_effect_size([1.0, 2.0, 3.0]) == pytest.approx(2.0)
    assert paired_effect_size([-1.0, -2.0, -3.0]) == pytest.approx(-2.0)
    assert standardised_difference([1.0, 3.0], [0.0, 4.0]) == 0.0
    # Variances 2 and 8: their mean is 5.
    assert standardised_difference([2.0, 4.0], [0.0, 4.0]) == pytest.approx(1.0 / math.sqrt(5.0))


def test_the_unpaired_size_does_not_see_which_seeds_belong_together() -> None:
    a, b = [0.3, 0.5, 0.9], [0.2, 0.4, 0.8]
    assert standardised_difference(a, b) == pytest.approx(standardised_difference(a, b[::-1]))
    assert paired_effect_size(np.subtract(a, b[::-1])) < 1.0
    assert standardised_difference(a, b) == pytest.approx(-standardised_difference(b, a))
    assert paired_effect_size(np.subtract(a, b) * 1e-3 + 0.01 * np.array([1, 2, 3])) == pytest.approx(
        statistics.mean((0.0101, 0.0201, 0.0301)) / statistics.stdev((0.0101, 0.0201, 0.0301))
    )


def test_sizes_of_too_few_or_equal_seeds_are_undefined() -> None:
    assert math.isnan(paired_effect_size([])) and math.isnan(paired_effect_size([0.4]))
    # Differences that are the same up to rounding have no spread.
    assert math.isnan(paired_effect_size([0.1, 0.3 - 0.2, 0.1])) and math.isnan(paired_effect_size([0.0, 0.0]))
    assert math.isnan(standardised_difference([1.0], [2.0])) and math.isnan(standardised_difference([1, 1], [2, 2]))
    assert standardised_difference([1.0, 1.0], [2.0, 4.0]) == pytest.approx(-2.0)


def test_probability_of_improvement_by_hand_and_against_a_loop() -> None:
    assert probability_of_improvement([1.0, 2.0], [0.0, 2.0]).estimate == (1 + 0 + 1 + 0.5) / 4
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 7).astype(float), rng.integers(0, 5, 7).astype(float)
    wins = sum(1.0 if x > y else 0.5 if x == y else 0.0 for x, y in itertools.product(a, b))
    assert probability_of_improvement(a, b).estimate == pytest.approx(wins / 49)
    assert probability_of_improvement(b, a).estimate == pytest.approx(1 - wins / 49)
    assert probability_of_improvement(np.exp(a), np.exp(b)).estimate == pytest.approx(wins / 49)


def test_probability_of_improvement_resamples_the_seeds_of_both_arms_together() -> None:
    # a beats b of its own seed and of the seed before, never another: what a replicate holds, it holds of both.
    found = probability_of_improvement([1.0, 3.0, 5.0], [0.0, 2.0, 4.0])
    assert found.estimate == 6 / 9 and found.units == 3
    exact = []
    for drawn in itertools.product(range(3), repeat=3):
        wins = [(1.0, 3.0, 5.0)[s] > (0.0, 2.0, 4.0)[r] for s in drawn for r in drawn]
        exact.append(sum(wins) / 9)
    assert min(exact) - 1e-12 <= found.low <= np.quantile(exact, 0.03) + 1e-9
    assert np.quantile(exact, 0.97) - 1e-9 <= found.high <= 1.0
    sure = probability_of_improvement([5.0, 6.0, 7.0], [1.0, 2.0, 3.0])
    assert (sure.estimate, sure.low, sure.high) == (1.0, 1.0, 1.0)


def test_probability_of_improvement_equals_the_literal_pairs_of_drawn_seeds_and_needs_no_array_of_them() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 6, 9).astype(float), rng.integers(0, 6, 9).astype(float)
    wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)
    literal = [wins[np.ix_(drawn, drawn)].mean() for drawn in cluster_draws(9, replicates=200)]
    found = probability_of_improvement(a, b, replicates=200)
    assert (found.low, found.high) == percentile_bounds(literal)
    tracemalloc.start()
    probability_of_improvement(rng.normal(size=300), rng.normal(size=300))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2000 * 300 * 8  # replicates times seeds times eight; pairs would be 300


@pytest.mark.parametrize("seeds", [0, 1, 2, 3])
def test_no_interval_of_fewer_than_three_seeds(seeds: int) -> None:
    differences = [0.1, 0.4, 0.2][:seeds]
    for found in (mean_difference(differences), probability_of_improvement(differences, [0.0] * seeds)):
        assert math.isnan(found.estimate) == (seeds == 0)
        assert math.isfinite(found.low) == math.isfinite(found.high) == (seeds == 3)


def test_the_interval_of_a_mean_difference_is_that_of_all_draws() -> None:
    differences = np.array([0.1, 0.4, -0.2, 0.9])
    found = mean_difference(differences)
    exact = [np.mean(drawn) for drawn in itertools.product(differences, repeat=4)]
    assert found.estimate == pytest.approx(0.3) and found.units == 4
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(exact, [0.025, 0.975])), abs=0.03)


def test_area_by_hand() -> None:
    # 10 tokens at reward 1, 30 at 0.5, and of the last 40 only 20 count.
    assert area_under_curve([10, 40, 80], [1.0, 0.5, 0.0], until=60) == pytest.approx((10 + 15) / 60)
    assert area_under_curve([10, 40, 80], [1.0, 0.5, 0.0], until=5) == 1.0
    assert area_under_curve([10, 40], [1.0, math.nan], until=40) == 1.0  # what is undefined weighs nothing
    assert math.isnan(area_under_curve([10, 20], [math.nan, math.inf], until=20))
    assert math.isnan(area_under_curve([0.0], [1.0], until=3))


def test_area_does_not_depend_on_how_many_steps_a_budget_is_cut_into() -> None:
    rng = np.random.default_rng(1)
    spent, rewards = np.cumsum(rng.integers(1, 9, 30)), rng.random(30)
    fine = np.sort(np.concatenate([spent, spent - 0.5]))
    split = rewards[np.searchsorted(spent, fine)]
    whole = area_under_curve(spent, rewards, until=float(spent[-1]))
    assert area_under_curve(fine, split, until=float(spent[-1])) == pytest.approx(whole)
    assert area_under_curve(7 * spent, rewards, until=7 * float(spent[-1])) == pytest.approx(whole)
    assert area_under_curve(spent, np.full(30, 0.3), until=17.0) == pytest.approx(0.3)
    equal = np.arange(1, 31)
    assert area_under_curve(equal, rewards, until=30.0) == pytest.approx(rewards.mean())


def test_the_drawn_test_states_its_error() -> None:
    rng = np.random.default_rng(5)
    few, many = sign_flips(rng.normal(0.3, 1, 12)), sign_flips(rng.normal(0.2, 1, 24))
    assert few.exact and few.standard_error == 0.0
    assert not many.exact and many.standard_error == math.sqrt(many.p * (1 - many.p) / FLIPS) > 0
    assert math.isnan(sign_flips([1.0, 2.0]).p)


@pytest.mark.parametrize("seeds", [5, 8])
def test_the_permutation_test_keeps_its_level_on_skewed_arms_that_share_their_seeds(seeds: int) -> None:
    """Two arms of one distribution, as skewed as it may be, on seeds of very different difficulty."""
    rng = np.random.default_rng(6)
    repetitions, level = 1500, 2 ** (2 - seeds)
    p = [
        sign_flip_test(difficulty + rng.exponential(1.0, seeds) - (difficulty + rng.exponential(1.0, seeds)))
        for difficulty in rng.normal(0, 5, (repetitions, seeds))
    ]
    error = 3 * math.sqrt(level * (1 - level) / repetitions)
    assert abs(np.mean(np.array(p) <= level + 1e-9) - level) < error


@pytest.mark.parametrize(
    "call",
    [
        lambda: paired_effect_size([[1.0]]),
        lambda: paired_effect_size([1.0, math.nan]),
        lambda: standardised_difference([1.0, 2.0], [1.0]),
        lambda: probability_of_improvement([1.0, 2.0], [1.0]),
        lambda: probability_of_improvement([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], level=1.0),
        lambda: mean_difference([math.inf]),
        lambda: area_under_curve([1.0], [1.0, 2.0], until=1.0),
        lambda: area_under_curve([2.0, 1.0], [1.0, 2.0], until=1.0),
        lambda: area_under_curve([-1.0, 1.0], [1.0, 2.0], until=1.0),
        lambda: area_under_curve([1.0, math.inf], [1.0, 2.0], until=1.0),
        lambda: area_under_curve([1.0], [1.0], until=0.0),
    ],
)
def test_bad_input(call) -> None:
    with pytest.raises(ValueError, match=r"finite|same seeds|level|one value|above 0"):
        call()
