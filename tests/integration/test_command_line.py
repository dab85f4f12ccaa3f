"""What a person sees and gets from the command line, as a process: help, plans, progress, signals, exit codes."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.command_line import ROOT, SHORT, call, finish, require_one_sentence, start

ENDLESS = ("run.steps=5000", "rollout.batch_size=16", "task.rows=64", "run.save_rollouts_every=0")


def status(run: Path) -> dict:
    return json.loads((run / "status.json").read_text(encoding="utf-8"))


def wait_for(condition, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it took too long"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("train", "compare", "report", "tasks", "Exit codes: 0 ok, 2 configuration")),
        (("train",), ("RECIPE", "KEY.PATH=VALUE", "--arm", "--dry-run", "--out", "--resume")),
        (("compare",), ("--arms", "--seeds", "--jobs", "--out")),
        (("report",), ("DIRECTORY", "--picture")),
        (("tasks",), ("list", "show", "validate")),
        (("tasks", "show"), ("NAME", "--row")),
        (("tasks", "validate"), ("NAME", "--items", "--junk-items")),
    ],
)
@pytest.mark.parametrize("columns", ["40", "120"])
def test_help(capfd, monkeypatch, arguments, words, columns):
    monkeypatch.setenv("COLUMNS", columns)
    answer = call(capfd, monkeypatch, *arguments, "--help")
    assert answer.code == 0 and answer.err == ""
    if columns == "120":
        text = " ".join(answer.out.split())
        assert all(word in text for word in words), answer.out


def test_the_version_is_the_packages(capfd, monkeypatch):
    from lecritique import __version__

    answer = call(capfd, monkeypatch, "--version")
    assert (answer.code, answer.out.strip()) == (0, __version__)


def test_a_dry_run_prints_the_resolved_configuration_and_writes_nothing(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    answer = call(capfd, monkeypatch, "train", "demo", "--arm", "pvf", "rollout.batch_size=64", "--dry-run")
    assert answer.code == 0 and list(tmp_path.iterdir()) == []
    printed, end = json.JSONDecoder().raw_decode(answer.out)
    assert "null" not in answer.out[:end]
    assert printed["critic"]["replay"] == {"max_uses": 2, "capacity": 128, "refill_size": 128, "batch_size": 64}
    assert printed["critic"]["context"]["type"] == "reference" and printed["task"]["size"] == 4
    rest = answer.out[end:]
    steps = printed["run"]["steps"]
    assert f"64 rollouts = 16 groups of 4; {steps} steps = {steps * 64:,} rollouts of sudoku." in rest
    assert "1 update of 64 rollouts a step, each rollout at most 2 times, 128 held, context reference" in rest
    assert "Memory: engine" in rest and "value trainer" in rest


def test_a_dry_run_without_a_critic_counts_none(capfd, monkeypatch):
    answer = call(capfd, monkeypatch, "train", "demo", "--arm", "mean", "--dry-run")
    assert "Critic: none" in answer.out and "value trainer" not in answer.out


def test_a_run_tells_its_progress_in_lines_and_says_where_it_is(tmp_path):
    answer = finish(start("train", "demo", *SHORT, "--arm", "tether", "--out", "run", cwd=tmp_path))
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    for step in (1, 2, 3):
        (line,) = [line for line in lines if f"step {step}/3" in line]
        assert all(word in line for word in ("tether", "reward", "EV", "rho", "tok/s", "left")), line
    assert "run: run" in lines and "report: lecritique report run" in lines
    assert "\x1b" not in answer.out and "%|" not in answer.out
    run = tmp_path / "run"
    assert status(run)["state"] == "finished"
    assert json.loads((run / "summary.json").read_text())["steps"] == 3
    assert (run / "weights" / "policy" / "model.safetensors").is_file()
    assert [path.name for path in sorted((run / "rollouts").iterdir())] == ["step-00000.parquet", "step-00002.parquet"]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3


def test_the_default_directory_names_recipe_arm_and_time(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(capfd, monkeypatch, "train", "demo", *SHORT, "run.steps=2", "--arm", "mean").code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("demo-mean-2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_exits_with_130(tmp_path, number):
    process = start("train", "demo", *ENDLESS, "--out", "run", cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.is_file() and metrics.read_text().count("\n") >= 2)
    process.send_signal(number)
    answer = finish(process, timeout=30)
    notice, ended = answer.err.splitlines()
    assert answer.code == 130 and notice.startswith("lecritique: stopping: the current step is finished")
    held = status(tmp_path / "run")
    assert ended == f"lecritique: {held['message']}" and held["state"] == "interrupted"
    assert f"after step {held['step']} of 5000; 'lecritique train --resume run' goes on from there." in ended
    recorded = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert recorded == list(range(held["step"]))
    assert (tmp_path / "run" / "checkpoints" / f"step-{held['step']:08d}" / "complete.json").is_file()


def test_a_second_signal_ends_a_run_at_once(tmp_path):
    # A step that takes long: the second signal comes in the middle of it.
    process = start("train", "demo", *ENDLESS, "rollout.batch_size=2048", "--out", "run", cwd=tmp_path)
    wait_for(lambda: (tmp_path / "run" / "status.json").is_file())
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("lecritique: stopping")
    process.send_signal(signal.SIGINT)
    answer = finish(process, timeout=30)
    require_one_sentence(answer, "interrupted", code=130)
    assert status(tmp_path / "run")["state"] == "interrupted" and status(tmp_path / "run")["step"] == 0
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_an_interrupted_run_is_resumed_and_told_what_changed(tmp_path, capfd, monkeypatch):
    process = start("train", "demo", *ENDLESS, "--arm", "tether", "--out", "run", cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.is_file())
    process.send_signal(signal.SIGTERM)
    assert finish(process, timeout=30).code == 130
    done = status(tmp_path / "run")["step"]
    monkeypatch.chdir(tmp_path)
    answer = call(capfd, monkeypatch, "train", "--resume", "run", f"run.steps={done + 2}")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == f"Resuming after step {done} of {done + 2} from step-{done:08d}."
    assert lines[1] == f"Changed: run.steps = {done + 2}, it was 5000."
    assert [f"step {step}/{done + 2}" in answer.out for step in range(done, done + 3)] == [False, True, True]
    assert status(tmp_path / "run")["state"] == "finished" and (tmp_path / "run" / "summary.json").is_file()
    assert (tmp_path / "run" / "weights" / "policy" / "model.safetensors").is_file()

    # Fault 42: nothing is done silently.
    require_one_sentence(call(capfd, monkeypatch, "train", "--resume", "run"), "finished", "nothing is left to resume")
    require_one_sentence(call(capfd, monkeypatch, "train", "--resume", "run", "run.seed=4"), "run.seed", "another run")
    require_one_sentence(call(capfd, monkeypatch, "train", "--resume", "run", "demo"), "takes no RECIPE", "'demo'")
    require_one_sentence(call(capfd, monkeypatch, "train", "--resume", "run", "--arm", "pvf"), "--arm")
    require_one_sentence(call(capfd, monkeypatch, "train", "--resume", "run", "--out", "b"), "--out")
    require_one_sentence(call(capfd, monkeypatch, "train", "--resume", "nowhere"), "nowhere", "not a run directory")
    require_one_sentence(call(capfd, monkeypatch, "train", "demo", "--out", "run"), "already holds files")
    answer = call(capfd, monkeypatch, "train", "--resume", "run", f"run.steps={done + 3}", "--dry-run")
    assert answer.code == 0 and "Memory: engine" in answer.out and status(tmp_path / "run")["step"] == done + 2


def test_a_diverged_run_exits_with_3_and_keeps_its_record(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ("policy.optimizer.learning_rate=1e30", "task.min_empty=1", "task.max_empty=3")
    answer = call(capfd, monkeypatch, "train", "demo", *SHORT, *overrides, "run.steps=9", "--out", "run")
    require_one_sentence(answer, "step", code=3)
    held = status(tmp_path / "run")
    assert held["state"] == "diverged" and held["message"] in answer.err
    events = [json.loads(line)["kind"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events == ["started", "diverged"]
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line and "Infinity" not in line


def test_a_fault_of_our_own_is_recorded_too(tmp_path, capfd, monkeypatch):
    from lecritique.runtime import synchronous

    def broken(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(synchronous, "score_then_train", broken)
    answer = call(capfd, monkeypatch, "train", "demo", *SHORT, "--out", "run")
    assert answer.code == 4 and "Traceback" in answer.err
    assert answer.err.strip().splitlines()[-1].startswith("lecritique: unexpected ZeroDivisionError")
    assert status(tmp_path / "run")["state"] == "failed"
    assert "ZeroDivisionError: a bug" in status(tmp_path / "run")["message"]


def test_a_reader_that_goes_away_interrupts_a_run(tmp_path):
    run = start("train", "demo", *ENDLESS[1:], "run.steps=60", "--out", "run", cwd=tmp_path)
    run.stdout.readline()
    run.stdout.close()
    run.wait(timeout=60)
    assert "Traceback" not in run.stderr.read() and run.returncode != 0
    run.stderr.close()
    assert status(tmp_path / "run")["state"] == "interrupted"


def test_a_small_terminal_shows_label_step_and_figures(tmp_path):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lecritique", "train", "demo", *SHORT, "--arm", "tether", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "40", "LINES": "10", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = b""
    limit = time.monotonic() + 90
    while time.monotonic() < limit:
        if select.select([leader], [], [], 0.1)[0]:
            try:
                shown += os.read(leader, 65536)
            except OSError:  # the other end has closed
                break
        elif process.poll() is not None:
            break
    assert process.wait(timeout=30) == 0, shown.decode(errors="replace")
    os.close(leader)
    text = shown.decode()
    assert "\x1b[" in text and "Traceback" not in text, text
    assert all(word in text for word in ("tether", "3/3", "reward", "tok/s", "0:00 left")), text
