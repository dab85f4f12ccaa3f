"""vLLM inside a Ray actor: the run's engine is an actor, and its replica is a process that the actor starts."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from tests.cluster.ray_runs import NEEDS_RAY, actors_of, records, wait_for_steps, wait_for_the_end
from tests.cluster.served_policies import CLOSE_NATS, ENGINE
from tests.cluster.test_vllm_restarts import replicas_of
from tests.integration.command_line import finish, start
from tests.integration.short_runs import SMALL

HERE = importlib.util.find_spec("vllm") is not None
pytestmark = [NEEDS_RAY, pytest.mark.skipif(not HERE, reason="vllm is not installed: make test-cluster")]
SECONDS = 600.0


def test_the_demo_trains_on_when_the_replica_inside_an_actor_is_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = (*SMALL, *ENGINE, "runtime.type=ray", "run.steps=4")
    process = start("train", "demo", "--arm", "mean", *overrides, "--out", str(run), cwd=tmp_path)
    wait_for_steps(run, 1, process)
    actor = actors_of(run)["engine 0"]
    (replica,) = replicas_of(actor)
    os.kill(replica, signal.SIGKILL)
    answer = finish(process, SECONDS)
    assert answer.code == 0, answer.err
    rows = records(run / "metrics.jsonl")
    assert len(rows) == 4 and all(row["rollouts_failed"] == 0 for row in rows)
    # The trainer's weights are those that sampled, in float32.
    assert all(0 < row["sampler_gap_nats"] < CLOSE_NATS for row in rows)
    (lost,) = [event for event in records(run / "events.jsonl") if event["kind"] == "replica_lost"]
    assert (lost["actor"], lost["number"], lost["replacement"]) == ("engine 0", 0, 1) and "code -9" in lost["reason"]
    assert rows[-1]["engine_restarts"] == 1.0
    # The actor has lived on, and has taken the processes that it had started with it.
    assert actors_of(run)["engine 0"] == actor
    wait_for_the_end([actor, replica])
