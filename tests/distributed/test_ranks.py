"""Two processes that train in shards against one: losses, gradients, checkpoints, publishing, and what goes wrong.

`rank_script.py` does the work once, in processes of its own; here is judged what it saw.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.rank_script", str(folder)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return json.loads((folder / "seen.json").read_text())


def apart(one: float, other: float) -> float:
    """Relative difference."""
    return abs(one - other) / abs(other) if other else abs(one)


def judged(row: dict[str, float], expected: dict[str, float]) -> float:
    """The largest relative difference of loss and gradient norm."""
    return max(apart(row[name], expected[name]) for name in expected if name.endswith(("_loss", "_grad_norm")))


@pytest.mark.parametrize("name", ["dppo", "ppo", "bce"])
def test_one_step_is_that_of_one_process_to_1e_6_and_twenty_to_1e_4(seen, name):
    alone = seen["alone"]["trained"]["float32"][name]
    for rank in seen["ranks"]:
        rows = rank["trained"]["float32"][name]
        assert len(rows) == len(alone) == 20
        assert judged(rows[0], alone[0]) < 1e-6
        assert max(judged(row, expected) for row, expected in zip(rows, alone, strict=True)) < 1e-4
    if name != "bce":
        assert alone[0]["sampler_gap_nats"] < 1e-4, "the trainer reads what was sampled as the sampler did"
    losses = [row["value_loss" if name == "bce" else "policy_loss"] for row in alone]
    assert min(map(abs, losses)) > 1e-3, "losses that are nearly 0 would compare nothing"
    # The same batches come again after four steps, and training has moved the loss on them.
    assert abs(losses[16] - losses[0]) > 0.01


@pytest.mark.parametrize("name", ["dapo", "opsd", "fusion", "mse", "clipped_mse", "lora", "lora ppo"])
def test_every_metric_of_two_steps_in_float64_is_that_of_one_process(seen, name):
    alone = seen["alone"]["trained"]["float64"][name]
    for rank in seen["ranks"]:
        for row, expected in zip(rank["trained"]["float64"][name], alone, strict=True):
            assert row.keys() == expected.keys()
            for metric, value in expected.items():
                assert row[metric] == pytest.approx(value, rel=1e-5, abs=1e-9), metric
            assert judged(row, expected) < 1e-5


def test_some_of_it_kept_step_without_rows(seen):
    assert any(seen["alone"]["idle"]) and not all(seen["alone"]["idle"])


def test_all_processes_say_the_same(seen):
    one, other = seen["ranks"]
    for key in ("trained", "uninterrupted", "two_on_two", "one_on_two", "diverged", "recomputed"):
        assert one[key] == other[key], key


def test_a_checkpoint_of_two_goes_on_unchanged_on_two(seen):
    for rank in seen["ranks"]:
        assert {key: rank["two_on_two"][key] for key in ("policy", "critic")} == rank["uninterrupted"]
        assert rank["two_on_two"]["beside"] == [2, [0, 1, 2]]


@pytest.mark.parametrize("on", ["one", "two"])
def test_a_checkpoint_goes_on_at_another_number_of_processes(seen, on):
    """The losses are equal up to the order of sums; without the moments the second step would be far off."""
    if on == "one":
        expected, found = seen["ranks"][0]["uninterrupted"], seen["alone"]["two_on_one"]
    else:
        expected, found = seen["alone"]["uninterrupted"], seen["ranks"][0]["one_on_two"]
    for role in ("policy", "critic"):
        for row, other in zip(found[role], expected[role], strict=True):
            assert judged(row, other) < 1e-4
    assert found["beside"] == [2, [0, 1, 2]]


def test_a_checkpoint_of_adapters_holds_them_alone_and_goes_on_on_two_and_on_one(seen):
    for shapes, head in zip(seen["alone"]["adapters"], (0, 2), strict=True):
        assert sum("lora_" in name for name in shapes) == len(shapes) - head == 3 * 7 * 2
        assert all(4 in shape for name, shape in shapes.items() if "lora_" in name)
    for rank in seen["ranks"]:
        expected = rank["adapters_uninterrupted"]
        assert {key: rank["adapters_two_on_two"][key] for key in ("policy", "critic")} == expected
        for role in ("policy", "critic"):
            for row, other in zip(seen["alone"]["adapters_two_on_one"][role], expected[role], strict=True):
                assert judged(row, other) < 1e-4


@pytest.mark.parametrize("name", ["bce", "lora"])
def test_values_that_are_scored_in_shards_are_those_of_one_process(seen, name):
    alone = seen["alone"]["values"][name]
    assert len({value for column in alone for value in column}) > 20
    for rank in seen["ranks"]:
        for column, expected in zip(rank["values"][name], alone, strict=True):
            # What is left of float64 behind an RMS norm in float32.
            assert column == pytest.approx(expected, rel=0, abs=1e-6)


def test_bfloat16_is_for_arithmetic_alone(seen):
    for rank in seen["ranks"]:
        for role, loss, full in (("policy", "policy_loss", "dppo"), ("critic", "value_loss", "bce")):
            found = rank["precision"][role]
            assert found["weights"] == found["gradients"] == found["moments"] == ["torch.float32"]
            wide = rank["trained"]["float32"][full][0]
            assert 0 < apart(found["metrics"][loss], wide[loss]) < 0.05
        # A step of 1e-6 moves every weight that has a gradient, where bfloat16 could say almost none of it.
        policy = rank["precision"]["policy"]
        assert policy["moved"] > 0.5 * policy["all"] and policy["moved_in_bfloat16"] < 0.05 * policy["moved"]


def test_each_process_holds_its_part(seen):
    for role in ("policy", "critic"):
        held = [rank["precision"][role]["held"] for rank in seen["ranks"]]
        whole = seen["ranks"][0]["precision"][role]["all"]
        assert sum(held) == whole and max(held) < 0.51 * whole


def test_activations_that_are_computed_again_change_nothing(seen):
    found = seen["ranks"][0]["recomputed"]
    assert found["again"] == found["usual"]
    assert found["outside"] > 0 and found["inside"] == 2 * found["outside"]


def test_a_loss_that_is_not_finite_on_one_process_stops_all_and_moves_nothing(seen):
    for found in (seen["alone"]["diverged"], *(rank["diverged"] for rank in seen["ranks"])):
        assert found["message"].startswith("the policy loss of step 1 is ")
        assert found["same"] and found["version"] == 0


def test_what_is_published_from_shards_is_the_whole(seen):
    first, second = (rank["published"] for rank in seen["ranks"])
    assert first["manifests"] == second["manifests"] and second["opened"] == []
    roles = [(manifest["role"], manifest["version"]) for manifest in first["manifests"]]
    assert roles == [("policy", 0), ("critic", 0), ("policy", 1), ("critic", 1)]
    digests = [manifest["digest"] for manifest in first["manifests"]]
    assert first["opened"] == digests
    assert digests[0] == seen["alone"]["tiny"] and digests[2:] == first["trained"] == second["trained"]
    assert len(set(digests)) == 4


@pytest.mark.parametrize("failing", [0, 1])
def test_a_checkpoint_that_one_process_cannot_write_is_none_on_any(seen, failing):
    for rank in seen["ranks"]:
        found = rank["unsaved"][failing]
        assert "no space left on device" in found["problem"]
        assert found["latest"], "the one before stays the newest"
        assert found["left"] == ["step-00000001", "step-00000003"] and found["third"] == "step-00000003"


def test_what_rank_0_tells_all_hear(seen):
    assert all(rank["told"] == ["", "ä\n" * 1000] for rank in seen["ranks"])
    assert all(rank["largest"] == [1.0, 0.0, -math.inf] for rank in seen["ranks"])
