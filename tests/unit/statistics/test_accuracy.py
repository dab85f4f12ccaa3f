"""avg@K and pass@k: known fault 54, enumeration of all draws, and what is not reported."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lecritique.numerics.statistics.accuracy import average_of_sets, avg_at_k, mean_pass_at_k, pass_at_k


def test_fault_54_failures_stay_in_the_denominator() -> None:
    scores = np.array([[math.nan]] * 20 + [[1.0]] * 40 + [[0.0]] * 40)
    found = avg_at_k(scores)
    assert (found.mean, found.samples, found.failed) == (0.4, 100, 20)


def test_fault_54_pass_at_k() -> None:
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(8, 3, 4) == pytest.approx(0.92857, abs=5e-6)
    assert pass_at_k(4, 1, 5) is None


@pytest.mark.parametrize(("n", "c"), [(n, c) for n in range(1, 7) for c in range(n + 1)])
def test_pass_at_k_is_the_share_of_draws_with_a_success(n: int, c: int) -> None:
    for k in range(1, n + 1):
        draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-15)
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert pass_at_k(n, c, n) == float(c >= 1)


def test_pass_at_k_is_unbiased() -> None:
    q, n, k = 0.3, 6, 3
    expected = sum(math.comb(n, c) * q**c * (1 - q) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - q) ** k, abs=1e-14)


def test_large_counts_do_not_overflow() -> None:
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5, abs=1e-12)


def test_mean_pass_at_k_is_not_reported_when_a_problem_is_short() -> None:
    assert mean_pass_at_k([4, 8], [1, 3], 4) == pytest.approx((1 + 0.9285714285714286) / 2)
    assert mean_pass_at_k([4, 3], [1, 3], 4) is None


def test_avg_at_k_pools_all_samples() -> None:
    found = avg_at_k([[1.0, 0.0, math.nan, 1.0], [0.5, 0.0, 0.0, 0.0]])
    assert (found.mean, found.samples, found.failed) == (2.5 / 8, 8, 1)


def test_sets_count_equally() -> None:
    assert average_of_sets([0.2, 0.4, 0.9]) == pytest.approx(0.5)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="problems, samples"):
        avg_at_k([1.0, 0.0])
    with pytest.raises(ValueError, match="problems, samples"):
        avg_at_k(np.zeros((0, 4)))
    with pytest.raises(ValueError, match="infinite"):
        avg_at_k([[math.inf]])
    with pytest.raises(ValueError, match="at least 1"):
        pass_at_k(4, 1, 0)
    for correct in (-1, 5):
        with pytest.raises(ValueError, match=r"\[0, 4\]"):
            pass_at_k(4, correct, 2)
    for samples, right in (([], []), ([4], [1, 2])):
        with pytest.raises(ValueError, match="per problem"):
            mean_pass_at_k(samples, right, 2)
    for scores in ([], [0.5, math.nan]):
        with pytest.raises(ValueError, match="every set"):
            average_of_sets(scores)
