"""Ray actors whose processes are stopped (SIGSTOP): they end no call by themselves, and are found, killed, replaced."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kill_and_resume import asynchronous_faults
from tests.cluster.ray_runs import NEEDS_RAY, ON_RAY, SETTINGS, Killer, real, records, wait_for_the_end
from tests.integration.run_files import differences
from tests.integration.short_runs import small_config
from tests.unit.actors.thread_cluster import run_locally, run_on_actors

pytestmark = NEEDS_RAY
# Longer than an actor leaves a ping open on a machine that is busy.
SILENT = 4.0
STEPS = 8


# In each loop one of each kind: tests/unit/actors/test_hung_actors.py has all of them.
@pytest.mark.parametrize(
    ("loop", "roles"),
    [("synchronous", ("engine 0", "value trainer")), ("asynchronous", ("evaluator 0", "policy trainer"))],
    ids=["synchronous", "asynchronous"],
)
def test_a_replaced_role_and_a_trainer_that_are_stopped(ray: Any, tmp_path: Path, loop: str, roles: tuple[str, ...]):
    run = tmp_path / "run"
    same = (f"runtime.loop={loop}", f"run.steps={STEPS}")
    stopper = Killer(run, roles, seed=1, by=signal.SIGSTOP)
    stopper.start()
    run_on_actors(run, small_config(*ON_RAY, *same, f"runtime.actors.silent_seconds={SILENT}", arm="pvf"), ray)
    stopper.end()
    assert stopper.killed == list(roles)
    assert asynchronous_faults(run, steps=STEPS) == []
    events = records(run / "events.jsonl")
    (replaced,) = [event for event in events if event["kind"] == "actor_lost"]
    (went_back,) = [event for event in events if event["kind"] == "trainer_lost"]
    assert replaced["role"] == roles[0] and roles[1] in went_back["message"]
    for said in (replaced["reason"], went_back["message"]):
        assert f"did not answer whether it lives for {SILENT:g} seconds" in said
    wait_for_the_end(stopper.pids)
    if loop == "synchronous":
        run_locally(tmp_path / "straight", small_config(*SETTINGS, *same, arm="pvf"))
        assert real(differences(tmp_path / "straight", run)) == []
