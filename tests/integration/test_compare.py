"""`compare`: runs what is missing, mixes nothing, survives what fails, and leaves nothing running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lecritique.analysis.read import load_run
from lecritique.config.load import compose, load_recipe
from lecritique.core.errors import ConfigurationError
from lecritique.runs.directory import RunDirectory, read_status
from lecritique.runtime.build import load_base
from tests.integration.command_line import SHORT, call, finish, require_one_sentence, start

OWN_ARMS = """
[task]
type = "sudoku"
rows = 32
[rollout]
batch_size = 16
[run]
steps = 6
[critic]
warmup = "leave_one_out"
[arms.broken]
preset = "mean"
policy.optimizer.learning_rate = 1e30
"""


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def run_files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {name: held for name, held in files(folder).items() if "seed-" in name}


def record(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def processes_of(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command and "lecritique" in command:
            found.append(command)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compare") / "out"


@pytest.fixture(scope="module")
def done(folder) -> Path:
    """A finished comparison of two arms, two runs at a time. One later test adds a seed to it."""
    answer = finish(
        start(
            "compare", "demo", *SHORT, "--arms", "mean,tether", "--jobs", "2", "--out", str(folder), cwd=folder.parent
        )
    )
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].startswith("2 runs to do, 0 done already; the base model earns 0.")
    assert sorted(line.split(":")[0] for line in lines if "finished at step 3/3" in line) == [
        "mean seed 0",
        "tether seed 0",
    ]
    assert f"report: {folder / 'report.html'}" in lines
    return folder


def test_it_leaves_runs_a_record_a_summary_and_a_page(done):
    for arm in ("mean", "tether"):
        run = done / arm / "seed-0"
        assert read_status(run) == "finished" and len((run / "metrics.jsonl").read_text().splitlines()) == 3
        assert (run / "weights" / "policy" / "model.safetensors").is_file()
        assert record(run, "config.json")["preset"] == arm and record(run, "config.json")["run"]["seed"] == 0
    held = record(done, "compare.json")
    assert (held["schema"], held["recipe"], held["arms"], held["seeds"]) == (1, "demo", ["mean", "tether"], [0])
    assert held["overrides"] == list(SHORT) and 0 <= held["base_reward"] <= 1 and held["base_rollouts"] == 512
    assert "<html" in (done / "report.html").read_text(encoding="utf-8")


def test_the_summary_has_the_documented_shape(done):
    summary = record(done, "summary.json")
    assert summary["schema"] == 1 and summary["base_reward"] == record(done, "compare.json")["base_reward"]
    assert list(summary["arms"]) == ["mean", "tether"]
    for arm in summary["arms"].values():
        for key in ("reward_last", "explained_variance_last", "rho_last"):
            assert len(arm[key]) == 1
    last = json.loads((done / "mean" / "seed-0" / "metrics.jsonl").read_text().splitlines()[-1])
    assert summary["arms"]["mean"]["reward_last"] == [last["reward"]]
    assert summary["arms"]["mean"]["explained_variance_last"] == summary["arms"]["mean"]["rho_last"] == [None]
    assert summary["arms"]["tether"]["rho_last"][0] is not None
    assert {(pair["metric"], pair["a"], pair["b"]) for pair in summary["paired"]} == {
        ("reward", "mean", "tether"),
        ("explained_variance", "mean", "tether"),
    }


def test_arms_of_a_seed_ask_the_same_rows_and_draw_the_same_first_tokens(done):
    saved = [pq.read_table(done / arm / "seed-0" / "rollouts" / "step-00000.parquet") for arm in ("mean", "tether")]
    for column in ("row", "attempt", "member", "token_ids", "reward"):
        assert saved[0][column].to_pylist() == saved[1][column].to_pylist()
    later = [pq.read_table(done / arm / "seed-0" / "rollouts" / "step-00002.parquet") for arm in ("mean", "tether")]
    assert later[0]["row"].to_pylist() == later[1]["row"].to_pylist()


def test_the_same_call_again_runs_nothing_and_changes_no_run(done, capfd, monkeypatch):
    before = run_files(done)
    said = [(done / name).read_bytes() for name in ("compare.json", "summary.json")]
    arguments = ("compare", "demo", *SHORT, "--arms", "mean,tether", "--out", str(done))
    answer = call(capfd, monkeypatch, *arguments)
    assert answer.code == 0 and "0 runs to do, 2 done already" in answer.out
    assert run_files(done) == before
    assert [(done / name).read_bytes() for name in ("compare.json", "summary.json")] == said


@pytest.mark.parametrize("arms", ["mean", "tether", "pvf"])
def test_a_changed_override_is_refused_whichever_arms_are_asked_for(done, capfd, monkeypatch, arms):
    before = files(done)
    arguments = ("compare", "demo", *SHORT, "policy.loss.kl_coef=0.5", "--arms", arms, "--out", str(done))
    require_one_sentence(call(capfd, monkeypatch, *arguments), "policy.loss.kl_coef = 0.001", "0.5", "--out")
    assert files(done) == before


def test_another_recipe_in_the_same_place_is_refused(done, capfd, monkeypatch, tmp_path):
    (tmp_path / "own.toml").write_text(OWN_ARMS)
    before = files(done)
    answer = call(capfd, monkeypatch, "compare", str(tmp_path / "own.toml"), "--arms", "mean", "--out", str(done))
    require_one_sentence(answer, "'demo'", "'own'")
    assert files(done) == before


def test_a_comparison_from_before_packed_rows_goes_on_as_it_was(done, capfd, monkeypatch, tmp_path):
    """What a device decides has changed since: a run without the layout's key read padded rows, 16,384 in a pass."""
    older = tmp_path / "older"
    shutil.copytree(done, older)
    for path in older.glob("*/seed-*/config.json"):
        tree = json.loads(path.read_text(encoding="utf-8"))
        del tree["runtime"]["layout"]
        tree["runtime"]["micro_batch_tokens"] = 16384
        path.write_text(json.dumps(tree), encoding="utf-8")
    command = ("compare", "demo", *SHORT, "--arms", "mean", "--out", str(older))
    require_one_sentence(call(capfd, monkeypatch, *command, "runtime.layout=packed"), "padded", "packed", "--out")
    answer = call(capfd, monkeypatch, *command, "--seeds", "0,7")
    assert answer.code == 0 and "1 runs to do, 1 done already" in answer.out
    runtime = record(older / "mean" / "seed-7", "config.json")["runtime"]
    assert (runtime["layout"], runtime["micro_batch_tokens"]) == ("padded", 16384)
    own = record(done / "mean" / "seed-0", "config.json")["runtime"]
    assert own["layout"] != "padded" and own["micro_batch_tokens"] != 16384


def test_a_new_seed_runs_alone_and_an_unfinished_run_is_done_again_with_its_remains_kept(done, capfd, monkeypatch):
    before = run_files(done)
    unfinished = done / "tether" / "seed-0"
    (unfinished / "status.json").write_text('{"state": "running", "step": 1, "steps": 3}')
    shutil.rmtree(unfinished / "checkpoints")  # with one it would be resumed
    command = ("compare", "demo", *SHORT, "--out", str(done))
    both = ("--arms", "mean,tether", "--seeds", "0,1", "--jobs", "2")
    answer = call(capfd, monkeypatch, *command, *both)
    assert answer.code == 0 and "3 runs to do, 1 done already" in answer.out
    after = run_files(done)
    assert {name: held for name, held in before.items() if name.startswith("mean")} == {
        name: after[name] for name in before if name.startswith("mean")
    }
    kept = done / "tether" / ".seed-0.unfinished-1"
    assert read_status(kept) == "running"
    assert (kept / "metrics.jsonl").read_bytes() == before["tether/seed-0/metrics.jsonl"][0]
    assert [read_status(done / arm / f"seed-{seed}") for arm in ("mean", "tether") for seed in (0, 1)] == [
        "finished"
    ] * 4
    summary = record(done, "summary.json")
    assert summary["seeds"] == [0, 1] and len(summary["arms"]["mean"]["reward_last"]) == 2
    # Done again from the same seed, it is the same run.
    rewards = [
        [json.loads(line)["reward"] for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (kept, unfinished)
    ]
    assert rewards[0] == rewards[1]
    # Asked for less, the report still holds everything.
    answer = call(capfd, monkeypatch, *command, "--arms", "tether", "--seeds", "1")
    assert answer.code == 0 and "0 runs to do, 1 done already" in answer.out
    assert list(record(done, "summary.json")["arms"]) == ["mean", "tether"]
    assert record(done, "compare.json")["seeds"] == [0, 1]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"schema": 2}',
        '{"schema": 1, "recipe": "demo", "arms": [3]}',
        '{"schema": 1, "recipe": "demo", "arms": null}',
        '{"schema": 1, "recipe": "demo", "arms": [], "seeds": 3}',
    ],
)
def test_a_record_that_is_none_is_refused(capfd, monkeypatch, tmp_path, content):
    (tmp_path / "compare.json").write_text(content)
    before = files(tmp_path)
    answer = call(capfd, monkeypatch, "compare", "demo", *SHORT, "--arms", "mean", "--out", str(tmp_path))
    require_one_sentence(answer, "compare.json")
    assert files(tmp_path) == before


def test_a_run_of_an_unreadable_configuration_is_refused(capfd, monkeypatch, tmp_path):
    run = tmp_path / "mean" / "seed-0"
    run.mkdir(parents=True)
    (run / "config.json").write_text('{"task": {}}')
    (tmp_path / "compare.json").write_text('{"schema": 1, "recipe": "demo", "arms": ["mean"], "seeds": [0]}')
    answer = call(capfd, monkeypatch, "compare", "demo", *SHORT, "--arms", "mean", "--out", str(tmp_path))
    require_one_sentence(answer, "config.json")


def test_a_run_that_another_process_writes_is_not_replaced(capfd, monkeypatch, tmp_path):
    config = load_base(compose(load_recipe("demo"), arm="mean", overrides=SHORT)).config
    live = RunDirectory.create(tmp_path / "mean" / "seed-0", config)
    (tmp_path / "compare.json").write_text(
        '{"schema": 1, "recipe": "demo", "arms": ["mean"], "seeds": [0], "base_reward": 0.5}'
    )
    before = files(tmp_path)
    answer = call(capfd, monkeypatch, "compare", "demo", *SHORT, "--arms", "mean", "--out", str(tmp_path))
    require_one_sentence(answer, str(live.path), "still going")
    assert files(tmp_path) == before


def test_a_place_inside_a_file_is_refused(capfd, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    answer = call(capfd, monkeypatch, "compare", "demo", *SHORT, "--out", str(tmp_path / "file" / "out"))
    require_one_sentence(answer, "cannot be made or written to")


def test_a_failed_arm_leaves_the_others_results(capfd, monkeypatch, tmp_path):
    recipe, out = tmp_path / "own.toml", tmp_path / "out"
    recipe.write_text(OWN_ARMS)
    answer = call(capfd, monkeypatch, "compare", str(recipe), "--arms", "broken,mean", "--out", str(out))
    log = out / "logs" / "broken-seed-0.log"
    require_one_sentence(answer, "1 of 2 runs failed", "broken seed 0", str(log), code=3)
    assert "broken seed 0: diverged at step" in answer.out and "mean seed 0: finished at step 6/6" in answer.out
    assert read_status(out / "broken" / "seed-0") == "diverged" and "lecritique: " in log.read_text()
    summary = record(out, "summary.json")
    assert summary["arms"]["mean"]["reward_last"][0] is not None
    assert summary["arms"]["broken"]["states"] == ["diverged"] and summary["arms"]["mean"]["states"] == ["finished"]
    assert (out / "report.html").is_file()


def test_an_interrupted_comparison_ends_its_runs_and_can_be_taken_up(tmp_path):
    out = tmp_path / "out"
    long = ("run.steps=5000", *SHORT[1:])
    process = start("compare", "demo", *long, "--arms", "mean,value", "--jobs", "2", "--out", str(out), cwd=tmp_path)
    runs = [out / arm / "seed-0" for arm in ("mean", "value")]
    limit = time.monotonic() + 90
    while not all((run / "metrics.jsonl").is_file() for run in runs):
        assert time.monotonic() < limit and process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    answer = finish(process, timeout=60)
    require_one_sentence(answer, "goes on from there", code=130)
    assert [read_status(run) for run in runs] == ["interrupted", "interrupted"]
    assert processes_of(out) == []
    assert record(out, "compare.json")["arms"] == ["mean", "value"]
    for run in runs:
        steps = record(run, "status.json")["step"]
        assert (run / "checkpoints" / f"step-{steps:08d}" / "complete.json").is_file()


def test_an_unfinished_run_with_a_checkpoint_is_resumed(capfd, monkeypatch, tmp_path):
    out = tmp_path / "out"
    command = ("compare", "demo", *SHORT, "run.checkpoint_every=1", "run.keep_checkpoints=9", "--arms", "mean")
    assert call(capfd, monkeypatch, *command, "--out", str(out)).code == 0
    run = out / "mean" / "seed-0"
    whole, weights = load_run(run), (run / "weights" / "policy" / "model.safetensors").read_bytes()
    (run / "status.json").write_text('{"state": "running", "step": 2, "steps": 3}')
    shutil.rmtree(run / "checkpoints" / "step-00000003")
    shutil.rmtree(run / "weights")
    answer = call(capfd, monkeypatch, *command, "--out", str(out))
    assert answer.code == 0 and "1 runs to do, 0 done already" in answer.out
    assert read_status(run) == "finished" and os.listdir(run.parent) == ["seed-0"]
    again = load_run(run)
    assert again.steps.tolist() == [0, 1, 2] and again.series("reward").tolist() == whole.series("reward").tolist()
    assert (run / "weights" / "policy" / "model.safetensors").read_bytes() == weights
    assert "Resuming after step 2 of 3" in (out / "logs" / "mean-seed-0.log").read_text()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4


def test_every_arm_is_checked_before_anything_starts(tmp_path):
    from lecritique.config.load import load_recipe
    from lecritique.runtime.comparison import plan

    arguments = {"seeds": [0], "out": tmp_path / "out", "recipe_name": "demo", "recipe": load_recipe("demo")}
    with pytest.raises(ConfigurationError, match=r"rollout\.group_size"):
        plan(**arguments, arms=["value", "mean"], overrides=["rollout.group_size=1", "critic.warmup=discard"])
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_working_directory_takes_no_modules_place(capfd, monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('not yours')")
    monkeypatch.chdir(tmp_path)
    answer = call(capfd, monkeypatch, "compare", "demo", *SHORT, "--arms", "mean", "--out", "out")
    assert answer.code == 0, answer
