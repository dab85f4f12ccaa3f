"""Comparison processes with hard limits, usable from threads, asyncio tasks and forked or spawned processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lecritique.core.errors import ConfigurationError, VerifierFailure

_START_SECONDS = 120.0
# How long after its limit a worker may take to say so before it is replaced.
_GRACE_SECONDS = 0.8
_READY = b"ready"


class Outcome(StrEnum):
    """How a comparison ended."""

    EQUAL = "equal"
    DIFFERENT = "different"
    TIMEOUT = "timeout"
    """Cut at the wall limit."""
    EXHAUSTED = "exhausted"
    """Out of memory or out of stack."""
    RAISED = "raised"
    """The library raised."""
    DIED = "died"
    """The process ended without an answer."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Outcome of one comparison, with the error where there was one."""

    outcome: Outcome
    detail: str = ""


class ComparisonPool:
    """Up to `workers` processes, started when first needed and kept until `close` or the end of the program.

    A forked copy of the pool starts processes of its own, and so does a pickled one.

    Args:
        workers: most comparisons at the same time; further callers wait.
        limit_seconds: wall limit of one comparison.

    Raises:
        ConfigurationError: math-verify is not installed.
    """

    def __init__(self, *, workers: int, limit_seconds: float) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigurationError("task.type = 'math' needs the extra math: pip install 'lecritique[math]'")
        self.workers = workers
        self.limit_seconds = limit_seconds
        self._begin()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.workers, self.limit_seconds)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free = threading.Semaphore(self.workers)
        self._idle: list[_Worker] = []
        self._prepared = threading.Lock()  # taken once, by who starts the first process
        self._finalizer = weakref.finalize(self, _close, self._pid, self._idle)

    def prepare(self) -> None:
        """Start a first process without waiting for it, so that the first comparison need not."""
        self._own()
        if self._prepared.acquire(blocking=False):
            self._idle.append(_Worker())

    def _own(self) -> None:
        if self._pid != os.getpid():  # a fork: the processes belong to the parent
            self._finalizer.detach()
            self._begin()

    def compare(self, gold: str, answer: str, *, whole: bool = False) -> Comparison:
        """Compare a bare gold answer with the content of a box, or with a whole response.

        Returns within `limit_seconds` + 1 s, the start of a process aside.

        Raises:
            VerifierFailure: no process could be started, or it broke down.
        """
        self._own()
        request = {"gold": gold, "answer": answer, "whole": whole, "limit_seconds": self.limit_seconds}
        with self._free:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = _Worker()
            try:
                reply = worker.ask(request, self.limit_seconds + _GRACE_SECONDS)
            except BaseException:  # also an interrupt: a late reply must not be taken for that to the next request
                worker.kill()
                raise
            if reply is None:
                worker.kill()
                return Comparison(outcome=Outcome.TIMEOUT, detail="the worker did not answer")
            self._idle.append(worker)
        return Comparison(outcome=Outcome(reply["outcome"]), detail=reply["detail"])

    def close(self) -> None:
        """End the processes; a later comparison starts new ones."""
        if self._pid == os.getpid():
            _close(self._pid, self._idle)


def _unpickled(workers: int, limit_seconds: float) -> ComparisonPool:
    return ComparisonPool(workers=workers, limit_seconds=limit_seconds)


def _close(pid: int, idle: list[_Worker]) -> None:
    while idle and pid == os.getpid():
        idle.pop().kill()


class _Worker:
    """One worker process and the two pipes to it."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("worker.py")
        # Orders of sets must not differ from process to process.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                # A session of its own: an interrupt at the terminal is for the parent, and killing takes the child too.
                start_new_session=True,
            )
        except OSError as error:
            raise VerifierFailure(f"a process for math-verify could not be started: {error}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._ready = False

    def ask(self, request: dict[str, Any], limit_seconds: float) -> dict[str, str] | None:
        """The reply to a request; None when there is none within the limit, which the start does not count in."""
        if not self._ready and self._line(_START_SECONDS) != _READY:
            raise VerifierFailure(f"a process for math-verify did not start within {_START_SECONDS:g} s")
        self._ready = True
        data = json.dumps(request).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            raise VerifierFailure("a process for math-verify has died") from None
        line = self._line(limit_seconds)
        return None if line is None else json.loads(line)

    def _line(self, limit_seconds: float) -> bytes | None:
        """One line without its end; None when it does not come in time."""
        deadline, line = time.monotonic() + limit_seconds, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                return None
            chunk = os.read(self._replies, 65536)
            if not chunk:
                raise VerifierFailure("a process for math-verify has died")
            line += chunk
        return line[:-1]

    def kill(self) -> None:
        """End the process and its child."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
