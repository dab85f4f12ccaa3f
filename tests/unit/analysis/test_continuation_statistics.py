"""Statistics of a continuation study: replicate by replicate what the literal ones give on resampled problems."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lecritique.analysis.continuation_statistics import (
    Items,
    continuation_statistics,
    contrast_by_problem,
    item_statistics,
    mean_intervals,
)
from lecritique.analysis.value_statistics import Resampling
from lecritique.numerics.statistics.bootstrap import cluster_draws, percentile_bounds
from lecritique.numerics.statistics.calibration import (
    continuation_brier,
    expected_calibration_error,
    weighted_explained_variance,
)

REPLICATES = 40
FRACTIONS = (0.2, 0.5, 0.8)


def example(seed: int, *, problems: int = 9, K: int = 4, dropped: int = 5) -> Items:
    rng = np.random.default_rng(seed)
    problem, fraction = (column.ravel() for column in np.meshgrid(range(problems), range(3), indexing="ij"))
    kept = np.sort(rng.permutation(len(problem))[dropped:])
    # Every problem keeps its first prefix, so that the numbers of problems stay as they are.
    kept = np.union1d(kept, np.flatnonzero(fraction == 0))
    rate = rng.random(len(problem))[kept]
    return Items(
        problem_N=problem[kept],
        fraction_N=fraction[kept],
        stratum_N=(problem % 3)[kept],
        outcomes_NK=(rng.random((len(kept), K)) < rate[:, None]).astype(float),
        predictions={"clean": rng.random(len(kept)), "answer": np.clip(rate + rng.normal(0, 0.1, len(kept)), 0, 1)},
    )


def literal(items: Items, critic: str, rows: np.ndarray, of_problem: np.ndarray) -> dict[str, float]:
    """From rows that may repeat; a problem's weight does not change by being drawn twice."""
    p, y = items.predictions[critic][rows], items.outcomes_NK[rows]
    w = 1.0 / of_problem[items.problem_N[rows]]
    mean, brier = y.mean(axis=1), continuation_brier(p, y)
    error = float((w * (p - mean) ** 2).sum() / w.sum())
    return {
        "brier": float((w * brier).sum() / w.sum()),
        "squared_error": error,
        "noise": float((w * brier).sum() / w.sum()) - error,
        "bias": float((w * (p - mean)).sum() / w.sum()),
        "explained_variance": weighted_explained_variance(p, mean, w),
        "calibration_error": expected_calibration_error(p, mean),
    }


@pytest.mark.parametrize("seed", range(3))
def test_every_replicate_is_the_statistic_of_the_drawn_problems(seed: int) -> None:
    items = example(seed)
    draws = Resampling(9, replicates=REPLICATES)
    chosen = np.random.default_rng(seed).random(len(items)) < 0.8
    found = item_statistics(items, "answer", chosen, draws)
    numbers = np.flatnonzero(chosen)
    of_problem = np.bincount(items.problem_N[chosen], minlength=9)
    for name, expected in literal(items, "answer", numbers, of_problem).items():
        assert found.estimates[name] == pytest.approx(expected, abs=1e-12), name
    for r, drawn in enumerate(cluster_draws(9, replicates=REPLICATES)):
        rows = np.concatenate([numbers[items.problem_N[numbers] == c] for c in drawn])
        for name, expected in literal(items, "answer", rows, of_problem).items():
            assert found.replicates[name][r] == pytest.approx(expected, abs=1e-10, nan_ok=True), (name, r)


def test_one_item_by_hand() -> None:
    # .5 against outcomes 1, 1, 1, 0: (.5 - .75)^2 = .0625, and the noise is .75 * .25 = .1875.
    items = Items(
        problem_N=np.array([0]),
        fraction_N=np.array([0]),
        stratum_N=np.array([0]),
        outcomes_NK=np.array([[1.0, 1.0, 1.0, 0.0]]),
        predictions={"clean": np.array([0.5])},
    )
    found = item_statistics(items, "clean", np.array([True]), Resampling(1, replicates=2)).estimates
    assert found["brier"] == 0.25 and found["squared_error"] == 0.0625 and found["noise"] == 0.1875
    assert found["calibration_error"] == 0.25 and found["bias"] == -0.25 and math.isnan(found["explained_variance"])


def test_contrast_by_hand_and_only_of_whole_problems() -> None:
    """Clean errs by .4 everywhere; the other is right at the later two prefixes: C = .16."""
    outcome = np.ones((5, 2))
    items = Items(
        problem_N=np.array([0, 1, 0, 1, 0]),
        fraction_N=np.array([2, 0, 0, 1, 1]),
        stratum_N=np.array([2, 0, 2, 0, 2]),
        outcomes_NK=outcome,
        predictions={"clean": np.full(5, 0.6), "answer": np.array([1.0, 0.6, 0.6, 1.0, 1.0])},
    )
    problems, C_P = contrast_by_problem(items, "answer")
    assert problems.tolist() == [0]
    np.testing.assert_allclose(C_P, [0.16])
    found = continuation_statistics(items, FRACTIONS, Resampling(2, replicates=5))
    assert found["contrasts"]["answer"]["long"]["estimate"] == pytest.approx(0.16)
    assert found["contrasts"]["answer"]["short"] == {"problems": 0, "estimate": None, "low": None, "high": None}
    assert found["gains"]["answer"]["fractions"]["0.8"]["brier"]["estimate"] == pytest.approx(0.16)
    two = continuation_statistics(items, (0.2, 0.5), Resampling(2, replicates=5))
    assert two["contrasts"] == {"answer": None}


def test_gains_are_paired_on_the_same_draws_and_positive_is_better() -> None:
    items = example(7, dropped=0)
    draws = Resampling(9, replicates=REPLICATES)
    found = continuation_statistics(items, FRACTIONS, draws)
    every = np.ones(len(items), dtype=bool)
    clean, answer = (item_statistics(items, name, every, draws) for name in ("clean", "answer"))
    gain = found["gains"]["answer"]["all"]["all"]
    for name, sign in (("brier", 1), ("calibration_error", 1), ("explained_variance", -1)):
        assert gain[name]["estimate"] == pytest.approx(sign * (clean.estimates[name] - answer.estimates[name]))
        low, high = percentile_bounds(sign * (clean.replicates[name] - answer.replicates[name]))
        assert (gain[name]["low"], gain[name]["high"]) == pytest.approx((low, high))
    assert gain["brier"]["estimate"] > 0 and gain["explained_variance"]["estimate"] > 0
    # The noise of the outcomes is the same for every critic.
    assert clean.estimates["noise"] == pytest.approx(answer.estimates["noise"])
    json.dumps(found, allow_nan=False)


def test_outcomes_that_are_no_probabilities_have_no_calibration_error() -> None:
    items = example(1)
    far = Items(
        problem_N=items.problem_N,
        fraction_N=items.fraction_N,
        stratum_N=items.stratum_N,
        outcomes_NK=2.0 * items.outcomes_NK - 1.0,
        predictions={"clean": 3.0 * items.predictions["clean"]},
    )
    found = continuation_statistics(far, FRACTIONS, Resampling(9, replicates=5))["critics"]["clean"]["all"]["all"]
    assert found["calibration_error"]["estimate"] is None and found["brier"]["estimate"] > 0


def test_mean_intervals_leave_out_what_is_not_there() -> None:
    columns = np.array([[1.0, math.nan, math.nan], [3.0, 5.0, math.nan], [8.0, math.nan, math.nan]])
    draws = Resampling(3, replicates=REPLICATES)
    found = mean_intervals(columns, draws)
    assert [one.estimate for one in found[:2]] == [4.0, 5.0] and math.isnan(found[2].estimate)
    replicates = [columns[drawn, 0].mean() for drawn in cluster_draws(3, replicates=REPLICATES)]
    assert (found[0].low, found[0].high) == pytest.approx(percentile_bounds(replicates))
    assert math.isnan(found[1].low) and found[1].units == 1
