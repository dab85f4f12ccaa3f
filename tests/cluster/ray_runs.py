"""Runs on a Ray cluster for the tests: what they configure, and what kills their actors."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

HERE = importlib.util.find_spec("ray") is not None
if not HERE and os.environ.get("LECRITIQUE_REQUIRE_CLUSTER") == "1":
    raise RuntimeError("LECRITIQUE_REQUIRE_CLUSTER = 1, but ray is not installed")
NEEDS_RAY = pytest.mark.skipif(not HERE, reason="ray is not installed: make test-cluster")

ROLES = ("engine 0", "evaluator 0", "policy trainer", "value trainer")
# Whole rounds in the middle of a completion, so that a kill finds one under way.
SETTINGS = ("runtime.dtype=float64", "runtime.decode_chunk_tokens=5", "run.checkpoint_every=1")
ON_RAY = ("runtime.type=ray", *SETTINGS)
# What differs between two runs of the same numbers.
OF_TIMING = ("metric utilisation_", "metric evaluator_latency", "metric engine_restarts")


def real(differences: list[str]) -> list[str]:
    """Differences that are not of clocks or of what was restarted."""
    return [each for each in differences if not each.startswith(OF_TIMING)]


def records(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a file that is being written."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def actors_of(run: Path) -> dict[str, int]:
    """The newest process of each role."""
    return {e["role"]: e["pid"] for e in records(run / "events.jsonl") if e["kind"] == "actor_started"}


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_the_end(pids: Iterable[int]) -> None:
    """Wait until none of the processes is there; Ray kills without waiting."""
    deadline = time.monotonic() + 60
    while left := list(filter(lives, pids)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def wait_for_steps(run: Path, count: int, process: subprocess.Popen[str], seconds: float = 600.0) -> None:
    """Wait until a run that is a process has recorded so many steps."""
    deadline = time.monotonic() + seconds
    while len(records(run / "metrics.jsonl")) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


class Killer(threading.Thread):
    """Kills or stops the actors of a run, one after the other, each some time after a step was recorded.

    Args:
        run: the directory.
        roles: in this order.
        seed: of the moments.
        by: the signal.
    """

    def __init__(self, run: Path, roles: tuple[str, ...], *, seed: int, by: signal.Signals = signal.SIGKILL) -> None:
        super().__init__(daemon=True)
        self.killed: list[str] = []
        self.pids: list[int] = []
        self._by = by
        self._run, self._roles = run, roles
        self._draw = random.Random(seed)
        self._ended = threading.Event()

    def run(self) -> None:
        rows = 1
        for role in self._roles:
            while len(records(self._run / "metrics.jsonl")) < rows or not lives(actors_of(self._run).get(role, 0)):
                if self._ended.wait(0.02):
                    return
            time.sleep(self._draw.uniform(0.0, 0.5))
            if self._ended.is_set():
                return
            pid = actors_of(self._run)[role]
            os.kill(pid, self._by)
            self.killed.append(role)
            self.pids.append(pid)
            rows = len(records(self._run / "metrics.jsonl")) + 1

    def end(self) -> None:
        """No more."""
        self._ended.set()
        self.join()
