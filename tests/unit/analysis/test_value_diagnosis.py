"""Diagnoses of saved rollouts: hand examples, subsets, pairing by problem, and whatever a directory may hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from lecritique.analysis.value_diagnosis import Settings, diagnose_values
from lecritique.analysis.value_page import headline, values_html
from lecritique.analysis.value_tokens import others_mean
from lecritique.cli.diagnose import diagnose
from lecritique.core.errors import ConfigurationError, DataError
from tests.unit.analysis.make_runs import make_comparison, make_run, write_parquet

app = typer.Typer()
app.add_typer(diagnose, name="diagnose")
HOSTILE = "</script><script>alert(1)</script>"


def saved(row, member, reward, values, *, task="t", targets=None, turns=None, **more):
    T = len(values)
    return {
        "step": 1, "row": row, "attempt": 0, "member": member, "segment_index": 0, "task_id": f"{task}/{row}",
        "prompt": "p", "status": "ok", "estimator": "value", "reward": reward, "token_text": ["?"] + ["a"] * T,
        "action_mask": [False] + [True] * T, "turn_index": [0] + (turns or [0] * T), "values": [9.0, *values],
        "value_targets": [9.0, *([reward] * T if targets is None else targets)],
    } | more  # fmt: skip


def run_of(path, rows, **run):
    make_run(path, steps=3, save_every=99, **run)
    write_parquet(path / "rollouts" / "step-00001.parquet", rows)
    return path


def pooled(found, critic="critic", arm="value"):
    return found["arms"][arm]["critics"][critic]["pooled"]["all"]


HAND = [
    saved(0, 0, 1.0, [0.5, 0.8], turns=[0, 1]),
    saved(0, 1, 0.0, [0.5, 0.2], turns=[0, 1]),
    saved(1, 0, 1.0, [0.5, 0.8], turns=[0, 1]),
    saved(1, 1, 0.0, [0.5, 0.2], turns=[0, 1]),
]


@pytest.fixture
def hand(tmp_path):
    return diagnose_values(run_of(tmp_path, HAND), Settings(replicates=50))


def test_the_hand_example_pooled(hand):
    # Errors: 0.5, 0.5, 0.2, 0.2 in size; targets 1 and 0 with variance 1/4.
    assert pooled(hand)["mse"]["estimate"] == pytest.approx((0.25 + 0.04) / 2, abs=1e-7)
    assert pooled(hand)["explained_variance"]["estimate"] == pytest.approx(1 - 0.145 / 0.25, abs=1e-6)
    assert pooled(hand)["bias"]["estimate"] == pytest.approx(0, abs=1e-7)
    assert (pooled(hand)["tokens"], pooled(hand)["problems"], hand["problems"]) == (8, 2, 2)
    calibration = hand["arms"]["value"]["critics"]["critic"]["calibration"]
    # Successes are at .5, .8, .5, .8, failures at .5, .2, .5, .2: of 16 pairs 12 are won and 4 tied.
    assert calibration["auc"]["estimate"] == pytest.approx(14 / 16)
    assert calibration["calibration_error"]["estimate"] == pytest.approx((0.2 * 2 + 0.2 * 2) / 8, abs=1e-6)


def test_the_leave_one_out_baseline_of_a_group_of_two_is_the_other_reward(hand):
    # Baselines are 0 for a success and 1 for a failure: the error is 1 or -1.
    loo = pooled(hand, "leave_one_out")
    assert loo["explained_variance"]["estimate"] == pytest.approx(1 - 1 / 0.25)
    gap = hand["arms"]["value"]["critic_minus_leave_one_out"]["pooled"]["all"]["explained_variance"]
    assert gap["estimate"] == pytest.approx(1 - 0.145 / 0.25 + 3, abs=1e-6)


def test_subsets(hand):
    critic = hand["arms"]["value"]["critics"]["critic"]
    assert critic["turn"]["0"]["explained_variance"]["estimate"] == pytest.approx(0)
    assert critic["turn"]["1"]["explained_variance"]["estimate"] == pytest.approx(1 - 0.04 / 0.25, abs=1e-6)
    # Two tokens stand in bins 2 and 7 of ten.
    assert critic["position"]["2"]["tokens"] == 4 and critic["position"]["7"]["tokens"] == 4
    assert critic["position"]["7"]["mse"]["estimate"] == pytest.approx(0.04, abs=1e-7)
    assert critic["position"]["0"]["mse"]["estimate"] is None
    correct = critic["correctness"]["correct"]
    assert correct["bias"]["estimate"] == pytest.approx(-0.35, abs=1e-7)
    assert correct["explained_variance"]["estimate"] is None
    assert sum(entry["tokens"] for entry in critic["length"].values()) == 8


def test_the_record_is_json_without_nan_and_the_page_stands(hand):
    json.dumps(hand, allow_nan=False)
    page = values_html(hand)
    assert "http" not in page.replace("http-equiv", "") and "<svg" in page
    assert headline(hand) == "The critic of value explains 0.420 of the variance of its targets"


def test_others_mean_leaves_out_the_member_and_what_failed():
    assert others_mean([1.0, 0.0, math.nan, 0.5]).tolist() == pytest.approx([0.25, 0.75, 0.5, 0.5])
    assert math.isnan(others_mean([1.0])[0])


def test_arms_are_paired_on_problems_that_agree(tmp_path):
    make_comparison(tmp_path, seeds=(0,), steps=3, save_every=99, arms={"value": {}, "pvf": {}, "mean": {"ev": None}})
    rows = [*HAND, saved(2, 0, 1.0, [0.1, 0.1], task="mine"), saved(2, 1, 0.0, [0.1, 0.1], task="mine")]
    better = [saved(r, m, 1.0 - m, [0.9 - 0.8 * m] * 2) for r in (0, 1) for m in (0, 1)]
    better += [saved(2, m, 1.0 - m, [0.5, 0.5], task="other") for m in (0, 1)]
    for arm, content in (("value", rows), ("pvf", better), ("mean", [{**row, "values": None} for row in HAND])):
        write_parquet(tmp_path / arm / "seed-0" / "rollouts" / "step-00001.parquet", content)
    found = diagnose_values(tmp_path, Settings(replicates=50))
    assert found["problems"] == 4
    assert set(found["arms"]["mean"]["critics"]) == {"leave_one_out"}
    assert found["arms"]["mean"]["critic_minus_leave_one_out"] is None
    (pair,) = found["paired"]
    assert (pair["a"], pair["b"], pair["problems"]) == ("value", "pvf", 2)
    gap = pair["differences"]["explained_variance"]["estimate"]
    assert gap == pytest.approx((1 - 0.145 / 0.25) - (1 - 0.01 / 0.25), abs=1e-6)
    assert "auc" in pair["differences"]
    values_html(found)


def test_a_row_with_another_prompt_is_another_problem(tmp_path):
    rows = [*HAND, saved(0, 0, 1.0, [0.5], prompt="q", step=2), saved(0, 1, 0.0, [0.5], prompt="q", step=2)]
    assert diagnose_values(run_of(tmp_path, rows), Settings(replicates=5))["problems"] == 3


def test_segments_of_an_episode_are_one_response(tmp_path):
    split = [saved(0, 0, 1.0, [0.5]), saved(0, 0, 1.0, [0.8], segment_index=1), saved(0, 1, 0.0, [0.5, 0.2])]
    found = diagnose_values(run_of(tmp_path, split), Settings(replicates=5))["arms"]["value"]
    assert found["rollouts"] == 2
    assert found["critics"]["critic"]["position"]["7"]["tokens"] == 2


def test_failed_rollouts_and_values_that_are_no_numbers_are_left_out(tmp_path):
    rows = [
        *HAND,
        saved(5, 0, None, [0.5]),
        saved(6, 0, math.inf, [0.5]),
        saved(7, 0, 1.0, [math.nan, 0.5]),
        saved(8, 0, 1.0, [0.5, 0.5], targets=[math.nan, 1.0]),
    ]
    found = diagnose_values(run_of(tmp_path, rows), Settings(replicates=5))
    entry = found["arms"]["value"]
    assert (entry["tokens"], entry["tokens_left_out"], pooled(found)["tokens"]) == (11, 1, 10)
    assert pooled(found, "leave_one_out")["tokens"] == 8


def test_rewards_beyond_one_have_no_calibration(tmp_path):
    found = diagnose_values(run_of(tmp_path, [*HAND, saved(3, 0, 5.0, [4.0])]), Settings(replicates=5))
    critic = found["arms"]["value"]["critics"]["critic"]
    assert critic["calibration"] is None and critic["reliability"] is None
    assert pooled(found)["mse"]["estimate"] is not None
    values_html(found)


def test_what_counts_as_correct_is_an_option(tmp_path):
    path = run_of(tmp_path, [saved(r, m, 0.4 + 0.2 * m, [0.5]) for r in range(3) for m in (0, 1)])
    none = diagnose_values(path, Settings(replicates=5))["arms"]["value"]["critics"]["critic"]
    assert none["correctness"]["correct"]["tokens"] == 0 and none["calibration"]["auc"]["estimate"] is None
    half = diagnose_values(path, Settings(replicates=5, correct_from=0.5))["arms"]["value"]["critics"]["critic"]
    assert half["correctness"]["correct"]["tokens"] == 3 and half["calibration"]["auc"]["estimate"] == 0.5
    with pytest.raises(ConfigurationError, match="nan"):
        diagnose_values(path, Settings(correct_from=math.nan))


def test_a_damaged_file_is_named_and_the_rest_counts(tmp_path):
    path = run_of(tmp_path, HAND)
    (path / "rollouts" / "step-00002.parquet").write_bytes(b"PAR1 not really")
    found = diagnose_values(path, Settings(replicates=5, every_step=True))
    assert len(found["cautions"]) == 1 and "step-00002.parquet" in found["cautions"][0]
    assert pooled(found)["tokens"] == 8


def test_nothing_saved_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="no saved rollout with a reward"):
        diagnose_values(make_run(tmp_path / "run", steps=3, save_every=99))
    with pytest.raises(DataError, match="neither"):
        diagnose_values(tmp_path)


def test_hostile_names_do_not_reach_the_page_as_markup(tmp_path):
    rows = [{**row, "task_id": HOSTILE, "prompt": HOSTILE} for row in HAND]
    found = diagnose_values(run_of(tmp_path, rows), Settings(replicates=5))
    found["recipe"] = HOSTILE
    found["arms"][HOSTILE] = found["arms"].pop("value")
    found["cautions"] = [HOSTILE]
    assert "alert(1)</script>" not in values_html(found)


def test_the_command_writes_page_and_json(tmp_path):
    path = run_of(tmp_path / "run", HAND)
    done = CliRunner().invoke(app, ["diagnose", "values", str(path), "--out", str(tmp_path / "new" / "v.html")])
    assert done.exit_code == 0, done.output
    assert "leave-one-out" in done.output and "v.json" in done.output
    assert json.loads((tmp_path / "new" / "v.json").read_text())["schema"] == 1
    assert (tmp_path / "new" / "v.html").read_text().startswith("<!doctype html>")
    refused = CliRunner().invoke(app, ["diagnose", "values", str(tmp_path / "absent")])
    assert isinstance(refused.exception, ConfigurationError)
    clash = CliRunner().invoke(app, ["diagnose", "values", str(path), "--out", str(tmp_path / "v.json")])
    assert isinstance(clash.exception, ConfigurationError)


def test_many_rollouts_are_read_by_columns(tmp_path):
    rng = np.random.default_rng(0)
    rows = [saved(r, m, float(rng.random() < 0.5), rng.random(32).tolist()) for r in range(250) for m in range(4)]
    found = diagnose_values(run_of(tmp_path, rows), Settings(replicates=200))
    assert pooled(found)["tokens"] == 32_000 and found["problems"] == 250
