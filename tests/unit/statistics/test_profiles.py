"""Positional bins and profiles, length tertiles and the contrast C."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from lecritique.numerics.statistics.positions import (
    late_gain_contrast,
    length_tertile,
    length_tertile_bounds,
    position_bins,
    position_profile,
    prefix_actions,
    problem_profiles,
    squared_error_gain,
)


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_bins_are_exact(bins: int) -> None:
    for T in range(1, 80):
        exact = [int(Fraction(2 * i + 1, 2 * T) * bins) for i in range(T)]
        assert position_bins(T, bins).tolist() == exact
    assert position_bins(0, bins).tolist() == []


def literal_profile(signals, problems, bins):
    """Tokens, then responses, then problems, one at a time."""
    out = []
    for b in range(bins):
        by_problem: dict[int, list[float]] = {}
        for signal, problem in zip(signals, problems, strict=True):
            T = len(signal)
            inside = [u for i, u in enumerate(signal) if int(bins * (i + 0.5) / T) == b and math.isfinite(u)]
            if inside:
                by_problem.setdefault(problem, []).append(sum(inside) / len(inside))
        means = [sum(responses) / len(responses) for responses in by_problem.values()]
        out.append(sum(means) / len(means) if means else math.nan)
    return out


@pytest.mark.parametrize("seed", range(4))
def test_profile_against_a_literal_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    signals = [rng.normal(size=rng.integers(1, 30)) for _ in range(20)]
    for signal in signals:
        signal[rng.random(len(signal)) < 0.2] = math.nan
    problems = rng.integers(0, 6, 20)
    found = position_profile(signals, problems)
    np.testing.assert_allclose(found, literal_profile(signals, problems, 10), rtol=1e-12)


def test_excluded_tokens_do_not_move_the_others() -> None:
    whole = [np.arange(10.0)]
    cut = [np.where(np.arange(10) < 5, math.nan, np.arange(10.0))]
    np.testing.assert_array_equal(position_profile(cut, [0])[5:], position_profile(whole, [0])[5:])
    assert np.isnan(position_profile(cut, [0])[:5]).all()


def test_problems_count_equally_whatever_their_responses() -> None:
    found = position_profile([[0.0], [1.0], [1.0], [1.0]], ["a", "b", "b", "b"], bins=1)
    assert found.tolist() == [0.5]
    assert np.isnan(position_profile([], [])).all()


def test_tertiles_have_inclusive_upper_bounds() -> None:
    bounds = length_tertile_bounds([1, 2, 3, 4])
    assert bounds == pytest.approx((2.0, 3.0))
    assert length_tertile([1, 2, 2.001, 3, 3.001, 99], (2.0, 3.0)).tolist() == [0, 0, 1, 1, 2, 2]
    lengths = np.random.default_rng(0).integers(1, 10_000, 128)
    counts = np.bincount(length_tertile(lengths, length_tertile_bounds(lengths)))
    assert counts.tolist() == [43, 42, 43]


def test_contrast_by_hand() -> None:
    clean = [[0.25, 0.25, 0.25], [0.2, 0.3, 0.3]]
    privileged = [[0.20, 0.15, 0.05], [0.1, 0.2, 0.2]]
    assert late_gain_contrast(clean, privileged).tolist() == pytest.approx([(0.1 + 0.2) / 2 - 0.05, 0.0])
    assert late_gain_contrast(clean, clean).tolist() == [0.0, 0.0]


def test_bad_input() -> None:
    for actions, bins in ((-1, 10), (5, 0)):
        with pytest.raises(ValueError, match="0 actions and 1 bin"):
            position_bins(actions, bins)
    with pytest.raises(ValueError, match="one problem per response"):
        position_profile([[1.0]], [])
    for lengths in ([], [math.nan]):
        with pytest.raises(ValueError, match="finite lengths"):
            length_tertile_bounds(lengths)
    with pytest.raises(ValueError, match="order"):
        length_tertile([1], (3.0, 2.0))
    for clean, privileged in (([[1, 2]], [[1, 2]]), ([[1, 2, 3]], [[1, 2, 3], [1, 2, 3]])):
        with pytest.raises(ValueError, match=r"\[problems, 3\]"):
            late_gain_contrast(clean, privileged)


def test_problem_profiles_are_what_the_profile_is_a_mean_of() -> None:
    signals = [[1.0, 3.0], [5.0, 5.0], [0.0, math.nan]]
    found = problem_profiles(signals, [7, 7, 2], bins=2)
    np.testing.assert_array_equal(found, [[0.0, math.nan], [3.0, 4.0]])
    np.testing.assert_array_equal(position_profile(signals, [7, 7, 2], bins=2), [1.5, 4.0])
    assert problem_profiles([], [], bins=3).shape == (0, 3)
    assert np.isnan(position_profile([], [], bins=3)).all()
    with pytest.raises(ValueError, match="one problem per response"):
        problem_profiles(signals, [1])


def test_critic_signal_by_hand() -> None:
    # Clean .5 of a success twice; the privileged one says .9, then .2: nearer by .25 - .01, farther by .64 - .25.
    np.testing.assert_allclose(squared_error_gain([0.5, 0.5], [0.9, 0.2], 1.0), [0.24, -0.39])
    np.testing.assert_allclose(squared_error_gain([0.5, 0.1], 0.5, 0.0), [0.0, -0.24])
    for bad in (([0.5], [0.5, 0.5], 1.0), ([0.5], [0.5], math.nan), (0.5, 0.5, 1.0)):
        with pytest.raises(ValueError, match="of the same tokens"):
            squared_error_gain(*bad)


@pytest.mark.parametrize(
    ("actions", "fraction", "expected"),
    [(10, 0.2, 2), (10, 0.5, 5), (10, 0.8, 8), (5, 0.5, 2), (1, 0.8, 0), (100, 0.29, 29), (7, 0.0, 0), (3, 0.999, 2)],
)
def test_prefixes_are_rounded_down_and_leave_something(actions: int, fraction: float, expected: int) -> None:
    assert prefix_actions(actions, fraction) == expected


def test_every_prefix_equals_the_exact_fraction() -> None:
    for T in range(1, 200):
        for share in (Fraction(1, 5), Fraction(1, 2), Fraction(4, 5), Fraction(29, 100)):
            assert prefix_actions(T, float(share)) == T * share.numerator // share.denominator
    for bad in ((0, 0.5), (3, 1.0), (3, -0.1), (3, math.nan)):
        with pytest.raises(ValueError, match="fraction in"):
            prefix_actions(*bad)
