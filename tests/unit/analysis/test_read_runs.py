"""Reading run directories: what is forgiven, and what is refused with file and line."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lecritique.analysis.read import load_comparison, load_run
from lecritique.analysis.saved_rollouts import read_rollouts
from lecritique.core.errors import DataError
from tests.unit.analysis.make_runs import make_comparison, make_rollouts, make_run, write_metrics, write_parquet


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path / "run", steps=3, save_every=2)


def test_null_and_absent_become_nan_and_arrays_align(run_dir):
    rows = [{"step": 0, "reward": 0.5, "rho": None}, {"step": 2, "reward": 1}, {"step": 5, "rho": 0.25}]
    write_metrics(run_dir, rows)
    run = load_run(run_dir)
    assert run.steps.tolist() == [0, 2, 5]
    np.testing.assert_array_equal(run.metrics["reward"], [0.5, 1.0, np.nan])
    np.testing.assert_array_equal(run.metrics["rho"], [np.nan, np.nan, 0.25])
    np.testing.assert_array_equal(run.series("never_written"), [np.nan] * 3)


def test_a_resumed_run_keeps_the_last_row_of_a_step(run_dir):
    rows = [{"step": 0, "resume": 0, "reward": 0.1}, {"step": 1, "resume": 0, "reward": 0.2}]
    rows += [{"step": 1, "resume": 1, "reward": 0.7}, {"step": 2, "resume": 1, "reward": 0.8}]
    write_metrics(run_dir, rows)
    assert load_run(run_dir).series("reward").tolist() == [0.1, 0.7, 0.8]


def test_what_a_resume_has_not_done_again_yet_is_superseded_too(run_dir):
    """Ten steps, resumed from the fourth, killed, resumed from the third, which is all that is done by now."""
    rows = [{"step": step, "resume": 0, "reward": 0.1} for step in range(10)]
    rows += [{"step": step, "resume": 1, "reward": 0.2} for step in (4, 5)]
    rows += [{"step": 3, "resume": 3, "reward": 0.3}]
    for count, expected in (
        (10, [0.1] * 10),
        (11, [0.1] * 4 + [0.2]),
        (12, [0.1] * 4 + [0.2] * 2),
        (13, [0.1] * 3 + [0.3]),
    ):
        write_metrics(run_dir, rows[:count])
        assert load_run(run_dir).series("reward").tolist() == expected


@pytest.mark.parametrize(
    "tail", ['{"step": 2, "rew', '{"step": 2, "reward": 0.', '{"step": 2, "a": "\\ud83d', "{", "\n\n"]
)
def test_a_half_written_last_line_is_ignored(run_dir, tail):
    write_metrics(run_dir, [{"step": 0, "reward": 0.5}, {"step": 1, "reward": 0.6}])
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(tail.encode()[:-1] if tail.endswith("d") else tail.encode())
    assert load_run(run_dir).series("reward").tolist() == [0.5, 0.6]


def test_a_torn_line_is_forgiven_before_a_resume_only(run_dir):
    torn = '{"step": 0, "resume": 0, "reward": 0.5}\n{"step": 1, "resu\n{"step": 1, "resume": %d, "reward": 0.6}\n'
    (run_dir / "metrics.jsonl").write_text(torn % 1)
    assert load_run(run_dir).series("reward").tolist() == [0.5, 0.6]
    (run_dir / "metrics.jsonl").write_text(torn % 0)
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: not JSON"):
        load_run(run_dir)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1, 2]", "expected a JSON object"),
        ("7", "expected a JSON object"),
        ('{"reward": 1}', "step is None"),
        ('{"step": -1}', "step is -1"),
        ('{"step": 1e3}', "step is 1000.0"),
        ('{"step": true}', "step is True"),
        ('{"step": 99999999999999999999}', "expected an integer"),
        ('{"step": 1, "reward": "high"}', "reward is 'high'"),
        ('{"step": 1, "reward": [1]}', "reward is"),
        ('{"step": 1, "reward": 1' + "0" * 400 + "}", "reward is 1000"),
    ],
)
def test_a_hostile_line_is_named_by_file_and_line(run_dir, line, said):
    (run_dir / "metrics.jsonl").write_text('{"step": 0, "reward": 0.5}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2") as caught:
        load_run(run_dir)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_deep_nesting_and_binary_junk_are_refused_not_crashed_on(run_dir):
    for junk in (b"[" * 200_000, b"\xff\xfe\x00", b"\x80" * 50):
        (run_dir / "metrics.jsonl").write_bytes(junk + b'\n{"step": 0}\n')
        with pytest.raises(DataError, match="line 1"):
            load_run(run_dir)


def test_a_damaged_config_or_status_is_named_with_its_line(run_dir):
    (run_dir / "status.json").write_text('{\n"state": \n')
    with pytest.raises(DataError, match=r"status\.json, line \d: not JSON"):
        load_run(run_dir)
    (run_dir / "status.json").unlink()
    assert load_run(run_dir).state == "unknown"
    (run_dir / "config.json").write_text("[]")
    with pytest.raises(DataError, match=r"config\.json, line 1: expected a JSON object"):
        load_run(run_dir)
    (run_dir / "config.json").write_text('{"run": [], "estimator": 3}')
    assert load_run(run_dir).arm == "run"


def test_a_run_that_has_just_started_loads(tmp_path):
    run = load_run(make_run(tmp_path, steps=0, planned=50, state="running"))
    assert (len(run.steps), run.state, run.planned_steps, run.rollout_files) == (0, "running", 50, ())
    (tmp_path / "metrics.jsonl").unlink()
    assert len(load_run(tmp_path).steps) == 0


def test_a_directory_that_is_neither_is_refused(tmp_path):
    for load in (load_run, load_comparison):
        with pytest.raises(DataError, match=r"config\.json"):
            load(tmp_path / "nowhere")


def test_a_run_is_a_comparison_of_one_arm(run_dir):
    comparison = load_comparison(run_dir)
    assert (comparison.arms, comparison.seeds, comparison.single) == (("value",), (0,), True)
    with pytest.raises(FrozenInstanceError):
        comparison.recipe = "other"


def test_missing_arms_and_seeds_are_absent_not_errors(tmp_path):
    make_comparison(tmp_path, arms={"mean": {}, "pvf": {}}, seeds=(0, 1), steps=4)
    (tmp_path / "pvf" / "seed-1" / "config.json").unlink()
    comparison = load_comparison(tmp_path)
    assert [run is not None for run in comparison.runs_of("pvf")] == [True, False]
    assert comparison.runs["pvf", 0].arm == "pvf"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema is 2, expected 1"),
        ({"arms": []}, "non-empty list of names"),
        ({"arms": ["../../etc"]}, "not a plain directory name"),
        ({"arms": ["a", "a"]}, "twice"),
        ({"seeds": ["0"]}, "list of integers"),
        ({"base_reward": "much"}, "base_reward is 'much'"),
    ],
)
def test_a_hostile_comparison_file_is_refused(tmp_path, change, said):
    make_comparison(tmp_path, arms={"mean": {}}, seeds=(0,), steps=2)
    file = tmp_path / "compare.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(DataError, match=r"compare\.json") as caught:
        load_comparison(tmp_path)
    assert said in str(caught.value)


def test_saved_rollouts_round_trip_with_null_columns(tmp_path):
    rng = np.random.default_rng(0)
    rows = make_rollouts(rng, step=5, arm="a", ev=None, rollouts=2) + make_rollouts(rng, step=5, arm="a", ev=0.5)
    write_parquet(tmp_path / "step-00005.parquet", rows)
    table = read_rollouts(tmp_path / "step-00005.parquet")
    values = table.per_token("values")
    for index, row in enumerate(rows):
        assert (values[index] is None) == (row["values"] is None)
        if row["values"] is not None:
            np.testing.assert_allclose(values[index], row["values"], rtol=1e-6)
            np.testing.assert_allclose(table.rollout(index).values, row["values"], rtol=1e-6)
        assert table.rollout(index).token_text == tuple(row["token_text"])
        assert table.rollout(index).action_mask.tolist() == row["action_mask"]


def test_damaged_rollout_files_are_data_errors(tmp_path):
    torn = tmp_path / "step-00001.parquet"
    torn.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"step-00001\.parquet: not a readable Parquet file"):
        read_rollouts(torn)
    pq.write_table(pa.table({"step": [1]}), torn)
    with pytest.raises(DataError, match="no column row"):
        read_rollouts(torn)
    rows = make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=0.5, rollouts=3)
    rows[1]["advantages"] = rows[1]["advantages"][:-1]
    write_parquet(torn, rows)
    with pytest.raises(DataError, match="row 1: advantages has"):
        read_rollouts(torn)


def test_late_files_are_those_of_the_last_third(tmp_path):
    run = load_run(make_run(tmp_path, steps=90, save_every=10))
    assert [f.stem for f in run.late_rollout_files()] == ["step-00060", "step-00070", "step-00080", "step-00090"]
    run = load_run(make_run(tmp_path / "rare", steps=90, save_every=50))
    assert [f.stem for f in run.late_rollout_files()] == ["step-00050"]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("row", pa.array(["1"])),
        ("step", pa.array([None], type=pa.int64())),
        ("member", pa.array([math.nan])),
        ("value_version", pa.array([math.nan])),
        ("reward", pa.array(["much"])),
        ("rho", pa.array([[0.5]])),
        ("context", pa.array([b"\xff"])),
        ("prompt", pa.array([5])),
        ("values", pa.array([["high"] * 2])),
        ("turn_index", pa.array([[math.inf] * 2])),
        ("token_text", pa.array([[b"\xff"] * 2])),
    ],
)
def test_a_column_of_another_kind_is_refused_by_name(tmp_path, name, column):
    file = tmp_path / "step-000000.parquet"
    write_parquet(file, [_row(token_text=["a", "b"], action_mask=[True, True], turn_index=[0, 0])])
    assert len(read_rollouts(file)) == 1
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), file)
    with pytest.raises(DataError, match=f"column {name} "):
        read_rollouts(file)


def test_text_that_is_not_utf8_is_a_data_error(tmp_path):
    file = tmp_path / "step-000000.parquet"
    write_parquet(file, [_row(token_text=["a"], action_mask=[True], turn_index=[0])])
    table = pq.read_table(file)
    text = pa.StringArray.from_buffers(1, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe"))
    pq.write_table(table.set_column(table.column_names.index("prompt"), "prompt", text), file)
    with pytest.raises(DataError, match="utf-8"):
        read_rollouts(file).rollout(0)


def _row(**columns):
    return {"step": 0, "row": 1, "attempt": 0, "member": 0, "segment_index": 0, **columns}
