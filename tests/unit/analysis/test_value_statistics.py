"""Sums per problem give what the literal statistics give on resampled rows, replicate by replicate."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lecritique.analysis.value_statistics import (
    AUC_CELLS,
    CALIBRATION,
    FIT,
    Resampling,
    rank_cells,
    reliability_curve,
    resampled_calibration,
    resampled_fit,
)
from lecritique.numerics.explained_variance import value_fit
from lecritique.numerics.statistics.bootstrap import cluster_bootstrap
from lecritique.numerics.statistics.calibration import (
    area_under_curve,
    brier_parts,
    brier_score,
    expected_calibration_error,
)

REPLICATES = 60


def example(seed: int, *, tokens: int = 150, problems: int = 12, binary: bool = True):
    rng = np.random.default_rng(seed)
    problem = np.concatenate([np.arange(problems), rng.integers(problems, size=tokens - problems)])
    p = rng.random(tokens)
    y = (rng.random(tokens) < 0.3 + 0.4 * p).astype(float) if binary else rng.random(tokens)
    return p, y, problem


def literal(p, y):
    def fit(rows):
        return value_fit(torch.from_numpy(p[rows]), torch.from_numpy(y[rows]))

    def parts(rows):
        return brier_parts(p[rows], y[rows], bins=10)

    return {
        "explained_variance": lambda rows: fit(rows).value(),
        "bias": lambda rows: fit(rows).bias,
        "mse": lambda rows: fit(rows).mse,
        "brier": lambda rows: brier_score(p[rows], y[rows]),
        "reliability": lambda rows: parts(rows).reliability,
        "resolution": lambda rows: parts(rows).resolution,
        "uncertainty": lambda rows: parts(rows).uncertainty,
        "within_bins": lambda rows: parts(rows).within_bins,
        "calibration_error": lambda rows: expected_calibration_error(p[rows], y[rows]),
        "auc": lambda rows: area_under_curve(p[rows], y[rows] >= 0.5),
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("binary", [True, False])
def test_estimates_and_intervals_are_those_of_the_literal_bootstrap(seed, binary):
    p, y, problem = example(seed, binary=binary)
    draws = Resampling(12, replicates=REPLICATES)
    oracle = cluster_bootstrap(literal(p, y), problem, replicates=REPLICATES)
    found = resampled_fit(p, y, problem, draws).intervals()
    found |= resampled_calibration(p, y, y >= 0.5, problem, draws).intervals()
    assert set(found) == {*FIT, *CALIBRATION} == set(oracle)
    for name, interval in found.items():
        expected = oracle[name]
        for end in ("estimate", "low", "high"):
            assert getattr(interval, end) == pytest.approx(getattr(expected, end), abs=1e-10), (name, end)
        assert (interval.units, interval.undefined) == (expected.units, expected.undefined)


def test_differences_are_those_on_shared_draws():
    p, y, problem = example(1)
    other = np.clip(p + 0.1 * np.sin(np.arange(len(p))), 0, 1)
    draws = Resampling(12, replicates=REPLICATES)
    found = resampled_fit(p, y, problem, draws).minus(resampled_fit(other, y, problem, draws))
    one, two = literal(p, y)["mse"], literal(other, y)["mse"]
    oracle = cluster_bootstrap({"mse": lambda r: one(r) - two(r)}, problem, replicates=REPLICATES)["mse"]
    assert (found["mse"].estimate, found["mse"].low, found["mse"].high) == pytest.approx(
        (oracle.estimate, oracle.low, oracle.high), abs=1e-12
    )
    same = resampled_fit(p, y, problem, draws).minus(resampled_fit(p, y, problem, draws))["mse"]
    assert (same.estimate, same.low, same.high) == (0, 0, 0)


def test_a_hand_example():
    y = np.array([1.0, 1.0, 0.0, 0.0])
    problem = np.arange(4)
    draws = Resampling(4, replicates=10)
    sharp = np.array([0.8, 0.8, 0.2, 0.2])
    assert resampled_fit(sharp, y, problem, draws).estimates == pytest.approx(
        {"explained_variance": 1 - 0.04 / 0.25, "bias": 0.0, "mse": 0.04}
    )
    assert resampled_calibration(sharp, y, y == 1, problem, draws).estimates == pytest.approx(
        {
            "brier": 0.04, "reliability": 0.04, "resolution": 0.25, "uncertainty": 0.25, "within_bins": 0.0,
            "calibration_error": 0.2, "auc": 1.0,
        }
    )  # fmt: skip
    flat = np.full(4, 0.5)
    assert resampled_fit(flat, y, problem, draws).estimates["explained_variance"] == pytest.approx(0.0)
    assert resampled_calibration(flat, y, y == 1, problem, draws).estimates["auc"] == pytest.approx(0.5)
    assert [b["tokens"] for b in reliability_curve(sharp, y)] == [0, 0, 2, 0, 0, 0, 0, 0, 2, 0]
    assert reliability_curve(sharp, y)[8] == {"tokens": 2, "predicted": pytest.approx(0.8), "observed": 1.0}
    assert reliability_curve(sharp, y)[0]["predicted"] is None


def test_many_distinct_predictions_share_cells_and_auc_stays_within_its_error():
    rng = np.random.default_rng(3)
    p = rng.random(20_000)
    y = rng.random(20_000) < p
    cell, cells = rank_cells(p)
    assert cells == AUC_CELLS == len(np.unique(cell)) and (np.diff(cell[np.argsort(p)]) >= 0).all()
    assert np.bincount(cell).max() <= 2 * 20_000 / AUC_CELLS
    found = resampled_calibration(p, y.astype(float), y, np.zeros(20_000, dtype=np.int64), Resampling(1, replicates=2))
    exact = area_under_curve(p, y)
    assert found.estimates["auc"] == pytest.approx(exact, abs=2 / AUC_CELLS)


def test_what_is_undefined_is_nan_and_not_a_number():
    draws = Resampling(3, replicates=20)
    nothing = resampled_fit(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), draws)
    assert all(math.isnan(value) for value in nothing.estimates.values())
    constant = resampled_fit(np.array([0.2, 0.4]), np.ones(2), np.array([0, 1]), draws)
    assert math.isnan(constant.estimates["explained_variance"]) and constant.estimates["mse"] == pytest.approx(0.5)
    one = resampled_fit(np.array([0.2, 0.4]), np.array([0.0, 1.0]), np.array([1, 1]), draws).interval("mse")
    assert math.isnan(one.low) and one.units == 1
    outside = np.array([-0.5, 0.5])
    assert resampled_calibration(outside, np.ones(2), np.ones(2, bool), np.array([0, 1]), draws) is None
    only_wins = resampled_calibration(np.array([0.1, 0.5]), np.ones(2), np.ones(2, bool), np.array([0, 1]), draws)
    assert math.isnan(only_wins.estimates["auc"])
    rounded = np.array([1 + 1e-7, 0.0])
    assert resampled_calibration(rounded, np.ones(2), np.ones(2, bool), np.array([0, 1]), draws) is not None
