"""An asynchronous run that is killed and resumed: one outcome for each group, consecutive versions (issue's figure)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.kill_and_resume import RECIPE, SETTINGS, asynchronous_faults, killed_run, lines, start
from lecritique.analysis.history import surviving_outcomes, surviving_versions
from lecritique.analysis.read import load_run
from lecritique.core.errors import EXIT_INTERRUPTED, Interrupted
from lecritique.runs.checkpoints import FOLDER, Checkpoints
from lecritique.runs.directory import RunDirectory, read_status
from lecritique.runtime.build import build, load_base
from lecritique.runtime.resuming import resume
from lecritique.runtime.training import train
from tests.integration.asynchronous_runs import ASYNCHRONOUS
from tests.integration.short_runs import small_config


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until a file has so many lines, while the process lives."""
    while lines(path) < count:
        assert process.poll() is None
        time.sleep(0.05)


def interrupted_after(directory: Path, steps: int) -> None:
    """An asynchronous run that is asked to stop after some steps."""
    base = load_base(small_config(ASYNCHRONOUS, "run.steps=9", "run.checkpoint_every=2", arm="tether"))
    held = RunDirectory.create(directory, base.config)
    parts = build(base)

    def stop(step: int, metrics: dict[str, float]) -> None:
        if step + 1 == steps:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(parts, held, on_step=stop)
    held.close()


def test_an_interrupted_run_goes_on_with_the_groups_that_were_in_flight(tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted_after(run, 4)
    found = resume(run, [])
    parts = found.begin()
    assert parts.ledger.open, "groups were in flight"
    train(parts, found.directory, first=found.first)
    found.directory.close()
    assert asynchronous_faults(run, steps=9) == []
    assert Counter(o["outcome"] for o in surviving_outcomes(run)) == {"trained": 18}
    assert surviving_versions(run, "policy") == list(range(1, 10))
    assert load_run(run).steps.tolist() == list(range(9))


def test_killed_twice_each_group_has_one_outcome_and_versions_are_consecutive(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    done = killed_run(run, kills=2, steps=12, seed=1, log=log, loop="asynchronous")
    assert done == 2, log.read_text()[-2000:]
    assert asynchronous_faults(run, steps=12) == []


@pytest.mark.parametrize("signals", [1, 2])
def test_a_first_interrupt_saves_and_a_second_ends_at_once(signals: int, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    # Long steps, so that the second signal finds the first one's step unfinished.
    long = ("rollout.batch_size=64", "critic.replay.refill_size=64", "run.steps=2000", "run.checkpoint_every=0")
    settings = (*SETTINGS, "runtime.loop=asynchronous", *long)
    process = start(*RECIPE, *settings, "--out", str(run), log=log)
    wait_for_lines(run / "metrics.jsonl", 2, process)
    process.send_signal(signal.SIGINT)
    if signals == 2:
        while "stopping" not in log.read_text():
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == EXIT_INTERRUPTED, log.read_text()
    assert (Checkpoints(run / FOLDER).latest() is not None) == (signals == 1)
    assert read_status(run) == "interrupted"
