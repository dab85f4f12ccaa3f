"""Score norms by outcome and the constant baseline of least gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lecritique.analysis.score_norms import score_norm_statistics
from lecritique.analysis.value_statistics import Resampling
from lecritique.numerics.baselines import optimal_constant_baseline
from lecritique.numerics.statistics.bootstrap import cluster_draws, percentile_bounds

REPLICATES = 50


def test_by_hand() -> None:
    # Two successes with |s|^2 = 1, two failures with 9: b* = 2 / 20, and the mean return .5 leaves 5 / 2 of none.
    found = score_norm_statistics(
        np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 9.0, 1.0, 9.0]), np.array([0, 0, 1, 1]),
        Resampling(2, replicates=5), middle=0.5,
    )  # fmt: skip
    estimates = {name: entry["estimate"] for name, entry in found.items() if name != "trajectories"}
    assert estimates == pytest.approx(
        {"high": 1, "low": 9, "optimal_constant": 0.1, "size_at_optimum": 0.9, "mean_return": 0.5, "size_at_mean": 2.5}
    )
    assert found["trajectories"] == {"high": 2, "low": 2}


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_least_and_every_replicate_is_of_the_drawn_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    returns, norms, problem = rng.random(40), rng.gamma(0.5, size=40), np.repeat(np.arange(8), 5)

    def size(b: float, rows: np.ndarray) -> float:
        return float(((returns[rows] - b) ** 2 * norms[rows]).sum() / (returns[rows] ** 2 * norms[rows]).sum())

    def best(rows: np.ndarray) -> float:
        found = optimal_constant_baseline(torch.from_numpy(returns[rows]), torch.from_numpy(norms[rows]))
        assert found is not None
        return found

    found = score_norm_statistics(returns, norms, problem, Resampling(8, replicates=REPLICATES), middle=0.5)
    every = np.arange(40)
    b = found["optimal_constant"]["estimate"]
    assert b == pytest.approx(best(every))
    assert size(b, every) < min(size(b - 1e-3, every), size(b + 1e-3, every))
    assert found["size_at_optimum"]["estimate"] == pytest.approx(size(b, every))
    assert found["size_at_mean"]["estimate"] == pytest.approx(size(returns.mean(), every))
    drawn = [np.concatenate([np.flatnonzero(problem == c) for c in d]) for d in cluster_draws(8, replicates=REPLICATES)]
    for name, of in (
        ("optimal_constant", best),
        ("size_at_optimum", lambda rows: size(best(rows), rows)),
        ("size_at_mean", lambda rows: size(returns[rows].mean(), rows)),
        ("high", lambda rows: norms[rows][returns[rows] > 0.5].mean()),
    ):
        expected = percentile_bounds([of(rows) for rows in drawn])
        assert (found[name]["low"], found[name]["high"]) == pytest.approx(expected), name


def test_what_is_undefined_is_null() -> None:
    found = score_norm_statistics(np.zeros(4), np.ones(4), np.arange(4), Resampling(4, replicates=5), middle=0.5)
    assert found["high"]["estimate"] is None and found["size_at_mean"]["estimate"] is None
    assert found["low"]["estimate"] == 1 and found["optimal_constant"]["estimate"] == 0
