"""Brier score and its parts, calibration error, AUC and weighted EV: by hand, against loops, and identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lecritique.numerics.explained_variance import explained_variance
from lecritique.numerics.statistics.calibration import (
    area_under_curve,
    brier_parts,
    brier_score,
    continuation_brier,
    expected_calibration_error,
    weighted_explained_variance,
)

P = [0.1, 0.4, 0.4, 0.8, 1.0]
Y = [0, 1, 0, 1, 1]


def random_items(seed: int, size: int = 40, *, coarse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.integers(0, 6, size) / 5 if coarse else rng.random(size)
    return p, (rng.random(size) < p).astype(float)


def test_brier_score_by_hand() -> None:
    assert brier_score(P, Y) == pytest.approx((0.01 + 0.36 + 0.16 + 0.04 + 0.0) / 5, abs=1e-15)
    assert brier_score(Y, Y) == 0.0
    assert brier_score([0.6] * 5, Y) == pytest.approx(np.var(Y))


def test_continuation_brier_is_the_mean_over_continuations() -> None:
    outcomes = [[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]
    found = continuation_brier([0.5, 0.25, 1.0], outcomes)
    assert found.tolist() == pytest.approx([(0.5 - 0.75) ** 2 + 0.75 * 0.25, 0.0625, 0.0])
    rng = np.random.default_rng(0)
    p, y = rng.random(7), rng.random((7, 8))
    literal = [sum((p[i] - y[i, k]) ** 2 for k in range(8)) / 8 for i in range(7)]
    assert continuation_brier(p, y).tolist() == pytest.approx(literal, abs=1e-14)


def test_two_critics_differ_by_the_first_term_only() -> None:
    rng = np.random.default_rng(1)
    a, b, y = rng.random(5), rng.random(5), (rng.random((5, 8)) < 0.4).astype(float)
    gap = continuation_brier(a, y) - continuation_brier(b, y)
    assert gap.tolist() == pytest.approx(((a - y.mean(1)) ** 2 - (b - y.mean(1)) ** 2).tolist())


def test_brier_parts_by_hand() -> None:
    parts = brier_parts(P, Y)
    assert parts.reliability == pytest.approx((0.01 + 2 * 0.01 + 0.04 + 0.0) / 5)
    assert parts.resolution == pytest.approx((0.36 + 2 * 0.01 + 2 * 0.16) / 5)
    assert parts.uncertainty == pytest.approx(0.24)
    assert parts.within_bins == pytest.approx(0.0, abs=1e-16)


@pytest.mark.parametrize("bins", [None, 1, 4, 10])
@pytest.mark.parametrize("coarse", [True, False])
def test_brier_parts_add_up(bins: int | None, coarse: bool) -> None:
    p, y = random_items(3, coarse=coarse)
    parts = brier_parts(p, y, bins=bins)
    assert parts.score == pytest.approx(brier_score(p, y), abs=1e-14)
    assert min(parts.reliability, parts.resolution, parts.uncertainty) >= 0.0
    if bins is None:
        assert parts.within_bins == pytest.approx(0.0, abs=1e-15)
    if bins == 1:
        assert parts.resolution == pytest.approx(0.0, abs=1e-15)
        assert abs(parts.within_bins) > 1e-3 or coarse


def test_calibration_error_by_hand_and_at_the_edges_of_bins() -> None:
    assert expected_calibration_error(P, Y) == pytest.approx((0.1 + 2 * 0.1 + 0.2 + 0.0) / 5)
    assert expected_calibration_error([0.6] * 5, Y) == pytest.approx(0.0, abs=1e-15)
    edges = [k / 10 for k in range(10)]
    for k, edge in enumerate(edges):  # the edge belongs to the bin above it, .05 below to the one below
        with_own_bin = expected_calibration_error([edge, min(edge + 0.09, 1.0)], [0.0, 1.0])
        assert with_own_bin == pytest.approx(abs(0.5 - edge - 0.045)), k
    assert expected_calibration_error([0.95, 1.0], [1.0, 0.0]) == pytest.approx(0.475)


def test_calibration_error_against_a_loop() -> None:
    p, y = random_items(4, 300)
    total = 0.0
    for b in range(10):
        inside = [i for i in range(300) if b / 10 <= p[i] < (b + 1) / 10 or (b == 9 and p[i] == 1.0)]
        if inside:
            total += abs(sum(y[i] for i in inside) - sum(p[i] for i in inside)) / 300
    assert expected_calibration_error(p, y) == pytest.approx(total, abs=1e-13)
    assert expected_calibration_error(p, y, bins=1) == pytest.approx(abs(p.mean() - y.mean()))


def test_auc_counts_ties_as_half() -> None:
    assert area_under_curve(P, Y) == pytest.approx((2 + 1.5 + 2) / 6 + 0.0, abs=1e-15)
    assert area_under_curve([0.3] * 5, Y) == 0.5
    assert area_under_curve([0, 1, 0, 1, 1], Y) == 1.0
    assert math.isnan(area_under_curve(P, [1] * 5)) and math.isnan(area_under_curve(P, [0] * 5))


@pytest.mark.parametrize("coarse", [True, False])
def test_auc_against_all_pairs_and_under_monotone_maps(coarse: bool) -> None:
    p, y = random_items(5, coarse=coarse)
    pairs = [(a > b) + 0.5 * (a == b) for a in p[y == 1] for b in p[y == 0]]
    assert area_under_curve(p, y) == pytest.approx(sum(pairs) / len(pairs), abs=1e-14)
    assert area_under_curve(np.exp(3 * p) - 7, y) == pytest.approx(area_under_curve(p, y), abs=1e-14)
    assert area_under_curve(-p, y) == pytest.approx(1 - area_under_curve(p, y), abs=1e-14)


def test_weighted_ev_is_plain_ev_with_equal_weights_and_duplication_with_integer_ones() -> None:
    p, y = random_items(6)
    plain = explained_variance(torch.tensor(p), torch.tensor(y))
    assert weighted_explained_variance(p, y) == pytest.approx(plain, abs=1e-13)
    assert weighted_explained_variance(p, y, np.full(40, 7.0)) == pytest.approx(plain, abs=1e-13)
    times = np.random.default_rng(7).integers(0, 4, 40)
    repeated = weighted_explained_variance(np.repeat(p, times), np.repeat(y, times))
    assert weighted_explained_variance(p, y, times) == pytest.approx(repeated, abs=1e-13)


def test_fault_13_ev_is_pooled_and_blind_to_an_offset() -> None:
    returns, values = [[1.0, 0.0], [1.0, 1.0, 1.0, 0.0]], [[0.8, 0.3], [0.6, 0.9, 0.5, 0.6]]
    parts = [weighted_explained_variance(v, r) for v, r in zip(values, returns, strict=True)]
    assert sum(parts) / 2 == pytest.approx(0.38167, abs=5e-6)
    V, R = np.concatenate(values), np.concatenate(returns)
    assert weighted_explained_variance(V, R) == pytest.approx(0.32875, abs=1e-12)
    assert weighted_explained_variance(R + 5, R) == pytest.approx(1.0)
    assert brier_score(R + 5, R) == 25.0


def test_weighted_ev_special_cases() -> None:
    assert weighted_explained_variance(np.array(Y) + 5.0, Y, [1, 2, 3, 4, 5]) == pytest.approx(1.0)
    assert weighted_explained_variance([0.2] * 5, Y) == pytest.approx(0.0, abs=1e-15)
    assert weighted_explained_variance([1, 0, 1, 0, 0], Y) < 0
    assert math.isnan(weighted_explained_variance(P, [1] * 5))
    assert math.isnan(weighted_explained_variance(P, [1e-7, 0, 1e-7, 0, 0]))
    assert not math.isnan(weighted_explained_variance(P, [1e-5, 0, 1e-5, 0, 0]))
    assert math.isnan(weighted_explained_variance(P, Y, [1, 0, 1, 0, 0]))  # both items of any weight failed


def test_weights_of_problems_let_each_count_once() -> None:
    p = [0.2, 0.9, 0.9, 0.9]
    y = [0.0, 1.0, 0.0, 1.0]
    weights = [1.0, 1 / 3, 1 / 3, 1 / 3]
    mean_y, mean_e = (0 + 2 / 3) / 2, (-0.2 + (0.1 - 0.9 + 0.1) / 3) / 2
    var_y = (mean_y**2 + (2 * (1 - mean_y) ** 2 + mean_y**2) / 3) / 2
    errors = [-0.2, 0.1, -0.9, 0.1]
    var_e = sum(w / 2 * (e - mean_e) ** 2 for w, e in zip(weights, errors, strict=True))
    assert weighted_explained_variance(p, y, weights) == pytest.approx(1 - var_e / var_y)


@pytest.mark.parametrize("measure", [brier_score, brier_parts, expected_calibration_error, area_under_curve])
def test_order_of_items_changes_nothing_and_bad_input_is_refused(measure) -> None:
    p, y = random_items(8)
    order = np.random.default_rng(9).permutation(40)
    before, after = measure(p, y), measure(p[order], y[order])
    if measure is brier_parts:
        before, after = before.resolution, after.resolution
    assert after == pytest.approx(before, abs=1e-14)
    for bad_p, bad_y in (([], []), ([0.5], [1, 0]), ([math.nan], [1]), ([0.5], [math.inf])):
        with pytest.raises(ValueError, match=r"N >= 1|finite"):
            measure(bad_p, bad_y)


def test_more_bad_input() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        expected_calibration_error([1.2], [1])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        brier_parts([-0.1], [1], bins=10)
    with pytest.raises(ValueError, match="at least 1"):
        expected_calibration_error([0.2], [1], bins=0)
    with pytest.raises(ValueError, match="0 or 1"):
        area_under_curve([0.2], [0.5])
    with pytest.raises(ValueError, match=r"\[N, K\]"):
        continuation_brier([0.2], [1])
    for weights in ([-1.0, 2.0], [0.0, 0.0], [1.0]):
        with pytest.raises(ValueError, match="weights"):
            weighted_explained_variance([0.2, 0.3], [0, 1], weights)
