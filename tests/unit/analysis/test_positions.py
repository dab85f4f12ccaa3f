"""Explained variance by position, against a literal loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lecritique.analysis.positions import TURNS, position_bins, value_fit_by_place, value_fit_by_position
from lecritique.analysis.saved_rollouts import read_rollouts
from tests.unit.analysis.make_runs import make_rollouts, write_parquet


def literal_loop(files_of_rows):
    """EV of each tenth, one token at a time; segments of an episode are one response."""
    pooled = [[] for _ in range(10)]
    for rows in files_of_rows:
        episodes = {}
        for row in rows:
            episodes.setdefault((row["step"], row["row"], row["attempt"], row["member"]), []).append(row)
        for segments in episodes.values():
            segments = sorted(segments, key=lambda row: row["segment_index"])
            if any(row["values"] is None for row in segments):
                continue
            actions = []
            for row in segments:
                columns = zip(row["action_mask"], row["values"], row["value_targets"], strict=True)
                actions += [(value, target) for act, value, target in columns if act]
            for i, pair in enumerate(actions):
                if all(math.isfinite(x) for x in pair):
                    pooled[min(9, int(10 * (i + 0.5) / len(actions)))].append(pair)
    found = []
    for pairs in pooled:
        V, G = np.array([v for v, _ in pairs]), np.array([g for _, g in pairs])
        found.append(1 - np.var(G - V) / np.var(G) if len(pairs) and np.var(G) > 1e-12 else math.nan)
    return found


def ragged_rows(rng, step, episodes=14):
    rows = []
    for episode in range(episodes):
        reward = float(rng.random() < 0.5)
        for segment in reversed(range(int(rng.integers(1, 4)))):
            T = int(rng.integers(1, 25))
            mask = rng.random(T) < 0.6
            mask[0] = False
            noise = np.where(mask, rng.normal(0, 0.3, T), 1e6)
            values = (0.5 + 0.4 * (reward - 0.5) + noise).astype(np.float32).astype(float)
            if episode == 3:
                values[mask] = math.nan
            row = make_rollouts(rng, step=step, arm="a", ev=0.1, rollouts=1)[0]
            row |= {"row": episode, "member": 0, "segment_index": segment, "token_text": ["t"] * T}
            row |= {"token_ids": [1] * T, "action_mask": mask.tolist(), "turn_index": [0] * T}
            row |= {"sampler_logprobs": [0.0] * T, "advantages": [0.0] * T, "value_targets": [reward] * T}
            row["values"] = None if episode == 5 else values.tolist()
            rows.append(row)
    return rows


def test_bins_are_tenths_of_i_plus_a_half():
    assert position_bins(10).tolist() == list(range(10))
    assert position_bins(1).tolist() == [5]
    assert position_bins(5).tolist() == [1, 3, 5, 7, 9]
    for T in range(1, 200):
        exact = [int(10 * (2 * i + 1) // (2 * T)) for i in range(T)]
        assert position_bins(T).tolist() == exact
    assert len(position_bins(0)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_pooled_fit_equals_a_literal_loop(tmp_path, seed):
    rng = np.random.default_rng(seed)
    files = [ragged_rows(rng, step) for step in (10, 20)]
    for index, rows in enumerate(files):
        write_parquet(tmp_path / f"step-{index:05d}.parquet", rows)
    tables = [read_rollouts(tmp_path / f"step-{index:05d}.parquet") for index in range(2)]
    found = [fit.value() for fit in value_fit_by_position(tables)]
    expected = literal_loop(files)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert np.isfinite(expected).sum() >= 8


def test_an_arm_without_values_has_no_fit(tmp_path):
    write_parquet(tmp_path / "step-00001.parquet", make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=None))
    fits = value_fit_by_position([read_rollouts(tmp_path / "step-00001.parquet")])
    assert all(math.isnan(fit.value()) for fit in fits)


def test_turns_are_pooled_over_episodes_and_late_ones_share_the_last(tmp_path):
    rng = np.random.default_rng(1)
    rows = ragged_rows(rng, 10, episodes=30)
    for row in rows:
        turn = rng.integers(0, TURNS + 3, len(row["turn_index"]))
        row["turn_index"] = turn.tolist()
    write_parquet(tmp_path / "step-00010.parquet", rows)
    found = value_fit_by_place([read_rollouts(tmp_path / "step-00010.parquet")])
    broken = {row["row"] for row in rows if row["values"] is None}
    pooled = [[] for _ in range(TURNS)]
    for row in rows:
        if row["row"] in broken:
            continue
        columns = zip(row["action_mask"], row["turn_index"], row["values"], row["value_targets"], strict=True)
        for act, turn, value, target in columns:
            if act and math.isfinite(value):
                pooled[min(turn, TURNS - 1)].append((value, target))
    expected = []
    for pairs in pooled:
        V, G = np.array(pairs).T
        expected.append(1 - np.var(G - V) / np.var(G) if np.var(G) > 1e-12 else math.nan)
    np.testing.assert_allclose([fit.value() for fit in found.turns], expected, rtol=1e-9)
    assert found.positions == value_fit_by_position([read_rollouts(tmp_path / "step-00010.parquet")])


def test_turns_end_with_the_last_that_was_played(tmp_path):
    write_parquet(tmp_path / "step-00001.parquet", make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=0.5))
    assert len(value_fit_by_place([read_rollouts(tmp_path / "step-00001.parquet")]).turns) == 2
    assert value_fit_by_place([]).turns == ()
