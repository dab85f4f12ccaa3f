"""Saved rollouts by filter, order and page; and what a file that is none does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lecritique.analysis.saved_rollouts import read_rollouts, read_rows
from lecritique.core.errors import DataError
from lecritique.viewing.sources import find_runs
from lecritique.viewing.trajectories import Filter, Trajectories, indexed
from tests.unit.analysis.make_runs import make_comparison, make_rollouts, make_run, write_parquet


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return make_comparison(
        tmp_path_factory.mktemp("cmp"), arms={"pvf": {"ev": 0.5}, "mean": {"ev": None}}, seeds=(0, 1), steps=40
    )


def listed(directory, order="advantage", page=0, size=25, **wanted):
    sources = find_runs(directory).runs.values()
    found = Trajectories().listed(sources, Filter(**wanted), order=order, page=page, size=size, budget_seconds=60)
    assert found["unread"] == 0
    return found


def every_row(directory):
    """The rows of every file, by the reader that reports use."""
    for source in find_runs(directory).runs.values():
        for file in sorted((source.path / "rollouts").glob("*.parquet")):
            table = read_rollouts(file)
            for index in range(len(table)):
                yield source, table.rollout(index)


def largest(rollout):
    return max(abs(rollout.advantages[rollout.action_mask]))


def test_the_largest_advantage_comes_first_and_pages_hold_every_row_once(comparison):
    pages = [listed(comparison, page=page, size=37)["rows"] for page in range(8)]
    rows = [row for page in pages for row in page]
    assert [len(page) for page in pages] == [37] * 6 + [256 - 6 * 37, 0]
    assert len({(row["run"], row["step"], row["index"]) for row in rows}) == 256
    sizes = [row["advantage"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sorted(sizes) == pytest.approx(sorted(largest(rollout) for _, rollout in every_row(comparison)))


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        ({"arm": "pvf"}, lambda s, r: s.arm == "pvf"),
        ({"seed": 1}, lambda s, r: s.seed == 1),
        ({"run": "mean/seed-0"}, lambda s, r: s.key == "mean/seed-0"),
        ({"least_reward": 0.5}, lambda s, r: r.reward >= 0.5),
        ({"most_reward": 0.5, "least_step": 21}, lambda s, r: r.reward <= 0.5 and r.step >= 21),
        ({"most_step": 20}, lambda s, r: r.step <= 20),
        ({"status": "ok"}, lambda s, r: r.status == "ok"),
        ({"status": "truncated"}, lambda s, r: False),
        ({"text": "SUDOKU4/3"}, lambda s, r: r.task_id == "sudoku4/3"),
        ({"text": "2.1"}, lambda s, r: "2.1" in r.prompt),
        ({"text": "|user|>\n"}, lambda s, r: True),
        ({"text": ".*"}, lambda s, r: ".*" in r.prompt),
    ],
)
def test_a_filter_lets_through_what_a_reader_of_all_rows_would(comparison, wanted, passes):
    expected = [(s.key, r.step, r.row, r.member) for s, r in every_row(comparison) if passes(s, r)]
    found = listed(comparison, size=500, **wanted)
    ids = [(row["run"], row["step"], *map(int, row["id"].split(".")[::2])) for row in found["rows"]]
    assert sorted(ids) == sorted(expected) and found["total"] == len(expected)


def test_the_other_orders(comparison):
    assert listed(comparison, "newest", size=1)["rows"][0]["step"] == 40
    assert listed(comparison, "oldest", size=1)["rows"][0]["step"] == 20
    assert listed(comparison, "reward", size=1)["rows"][0]["reward"] == 1.0
    assert listed(comparison, "lowest_reward", size=1)["rows"][0]["reward"] == 0.0
    tokens = [row["tokens"] for row in listed(comparison, "longest", size=500)["rows"]]
    assert tokens[0] == max(tokens) and set(tokens) == {17}


def test_rows_without_numbers_come_last_and_pass_no_bound(tmp_path):
    rows = make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=0.5, rollouts=4)
    failed = dict.fromkeys(("reward", "advantages", "token_text", "action_mask", "turn_index", "sampler_logprobs"))
    failed |= dict.fromkeys(("token_ids", "values", "value_targets")) | {"status": "engine"}
    rows[1] |= failed
    path = make_run(tmp_path, steps=2)
    write_parquet(path / "rollouts" / "step-00001.parquet", rows)
    found = listed(path)
    assert [row["status"] for row in found["rows"]][-1] == "engine" and found["total"] == 4
    assert found["rows"][-1]["advantage"] is None and found["rows"][-1]["tokens"] == 0
    assert listed(path, least_reward=-1e9)["total"] == 3
    assert found["statuses"] == ["engine", "ok"]
    (source,) = find_runs(path).runs.values()
    one, group, members = Trajectories().opened(source, 1, 1)
    assert one.token_text == () and members == 4 and [index for index, _ in group] == [0, 1, 2, 3]


def test_the_largest_teacher_gap_is_over_action_tokens_against_the_policy_before_the_update(tmp_path):
    path = make_run(tmp_path, steps=2)
    rows = make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=0.5, rollouts=3)
    for index, row in enumerate(rows):
        T = len(row["action_mask"])
        row["old_logprobs"] = [-1.0] * T
        # 50 off the mask must not count; row 2 has no teacher.
        row["teacher_logprobs"] = [-1.5 - index if act else 50.0 for act in row["action_mask"]] if index < 2 else None
    (path / "rollouts").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), path / "rollouts" / "step-00001.parquet")
    found = listed(path, "gap")["rows"]
    assert [(row["index"], row["gap"]) for row in found] == [(1, 1.5), (0, 0.5), (2, None)]


def test_damaged_files_are_named_and_the_others_are_listed(tmp_path):
    path = make_run(tmp_path, steps=60)
    (path / "rollouts" / "step-00020.parquet").write_bytes(b"PAR1 no")
    pq.write_table(pa.table({"step": [1]}), path / "rollouts" / "step-00040.parquet")
    found = listed(path)
    assert found["total"] == 32 and {row["step"] for row in found["rows"]} == {60}
    assert len(found["problems"]) == 2
    assert "step-00020" in found["problems"][0] and "no column" in found["problems"][1]
    (source,) = find_runs(path).runs.values()
    for step, row, words in ((20, 0, "step-00020"), (60, 32, "no row 32"), (60, -1, "no row -1"), (61, 0, "step 61")):
        with pytest.raises(DataError, match=words):
            Trajectories().opened(source, step, row)


@pytest.mark.parametrize(
    "column",
    [
        {"prompt": pa.array([7])},
        {"task_id": pa.array([["a"]])},
        {"reward": pa.array(["much"])},
        {"status": pa.array([None])},
        {"advantages": pa.array([[None, None, None]], type=pa.list_(pa.float64()))},
        {"advantages": pa.array([[1.0]])},
        {"action_mask": pa.array([[2, 1, 0]])},
        {"row": pa.array([None], type=pa.int64())},
    ],
    ids=lambda column: next(iter(column)),
)
def test_columns_of_other_kinds_are_shown_or_named(tmp_path, column):
    path = make_run(tmp_path, steps=2)
    good = {
        "step": pa.array([1]), "row": pa.array([1]), "attempt": pa.array([0]), "member": pa.array([0]),
        "segment_index": pa.array([0]), "token_text": pa.array([["a", "b", "c"]]),
        "action_mask": pa.array([[False, True, True]]), "turn_index": pa.array([[0, 0, 0]]),
    }  # fmt: skip
    (path / "rollouts").mkdir()
    pq.write_table(pa.table(good | column), path / "rollouts" / "step-00001.parquet")
    found = listed(path)
    assert found["total"] == 1 or "step-00001" in found["problems"][0]


def test_text_that_is_not_utf_8_is_replaced(tmp_path):
    path = make_run(tmp_path, steps=2)
    rows = make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=0.5, rollouts=1)
    table = pa.Table.from_pylist(rows)
    raw = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff<b>"]).buffers())
    table = table.set_column(table.column_names.index("prompt"), "prompt", raw)
    (path / "rollouts").mkdir()
    pq.write_table(table, path / "rollouts" / "step-00001.parquet")
    assert listed(path)["rows"][0]["prompt"] == "\ufffd<b>"
    (source,) = find_runs(path).runs.values()
    with pytest.raises(DataError, match="step-00001"):
        Trajectories().opened(source, 1, 0)


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    path = make_run(tmp_path, steps=20)
    (source,) = find_runs(path).runs.values()
    trajectories, read = Trajectories(), []
    monkeypatch.setattr(
        "lecritique.viewing.trajectories.indexed",
        lambda file: (read.append(file.name), indexed(file))[1],
    )
    for _ in range(3):
        trajectories.listed([source], Filter(), order="newest", page=0, size=5)
    assert read == ["step-00020.parquet"]
    rows = make_rollouts(np.random.default_rng(0), step=20, arm="a", ev=0.5, rollouts=8)
    write_parquet(path / "rollouts" / "step-00020.parquet", rows)
    assert trajectories.listed([source], Filter(), order="newest", page=0, size=5)["total"] == 8


def test_without_time_files_are_left_for_the_next_question(comparison):
    trajectories, sources = Trajectories(), find_runs(comparison).runs.values()
    asked = 0
    first = trajectories.listed(sources, Filter(), order="newest", page=0, size=5, budget_seconds=-1)
    assert first["unread"] == 8 and first["total"] == 0
    while trajectories.listed(sources, Filter(), order="newest", page=0, size=5)["unread"]:
        asked += 1
        assert asked < 9


@pytest.mark.parametrize("group_rows", [3, 32])
def test_single_rows_are_those_of_the_whole_file(tmp_path, group_rows):
    rows = make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=0.5, rollouts=32)
    file = tmp_path / "step-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=group_rows)
    whole = read_rollouts(file)
    wanted = [31, 0, 7, 8, 2]
    for index, found in zip(wanted, read_rows(file, wanted, rows=5), strict=True):
        assert (found.row, found.member, found.token_text) == (
            whole.rollout(index).row, whole.rollout(index).member, whole.rollout(index).token_text,
        )  # fmt: skip
        np.testing.assert_array_equal(found.values, whole.rollout(index).values)
    with pytest.raises(DataError, match="no row 32"):
        read_rows(file, [32])
