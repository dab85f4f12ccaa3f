"""Calling the command line: inside this process where that is enough, as a process of its own where it is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lecritique.cli.main import main

ROOT = Path(__file__).parents[2]
# A run of a few seconds.
SHORT = ("run.steps=3", "rollout.batch_size=16", "task.rows=64", "critic.warmup_updates=1")
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Answer:
    """What a call left."""

    code: int
    out: str
    err: str


def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Answer:
    """`lecritique ARGUMENTS` in this process."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr(sys, "argv", ["lecritique", *arguments])
    capfd.readouterr()
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    out, err = capfd.readouterr()
    return Answer(int(ended.value.code or 0), out, err)


def start(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """`python -m lecritique ARGUMENTS` as a process."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "lecritique", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 120.0) -> Answer:
    """Wait for it."""
    out, err = process.communicate(timeout=timeout)
    return Answer(process.returncode, out, err)


def require_one_sentence(answer: Answer, *words: str, code: int = 2) -> None:
    """Exit code and exactly one line on stderr, without a traceback."""
    assert answer.code == code, answer
    assert answer.err.startswith("lecritique: ") and answer.err.endswith("\n"), answer.err
    assert answer.err.count("\n") == 1 and "Traceback" not in answer.err, answer.err
    for word in words:
        assert word in answer.err, answer.err
