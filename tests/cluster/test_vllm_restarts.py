"""Replicas of vLLM that are killed or stopped while they decode: the run goes on, and no request is lost."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lecritique.core.rollout import GenerateRequest
from lecritique.rollout.vllm_supervision import ReplicaLost
from tests.cluster.served_policies import CLOSE_NATS, ENGINE, SECONDS, Policy, largest_gap, until

HERE = importlib.util.find_spec("vllm") is not None
pytestmark = pytest.mark.skipif(not HERE, reason="vllm is not installed: make test-cluster")
# Longer than a step or a load of the tiny model takes on a machine that is busy.
STUCK = "runtime.engine.stuck_seconds=45"


def test_requests_survive_a_killed_and_a_stopped_replica_with_the_same_tokens() -> None:
    policy = Policy("tiny", "runtime.engine.replicas=2", "runtime.engine.restarts=2", STUCK)
    losses: list[ReplicaLost] = []
    policy.engine.watch(losses.append)
    try:
        policy.change()
        policy.publish()
        requests = [GenerateRequest(**{**vars(each), "stop_ids": frozenset()}) for each in policy.requests(6, new=180)]
        undisturbed = policy.completions(requests)
        for how in (signal.SIGKILL, signal.SIGSTOP):
            futures = [policy.engine.submit(each) for each in requests]
            until(lambda: all(policy.engine.oldest_version(each.request_id) is not None for each in requests))
            served = sorted(policy.engine._serving)[0]
            assert any(entry.replica == served for entry in policy.engine._open.values())
            losses.clear()
            os.kill(policy.engine._replicas.processes[served]._process.pid, how)
            completions = [future.result(SECONDS) for future in futures]
            until(lambda: len(losses) == 1)
            assert losses[0].number == served and losses[0].replacement is not None
            assert [of.token_ids.tolist() for of in completions] == [of.token_ids.tolist() for of in undisturbed]
            assert largest_gap(policy.model, requests, completions) < CLOSE_NATS
            until(lambda: len(policy.engine._serving) == 2)
        # Both that serve now are replacements, with the weights of the version that was published before they began.
        assert min(policy.engine._serving) == 2
        again = policy.completions(requests)
        assert [of.token_ids.tolist() for of in again] == [of.token_ids.tolist() for of in undisturbed]
        assert {int(version) for of in again for version in of.policy_version} == {1}
    finally:
        policy.engine.close()


def test_the_demo_trains_on_when_its_only_replica_is_killed(tmp_path) -> None:
    small = ("run.steps=4", "rollout.batch_size=16", "critic.replay.refill_size=16", "task.rows=32")
    command = [sys.executable, "-m", "lecritique", "train", "demo", "--out", str(tmp_path / "run"), *ENGINE, *small]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        metrics = tmp_path / "run" / "metrics.jsonl"
        until(lambda: run.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 1))
        (replica,) = replicas_of(run.pid)
        os.kill(replica, signal.SIGKILL)
        _, said = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, said
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert len(rows) == 4 and all(row["rollouts_failed"] == 0 for row in rows)
    assert rows[-1]["engine_restarts"] == 1.0
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (lost,) = [event for event in events if event["kind"] == "replica_lost"]
    assert (lost["number"], lost["replacement"], lost["restarts_left"]) == (0, 1, 2) and "code -9" in lost["reason"]


def replicas_of(pid: int) -> list[int]:
    """The processes of replicas that a run has started."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [child for child in children if b"vllm_server" in Path(f"/proc/{child}/cmdline").read_bytes()]
