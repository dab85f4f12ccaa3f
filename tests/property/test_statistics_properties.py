"""Properties of the statistics on generated input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lecritique.numerics.statistics.accuracy import avg_at_k, pass_at_k
from lecritique.numerics.statistics.bootstrap import percentile_bounds
from lecritique.numerics.statistics.calibration import (
    area_under_curve,
    brier_parts,
    brier_score,
    continuation_brier,
    expected_calibration_error,
    weighted_explained_variance,
)
from lecritique.numerics.statistics.paired_test import sign_flip_test
from lecritique.numerics.statistics.positions import length_tertile, length_tertile_bounds, position_bins

fast = settings(max_examples=60, deadline=None)
share = st.integers(0, 20).map(lambda i: i / 20) | st.floats(0, 1)
items = st.lists(st.tuples(share, st.booleans()), min_size=1, max_size=30)
number = st.floats(-10, 10)


def columns(rows: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([p for p, _ in rows]), np.array([float(y) for _, y in rows])


@fast
@given(items, st.integers(1, 12))
def test_brier_splits_exactly_and_bounds_the_calibration_error(rows: list[tuple[float, bool]], bins: int) -> None:
    p, y = columns(rows)
    parts = brier_parts(p, y, bins=bins)
    assert parts.score == pytest.approx(brier_score(p, y), abs=1e-12)
    assert parts.resolution <= parts.uncertainty + 1e-12
    # The error is a mean of distances whose mean square is the reliability (Jensen).
    assert expected_calibration_error(p, y, bins=bins) <= math.sqrt(parts.reliability) + 1e-12


@fast
@given(items)
def test_auc_turns_round_with_its_predictions_and_its_outcomes(rows: list[tuple[float, bool]]) -> None:
    p, y = columns(rows)
    found = area_under_curve(p, y)
    assume(not math.isnan(found))
    assert area_under_curve(-p, y) == pytest.approx(1 - found, abs=1e-12)
    assert area_under_curve(p, 1 - y) == pytest.approx(1 - found, abs=1e-12)
    assert 0 <= found <= 1


@fast
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=8), st.data())
def test_continuation_brier_is_least_at_the_success_rate(outcomes: list[list[bool]], data: st.DataObject) -> None:
    y = np.array(outcomes, dtype=float)
    p = np.array(data.draw(st.lists(share, min_size=len(y), max_size=len(y))))
    best = continuation_brier(y.mean(axis=1), y)
    assert (continuation_brier(p, y) >= best - 1e-12).all()
    assert best.tolist() == pytest.approx((y.mean(1) * (1 - y.mean(1))).tolist(), abs=1e-12)


@fast
@given(items, number, st.floats(0.1, 5))
def test_weighted_ev_ignores_offsets_and_the_scale_of_weights(
    rows: list[tuple[float, bool]], offset: float, scale: float
) -> None:
    p, y = columns(rows)
    weights = np.arange(1, len(p) + 1)
    found = weighted_explained_variance(p, y, weights)
    assume(not math.isnan(found))
    assert weighted_explained_variance(p + offset, y, scale * weights) == pytest.approx(found, abs=1e-9)
    assert found <= 1 + 1e-12


@fast
@given(st.integers(1, 12), st.data())
def test_pass_at_k_rises_with_k_and_with_successes(samples: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, samples))
    by_k = [pass_at_k(samples, correct, k) for k in range(1, samples + 1)]
    assert by_k == sorted(by_k) and pass_at_k(samples, correct, samples + 1) is None
    if correct < samples:
        assert all(pass_at_k(samples, correct + 1, k) >= pass_at_k(samples, correct, k) for k in range(1, samples + 1))
    scores = [[1.0] * correct + [0.0] * (samples - correct)]
    assert avg_at_k(scores).mean == pytest.approx(pass_at_k(samples, correct, 1), abs=1e-12)


@fast
@given(st.lists(number, min_size=3, max_size=9), st.randoms())
def test_sign_flips_see_neither_order_nor_direction(differences: list[float], random) -> None:
    found = sign_flip_test(differences)
    shuffled = list(differences)
    random.shuffle(shuffled)
    assert sign_flip_test([-d for d in shuffled]) == found
    moved = sum(d != 0 for d in differences)
    assert 2.0 ** (1 - max(moved, 1)) <= found + 1e-15
    assert found * 2**moved == int(found * 2**moved)


@fast
@given(st.lists(number, min_size=1, max_size=40), st.floats(0.05, 0.9))
def test_a_wider_level_gives_a_wider_interval(replicates: list[float], level: float) -> None:
    inner, outer = percentile_bounds(replicates, level), percentile_bounds(replicates, level + 0.09)
    assert min(replicates) <= outer[0] <= inner[0] <= inner[1] <= outer[1] <= max(replicates)


@fast
@given(st.integers(1, 200), st.integers(1, 20))
def test_bins_run_forward_and_mirror(actions: int, bins: int) -> None:
    places = position_bins(actions, bins)
    assert (np.diff(places) >= 0).all() and places.min() >= 0 and places.max() < bins
    # Mirrored, but for tokens whose middle is an edge of two bins: those belong to the later one.
    edge = bins * (2 * np.arange(actions) + 1) % (2 * actions) == 0
    mirrored = bins - 1 - places[::-1] + edge[::-1]
    assert mirrored.tolist() == places.tolist()


@fast
@given(st.lists(st.integers(1, 9999), min_size=1, max_size=60))
def test_tertiles_are_ordered_by_length(lengths: list[int]) -> None:
    tertile = length_tertile(lengths, length_tertile_bounds(lengths))
    order = np.argsort(lengths, kind="stable")
    assert (np.diff(tertile[order]) >= 0).all()
    if len(set(lengths)) == len(lengths):
        counts = np.bincount(tertile, minlength=3)
        assert counts.max() - counts.min() <= 1
