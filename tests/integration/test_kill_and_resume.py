"""SIGKILL at random moments, then resume: the same run as the one that nobody killed (faults 43 and 44)."""

from __future__ import annotations

import random

import pytest

from benchmarks.kill_and_resume import RECIPE, SETTINGS, kill_once, killed_run, start
from lecritique.runs.directory import read_status
from tests.integration.run_files import differences


@pytest.mark.parametrize(("kills", "steps"), [(3, 12), pytest.param(25, 60, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_equals_the_one_that_was_not(tmp_path, kills, steps):
    straight, killed, log = tmp_path / "straight", tmp_path / "killed", tmp_path / "log"
    whole = start(*RECIPE, *SETTINGS, f"run.steps={steps}", "--out", str(straight), log=log)
    done = killed_run(killed, kills=kills, steps=steps, seed=kills, log=tmp_path / "killed.log")
    assert whole.wait(timeout=600) == 0, log.read_text()
    assert done >= 2 and read_status(killed) == "finished"
    assert differences(straight, killed) == []


def test_the_kill_is_one(tmp_path):
    """Nothing of the process's own runs after it: the status still says that it is running."""
    run = tmp_path / "run"
    process = start(*RECIPE, *SETTINGS, "run.steps=500", "--out", str(run), log=tmp_path / "log")
    assert kill_once(process, run, 1, random.Random(0)) and read_status(run) == "running"
