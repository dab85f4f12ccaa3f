"""Do percentile intervals of resampled problems cover what they claim? Simulated with a known truth.

200 problems with K outcomes each, success rates drawn from a Beta distribution. The truth of each statistic is the
same statistic of 400,000 problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from lecritique.numerics.statistics.bootstrap import cluster_bootstrap
from lecritique.numerics.statistics.calibration import brier_score, weighted_explained_variance

PROBLEMS, OUTCOMES, LEVEL = 200, 4, 0.95


def simulate(rng: np.random.Generator, problems: int) -> tuple[np.ndarray, ...]:
    """Problem of each row, outcome, and predictions of a clean and a better critic."""
    rate = rng.beta(1.5, 1.5, problems)
    noise = rng.normal(size=(2, problems))
    clean = np.clip(0.5 + 0.3 * (rate - 0.5) + 0.15 * noise[0], 0, 1)
    better = np.clip(rate + 0.10 * noise[1], 0, 1)
    outcome = (rng.random((problems, OUTCOMES)) < rate[:, None]).astype(float).ravel()
    return np.repeat(np.arange(problems), OUTCOMES), outcome, *(np.repeat(p, OUTCOMES) for p in (clean, better))


def statistics(y: np.ndarray, clean: np.ndarray, better: np.ndarray) -> dict[str, Callable[[np.ndarray], float]]:
    return {
        "mean outcome": lambda rows: float(y[rows].mean()),
        "Brier": lambda rows: brier_score(better[rows], y[rows]),
        "EV": lambda rows: weighted_explained_variance(better[rows], y[rows]),
        "EV difference": lambda rows: (
            weighted_explained_variance(better[rows], y[rows]) - weighted_explained_variance(clean[rows], y[rows])
        ),
    }


def covered(trials: int, replicates: int) -> dict[str, int]:
    _, *large = simulate(np.random.default_rng(0), 400_000)
    truth = {name: statistic(np.arange(len(large[0]))) for name, statistic in statistics(*large).items()}
    hits = dict.fromkeys(truth, 0)
    for trial in range(trials):
        problem, *columns = simulate(np.random.default_rng([1, trial]), PROBLEMS)
        found = cluster_bootstrap(statistics(*columns), problem, replicates=replicates, seed=trial)
        for name, interval in found.items():
            hits[name] += interval.low <= truth[name] <= interval.high
    return hits


def assert_covers(trials: int, replicates: int) -> None:
    error = 2 * math.sqrt(LEVEL * (1 - LEVEL) / trials)
    for name, hits in covered(trials, replicates).items():
        assert abs(hits / trials - LEVEL) <= error, f"{name}: {hits} of {trials} intervals cover the truth"


def test_intervals_cover_the_truth() -> None:
    assert_covers(trials=60, replicates=300)


@pytest.mark.slow
def test_intervals_cover_the_truth_at_full_length() -> None:
    assert_covers(trials=500, replicates=2000)


def test_ignoring_that_rows_share_a_problem_would_not_cover() -> None:
    """The check can fail: rows resampled as if independent give intervals that are too narrow."""
    hits, trials = 0, 60
    for trial in range(trials):
        _, y, *_ = simulate(np.random.default_rng([1, trial]), PROBLEMS)
        found = cluster_bootstrap({"mean": lambda rows, y=y: float(y[rows].mean())}, np.arange(len(y)), replicates=300)
        hits += found["mean"].low <= 0.5 <= found["mean"].high
    assert hits / trials < LEVEL - 2 * math.sqrt(LEVEL * (1 - LEVEL) / trials)
