"""A comparison that its recipe describes: matched by tokens, killed without warning, taken up again, left as it is."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from lecritique.analysis.read import load_run
from lecritique.runs.directory import is_being_written, read_status
from tests.integration.command_line import call, finish, require_one_sentence, start

RECIPE = """
base = "demo"
[compare]
arms = ["slow", "pvf"]
seeds = [3]
jobs = 1
budget = { tokens = 1200 }
[task]
rows = 32
[rollout]
batch_size = 8
[run]
checkpoint_every = 0
save_rollouts_every = 0
[critic]
warmup_updates = 1
replay.refill_size = 8
[arms.slow]
preset = "leave_one_out"
rollout.batch_size = 4
"""
# The base model's reward is known: it is not measured again.
RECORD = '{"schema": 1, "recipe": "own", "arms": ["slow"], "seeds": [3], "base_reward": 0.5, "base_rollouts": 8}'
ONE_ARM = ("--arms", "slow")


def wait_for(condition, seconds: float = 240.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, str | None, int]:
    """A comparison whose process was killed in its first run: what that said once it was gone, and after which step."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "own.toml").write_text(RECIPE, encoding="utf-8")
    out = folder / "out"
    out.mkdir()
    (out / "compare.json").write_text(RECORD, encoding="utf-8")
    run = out / "slow" / "seed-3"
    process = start("compare", "own.toml", *ONE_ARM, "--out", str(out), cwd=folder)
    try:
        wait_for(lambda: (run / "metrics.jsonl").is_file() or process.poll() is not None)
    finally:
        process.send_signal(signal.SIGKILL)
        finish(process)
    wait_for(lambda: not is_being_written(run), 120)
    return out, read_status(run), len(load_run(run).steps)


def test_the_run_of_a_killed_comparison_ends_with_a_checkpoint_and_can_be_taken_up(killed, capfd, monkeypatch):
    out, state, steps = killed
    assert state == "interrupted"
    monkeypatch.chdir(out.parent)
    answer = call(capfd, monkeypatch, "compare", "own.toml", *ONE_ARM, "--out", str(out))
    assert answer.code == 0 and "1 runs to do, 0 done already" in answer.out
    assert f"Resuming after step {steps} of" in (out / "logs" / "slow-seed-3.log").read_text(encoding="utf-8")
    totals = load_run(out / "slow" / "seed-3").series("generated_tokens_total")
    assert totals[-2] < 1200 <= totals[-1]
    assert [path.name for path in (out / "slow").iterdir()] == ["seed-3"]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["budget"] == {"unit": "tokens", "limit": 1200.0} and summary["area"]["until"] == 1200.0
    assert all(summary["spent"]["slow"][unit][0] > 0 for unit in ("rollouts", "tokens", "flops", "seconds"))
    record = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    assert record["budget"] == {"tokens": 1200} and record["arms"] == ["slow"]
    held = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "report.html"}
    again = call(capfd, monkeypatch, "compare", "own.toml", *ONE_ARM, "--out", str(out))
    assert again.code == 0 and "0 runs to do, 1 done already" in again.out
    assert {path: path.read_bytes() for path in held} == held
    refused = call(capfd, monkeypatch, "compare", "own.toml", *ONE_ARM, "--budget", "tokens=900", "--out", str(out))
    require_one_sentence(refused, "run.budget.tokens = 1200", "900", "--out")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "token=5"), ("--budget", "rollouts, tokens, flops, seconds")),
        (("--arms", "fast"), ("--arms", "'fast'")),
        (("run.budget.tokens=5",), ("--budget",)),
        (("run={budget={tokens=5}}",), ("--budget",)),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, capfd, monkeypatch, arguments, words):
    (tmp_path / "own.toml").write_text(RECIPE, encoding="utf-8")
    answer = call(capfd, monkeypatch, "compare", str(tmp_path / "own.toml"), *arguments, "--out", str(tmp_path / "out"))
    require_one_sentence(answer, *words)
    assert not (tmp_path / "out").exists()


def test_an_arm_of_the_table_that_is_none_is_named(tmp_path, capfd, monkeypatch):
    (tmp_path / "own.toml").write_text('base = "demo"\n[compare]\narms = ["pvf", "slwo"]', encoding="utf-8")
    answer = call(capfd, monkeypatch, "compare", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out"))
    require_one_sentence(answer, "'compare.arms'", "'slwo'")
