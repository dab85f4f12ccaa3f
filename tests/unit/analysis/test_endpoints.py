"""Endpoints, their intervals, and the summary's schema."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lecritique.analysis.bootstrap import (
    block_length,
    chance_exclusion,
    endpoint_interval,
    finite_mean,
    paired_interval,
)
from lecritique.analysis.read import load_comparison, load_run
from lecritique.analysis.summary import comparison_summary, endpoint, run_summary, write_summary
from tests.unit.analysis.make_runs import make_comparison, make_run, write_metrics


@pytest.mark.parametrize(("recorded", "width"), [(1, 1), (2, 1), (3, 1), (6, 2), (149, 49), (150, 50), (800, 50)])
def test_endpoint_is_the_last_fifty_or_the_last_third(recorded, width):
    values = np.random.default_rng(recorded).normal(size=recorded)
    assert endpoint(values) == pytest.approx(sum(values[-width:]) / width)


def test_endpoint_averages_finite_values_only():
    assert endpoint(np.array([9.0, 9.0, 9.0, 9.0, math.nan, 1.0])) == 1.0
    assert endpoint(np.array([1.0, 1.0, math.nan])) is None
    assert endpoint(np.array([])) is None


def test_identical_arms_differ_by_exactly_zero():
    windows = list(np.random.default_rng(0).normal(size=(4, 50)))
    found = paired_interval(windows, windows)
    assert (found.estimate, found.low, found.high, found.seeds) == (0.0, 0.0, 0.0, 4)


def test_a_planted_shift_is_covered_and_told_from_zero():
    covered = 0
    for trial in range(30):
        rng = np.random.default_rng(trial)
        tasks = rng.normal(0, 0.05, (6, 50))
        a, b = 0.03 + tasks + rng.normal(0, 0.03, (6, 50)), tasks + rng.normal(0, 0.03, (6, 50))
        found = paired_interval(list(a), list(b))
        covered += found.low <= 0.03 <= found.high
        assert found.excludes_zero
    assert 23 <= covered <= 30  # nominal 28.5; six resampled seeds make percentile intervals somewhat narrow


def test_sharing_steps_makes_the_paired_interval_narrower_than_the_unpaired():
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.2, (5, 50))
    a, b = list(shared + 0.01), list(shared + rng.normal(0, 0.01, (5, 50)))
    paired = paired_interval(a, b)
    alone = endpoint_interval(a)
    assert paired.high - paired.low < 0.2 * (alone.high - alone.low)


def test_blocks_keep_the_correlation_of_steps():
    slow = np.repeat(np.random.default_rng(2).normal(size=7), 7)
    shuffled = np.random.default_rng(3).permutation(slow)
    in_order, out_of_order = endpoint_interval([slow]), endpoint_interval([shuffled])
    assert in_order.high - in_order.low > 1.5 * (out_of_order.high - out_of_order.low)
    assert block_length(50) == 7 and block_length(1) == 1


def test_fewer_than_three_seeds_never_claim():
    a, b = [np.full(50, 1.0)] * 2, [np.full(50, 0.0)] * 2
    found = paired_interval(a, b)
    assert found.low > 0 and not found.excludes_zero
    assert paired_interval(a + a[:1], b + b[:1]).excludes_zero


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_stated_share_of_chance_exclusions_is_what_a_simulation_gives(seeds):
    rng = np.random.default_rng(0)
    trials = 150
    found = [endpoint_interval([np.full(2, x) for x in rng.normal(size=seeds)]).excludes_zero for _ in range(trials)]
    stated = chance_exclusion(seeds)
    assert abs(np.mean(found) - stated) < 3 * math.sqrt(stated * (1 - stated) / trials)


def test_intervals_of_next_to_nothing():
    assert paired_interval([], []).seeds == 0
    one = endpoint_interval([np.array([0.5])])
    assert one.estimate == 0.5 and math.isnan(one.low)
    assert endpoint_interval([np.array([math.nan]), np.array([1.0, 3.0])]).estimate == 2.0
    assert math.isfinite(paired_interval([np.arange(50.0)], [np.arange(13.0)]).low)


def test_finite_mean_is_the_mean_of_what_is_finite():
    np.testing.assert_array_equal(finite_mean(np.array([[1, np.nan, 3], [np.nan, np.inf, np.nan]])), [2.0, np.nan])


def test_the_summary_has_the_agreed_schema(tmp_path):
    make_comparison(tmp_path, arms={"mean": {"ev": None}, "tether": {"ev": 0.3, "rho": 0.4}}, seeds=(0, 1), steps=30)
    summary = comparison_summary(load_comparison(tmp_path))
    assert summary["schema"] == 1 and summary["base_reward"] == 0.4
    assert list(summary["arms"]) == ["mean", "tether"]
    for arm in summary["arms"].values():
        assert all(len(arm[key]) == 2 for key in ("reward_last", "explained_variance_last", "rho_last"))
    assert summary["arms"]["mean"]["explained_variance_last"] == [None, None]
    assert summary["arms"]["tether"]["rho_last"][0] == pytest.approx(0.4 * np.mean(1 - 0.95 ** np.arange(21, 31)))
    pairs = {(p["metric"], p["a"], p["b"]): p for p in summary["paired"]}
    assert set(pairs) == {("reward", "mean", "tether"), ("explained_variance", "mean", "tether")}
    rewards = [summary["arms"][arm]["reward_last"] for arm in ("mean", "tether")]
    difference = pairs["reward", "mean", "tether"]["difference"]
    assert difference == pytest.approx(np.mean(np.subtract(*rewards)))
    undefined = pairs["explained_variance", "mean", "tether"]
    assert (undefined["difference"], undefined["low"], undefined["high"]) == (None, None, None)
    assert "block bootstrap over steps inside resampled seeds" in summary["method"]["name"]
    assert summary["method"]["block_steps"] == [block_length(10)]
    written = json.loads(write_summary(tmp_path).read_text())
    assert written == summary


def test_pairs_use_the_seeds_that_both_arms_have(tmp_path):
    make_comparison(tmp_path, arms={"a": {}, "b": {}}, seeds=(0, 1, 2), steps=9)
    (tmp_path / "b" / "seed-1" / "config.json").unlink()
    summary = comparison_summary(load_comparison(tmp_path))
    a, b = (summary["arms"][arm]["reward_last"] for arm in "ab")
    assert b[1] is None and summary["arms"]["b"]["states"][1] == "missing"
    pair = summary["paired"][0]
    assert pair["seeds"] == 2
    assert pair["difference"] == pytest.approx(((a[0] - b[0]) + (a[2] - b[2])) / 2)


def test_the_same_directory_gives_the_same_summary(tmp_path):
    make_comparison(tmp_path, seeds=(0, 1, 2), steps=20)
    assert comparison_summary(load_comparison(tmp_path)) == comparison_summary(load_comparison(tmp_path))


def test_a_run_summary_is_null_without_a_critic(tmp_path):
    path = make_run(tmp_path, steps=3, ev=None)
    write_metrics(path, [{"step": t, "reward": t / 10, "explained_variance": None, "seconds": 2.0} for t in range(6)])
    found = run_summary(load_run(path))
    assert found["reward_last"] == pytest.approx(0.45)
    assert found["explained_variance_last"] is None and found["rho_last"] is None
    assert found["seconds_last"] == 2.0
    json.dumps(found, allow_nan=False)
