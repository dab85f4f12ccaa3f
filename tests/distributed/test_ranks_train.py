"""`lecritique train` on two processes: the numbers of one, its checkpoints, and a process that is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lecritique.config.load import compose, load_recipe
from lecritique.config.resume import allowed_changes
from lecritique.core.errors import ConfigurationError
from lecritique.distributed.leading import Leader
from lecritique.models.loading import load_value_model
from lecritique.models.weights import state_digest
from lecritique.runs.checkpoints import Checkpoints
from lecritique.runtime.build import build, load_base
from lecritique.runtime.policies import load_policy
from lecritique.runtime.resuming import resume
from lecritique.runtime.training import train
from lecritique.runtime.warm_start import load_critic
from tests.integration.short_runs import SMALL, small_config, trained

SET = [*SMALL, "run.steps=3", "runtime.dtype=float64", "runtime.loop=synchronous", "run.checkpoint_every=2"]
PATIENCE_SECONDS = 300
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "lecritique", "train", *words]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def assert_alike(found: list[dict], expected: list[dict]) -> None:
    """Everything that two runs can agree on, to what is left of float64 behind an RMS norm in float32."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        for name, value in other.items():
            if name.startswith(("seconds", "tokens_per", "time")) or value is None or isinstance(value, str):
                continue
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    """Three steps of a privileged value function on two processes."""
    path = tmp_path_factory.mktemp("ranks") / "run"
    done = subprocess.run(
        command("demo", "--arm", "pvf", *SET, "runtime.ranks=2", "--out", str(path)),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Starting 1 more training processes" in done.stdout and "Traceback" not in done.stderr
    return path


def test_it_trains_as_one_process_does(run_of_two):
    alone = trained(build(load_base(small_config(*SET, arm="pvf"))), 3)
    assert_alike(rows(run_of_two), alone)
    assert max(abs(row["policy_loss"]) for row in alone) > 1e-3
    assert json.loads((run_of_two / "status.json").read_text())["state"] == "finished"


def test_others_read_policy_and_critic_of_its_checkpoint(run_of_two, tmp_path):
    """Of the last step: what is saved in the end, once in shards and once whole."""
    checkpoint = run_of_two / "checkpoints" / "step-00000003"
    policies = [load_policy(str(path), dtype=torch.float64, device="cpu") for path in (run_of_two, checkpoint)]
    assert policies[0].step == policies[1].step == 3 and policies[0].digest == policies[1].digest
    shutil.copytree(run_of_two / "checkpoints", tmp_path / "checkpoints")
    critics = [load_value_model(run_of_two / "weights" / "critic") for _ in range(2)]
    with torch.no_grad():
        critics[1].head.weight.zero_()
    load_critic(critics[1], tmp_path)
    assert state_digest(critics[0].state_dict()) == state_digest(critics[1].state_dict())


def test_its_checkpoint_goes_on_on_one_process(run_of_two, tmp_path):
    """From the second step, whose checkpoint is there beside the last: the third step is made once more."""
    last = rows(run_of_two)[-1]
    newest = Checkpoints(run_of_two / "checkpoints").latest()
    assert (newest / "shards").is_dir() and newest.name == "step-00000003"
    before = (run_of_two / "weights" / "policy" / "model.safetensors").read_bytes()
    (newest / "complete.json").unlink()
    found = resume(run_of_two, ["runtime.ranks=1"])
    try:
        assert found.first == 2
        train(found.begin(), found.directory, first=2)
    finally:
        found.directory.close()
    again = rows(run_of_two)[-1]
    assert_alike(
        [{k: v for k, v in again.items() if k != "resume"}], [{k: v for k, v in last.items() if k != "resume"}]
    )
    assert Checkpoints(run_of_two / "checkpoints").latest().name.startswith("step-00000003")
    (tmp_path / "before").write_bytes(before)
    after = load_file(run_of_two / "weights" / "policy" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "before").items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_adapters_train_and_are_saved_as_on_one_process(tmp_path):
    adapters = ("model.adapter.type=lora", "critic.backbone.type=lora", "runtime.recompute_activations=true")
    done = subprocess.run(
        command("demo", "--arm", "pvf", *SET, *adapters, "runtime.ranks=2", "--out", str(tmp_path / "run")),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_alike(rows(tmp_path / "run"), trained(build(load_base(small_config(*SET, *adapters, arm="pvf"))), 3))
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000003"
    final, saved = (
        load_policy(str(path), dtype=torch.float64, device="cpu") for path in (tmp_path / "run", checkpoint)
    )
    assert final.digest == saved.digest != state_digest(load_base(small_config(*SET)).language.model.state_dict())


def test_the_asynchronous_loop_is_refused_where_a_critic_trains_too():
    config = compose(load_recipe("demo"), overrides=["runtime.loop=asynchronous", "runtime.ranks=2"])
    with pytest.raises(
        ConfigurationError,
        match=r"'runtime\.ranks' = 2 .* use 'runtime\.loop' = 'synchronous', or .*actors\.policy\.ranks'",
    ):
        load_base(config)


ASYNCHRONOUS = ("runtime.loop=asynchronous", "rollout.max_staleness=0", "run.checkpoint_every=1")


def test_without_a_critic_the_asynchronous_loop_has_the_numbers_of_one_process(tmp_path):
    path = tmp_path / "run"
    done = subprocess.run(
        command("demo", "--arm", "mean", *SET, *ASYNCHRONOUS, "runtime.ranks=2", "--out", str(path)),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone = trained(build(load_base(small_config(*SET, arm="mean"))), 3)
    of_the_loop = ("engine_restarts", "seconds", "tokens_per", "time", "utilisation")
    kept = [{name: value for name, value in row.items() if not name.startswith(of_the_loop)} for row in alone]
    assert_alike(rows(path), kept)
    assert max(abs(row["policy_loss"]) for row in kept) > 1e-3


def test_the_number_of_processes_may_change_when_a_run_goes_on():
    one, two = (small_config(f"runtime.ranks={ranks}") for ranks in (1, 2))
    assert allowed_changes(one, two) == {"runtime.ranks": (1, 2)}


def test_roles_for_one_process_do_not_train_a_run_of_two(tmp_path):
    parts = build(load_base(small_config("runtime.ranks=2")))
    with pytest.raises(ValueError, match="built for another number"):
        train(parts, None)


def test_what_a_call_calls_in_turn_is_not_told_again(monkeypatch):
    told = []
    monkeypatch.setattr("lecritique.distributed.leading._tell", told.append)
    leader = Leader()
    with leader.calling("policy", "step", 1), leader.calling("policy", "scored", 1):
        pass
    with leader.calling("policy", "publish"):
        pass
    assert [call[:2] for call in told] == [("policy", "step"), ("policy", "publish")] and not leader.broken


def running_for_long(path, *words):
    """A run on two processes in the middle of its steps: its directory, rank 0 and the other process."""
    with subprocess.Popen(
        command("demo", *words, "run.steps=100000", "runtime.ranks=2", "--out", str(path)),
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        try:
            wait_for(lambda: (path / "metrics.jsonl").is_file() and len(rows(path)) > 2)
            (follower,) = children(running.pid)
            yield path, running, follower
        finally:
            running.kill()


@pytest.fixture
def long_run(tmp_path):
    """One step after the other, with a critic."""
    yield from running_for_long(tmp_path / "run", "--arm", "pvf", *SET)


@pytest.fixture
def long_asynchronous_run(tmp_path):
    """Rollouts beside the policy's steps, which are made long: an interrupt meets one."""
    words = ("--arm", "mean", *SET, "runtime.loop=asynchronous", "runtime.micro_batch_tokens=1", "policy.epochs=8")
    yield from running_for_long(tmp_path / "run", *words)


@pytest.mark.slow
def test_a_lost_process_ends_the_run_with_a_word(long_run):
    path, running, follower = long_run
    os.kill(follower, signal.SIGKILL)
    said, _ = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == 4, said
    assert "the training process of rank 1 has ended (exit code -9) while rank 0 called" in said.replace("\n", " ")
    assert json.loads((path / "status.json").read_text())["state"] == "failed"
    assert Checkpoints(path / "checkpoints").latest() is not None


@pytest.mark.slow
def test_the_others_end_with_a_rank_0_that_is_killed(long_run):
    _, running, follower = long_run
    running.kill()
    running.wait()
    wait_for(lambda: has_ended(follower))


@pytest.mark.slow
def test_an_interrupt_of_all_is_rank_0s_to_answer(long_run):
    """As a terminal sends it, to the whole process group."""
    path, running, follower = long_run
    os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == 130, said
    status = json.loads((path / "status.json").read_text())
    assert status["state"] == "interrupted" and has_ended(follower)
    newest = Checkpoints(path / "checkpoints").latest()
    assert newest.name == f"step-{status['step']:08d}" and "Traceback" not in said


@pytest.mark.slow
def test_a_second_interrupt_ends_all_in_the_middle_of_a_policys_step(long_asynchronous_run):
    path, running, follower = long_asynchronous_run
    os.killpg(running.pid, signal.SIGINT)
    time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=PATIENCE_SECONDS)
    assert running.returncode == 130, said
    assert json.loads((path / "status.json").read_text())["state"] == "interrupted" and has_ended(follower)


def children(pid: int) -> list[int]:
    """Processes that `pid` started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def wait_for(condition) -> None:
    """Not for ever."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def has_ended(pid: int) -> bool:
    """Gone, or waiting for its parent to take note."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
