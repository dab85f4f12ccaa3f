"""A run ends with the comparison that started it, also when that was killed and could not say so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lecritique.runtime.parent import VARIABLE, end_with_parent, named_parent

ROOT = Path(__file__).parents[3]
CHILD = """
import os, pathlib, signal, sys, time
from lecritique.runtime.parent import VARIABLE, end_with_parent
def asked(number, frame):
    pathlib.Path(sys.argv[1]).write_text("asked to stop")
    raise SystemExit
signal.signal(signal.SIGTERM, asked)
end_with_parent()
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()) + " " + os.environ.get(VARIABLE, "gone"))
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
from lecritique.runtime.parent import named_parent
environment = {**os.environ, **named_parent()}
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], env=environment, process_group=0)
time.sleep(60)
"""


def wait_for(condition, seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_the_child_of_a_killed_process_is_asked_to_stop(tmp_path):
    said = tmp_path / "said"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(said)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_for(lambda: said.is_file() and said.read_text())
        pid, variable = said.read_text().split()
        # What a run starts itself is not the comparison's.
        assert variable == "gone" and os.getpgid(int(pid)) == int(pid)
        time.sleep(0.7)
        assert said.read_text() == f"{pid} gone"  # as long as the parent lives it is left alone
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_for(lambda: said.read_text() == "asked to stop")


@pytest.mark.parametrize("named", [None, "", "x", "-5"])
def test_without_a_named_parent_nothing_is_watched(monkeypatch, named):
    monkeypatch.delenv(VARIABLE, raising=False)
    if named is not None:
        monkeypatch.setenv(VARIABLE, named)
    monkeypatch.setattr(os, "kill", lambda *arguments: pytest.fail("this process was to be stopped"))
    end_with_parent()
    assert VARIABLE not in os.environ


def test_a_child_is_told_who_its_parent_is():
    assert named_parent() == {VARIABLE: str(os.getpid())}
