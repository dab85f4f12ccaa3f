"""Sandboxes that wait, started, for a job; each serves one and is thrown away."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from lecritique.core.errors import VerifierFailure
from lecritique.tasks.sandbox.execution import Execution, Limits
from lecritique.tasks.sandbox.isolation import SandboxUnavailable
from lecritique.tasks.sandbox.worker import Preparation, Worker

# One fork, never a loop: were it not refused, one child would end at once.
_PROBE = """
import os, socket
def probe():
    found = []
    try:
        child = os.fork()
        if child == 0:
            os._exit(0)
        found.append("a new process")
    except OSError:
        pass
    try:
        socket.socket().close()
        found.append("a socket")
    except OSError:
        pass
    if os.getuid() != 65534:
        found.append(f"user {os.getuid()}")
    try:
        open("/probe", "w").close()
        found.append("a file in the root")
    except OSError:
        pass
    return found
"""


class SandboxPool:
    """Executes code behind the walls. Thread-safe; `warm` fresh workers are started ahead.

    Raises:
        SandboxUnavailable: there is no isolation on this machine. There is no way to run without.
    """

    def __init__(self, limits: Limits | None = None, preparation: Preparation | None = None, *, warm: int = 2) -> None:
        require_isolation()
        self.limits = limits or Limits()
        self._preparation = preparation or Preparation()
        self._fresh: queue.Queue[Worker | Exception] = queue.Queue(maxsize=max(warm, 1))
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._spent: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._closing = threading.Event()
        # Linux ends a sandbox with the thread that started it, not with the process (PR_SET_PDEATHSIG): one thread
        # that lives as long as the pool starts them all.
        self._starter = threading.Thread(target=self._keep_warm, name="sandbox starter", daemon=True)
        self._starter.start()

    def run(self, source: str, *, stdin: str = "", wall_seconds: float | None = None) -> Execution:
        """Run a script; what it prints is in the result's `stdout`."""
        return self._execute({"mode": "program", "source": source, "stdin": stdin}, wall_seconds)

    def call(
        self, source: str, function: str, arguments: Mapping[str, Any] | None = None, wall_seconds: float | None = None
    ) -> Execution:
        """The value of `function(**arguments)`, defined by `source` or, where that is empty, by the prelude.

        Arguments and value travel as JSON.
        """
        job = {"mode": "call", "source": source, "function": function, "arguments": dict(arguments or {})}
        return self._execute(job, wall_seconds)

    def close(self) -> None:
        """End every worker. Calls that are running end as killed."""
        self._closing.set()
        while self._starter.is_alive():
            self._discard_waiting()
            self._starter.join(0.01)
        self._discard_waiting()

    def _execute(self, job: Mapping[str, Any], wall_seconds: float | None) -> Execution:
        worker = self._worker()
        fit = False
        try:
            result = worker.execute(job, self.limits.wall_seconds if wall_seconds is None else wall_seconds)
            fit = self._preparation.reuse and result.kind in ("output", "error") and not self._closing.is_set()
        finally:
            (self._idle if fit else self._spent).put(worker)
        return result

    def _worker(self) -> Worker:
        """A worker that is ready.

        Raises:
            VerifierFailure: none could be started, though the walls stood when the pool was made.
        """
        if self._closing.is_set():
            raise RuntimeError("this sandbox pool is closed")
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            waiting = self._fresh.get()
        if isinstance(waiting, Worker):
            try:
                waiting.wait_ready()  # ends it where it raises
            except SandboxUnavailable as error:
                raise VerifierFailure(str(error)) from error
            return waiting
        raise VerifierFailure(f"a sandbox could not be started: {waiting}") from waiting

    def _keep_warm(self) -> None:
        while not self._closing.is_set():
            _end_all(self._spent)
            try:
                started: Worker | Exception = Worker(self.limits, self._preparation)
            except Exception as error:  # told to the caller that waits for this worker
                started = error
            self._fresh.put(started)

    def _discard_waiting(self) -> None:
        for workers in (self._fresh, self._idle, self._spent):
            _end_all(workers)


def _end_all(workers: queue.Queue[Any] | queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            worker = workers.get_nowait()
        except queue.Empty:
            return
        if isinstance(worker, Worker):
            worker.end()


def require_isolation() -> None:
    """Return where the walls stand.

    Raises:
        SandboxUnavailable: they cannot be built here, or do not hold; the message says how to get them.
    """
    _probe(os.getpid())


@lru_cache(maxsize=1)
def _probe(process: int) -> None:
    worker = Worker(Limits(), Preparation())
    try:
        worker.wait_ready()
        result = worker.execute(
            {"mode": "call", "source": _PROBE, "function": "probe", "arguments": {}}, Limits().wall_seconds
        )
    finally:
        worker.end()
    if result.kind != "output" or result.value != []:
        found = result.error or f"inside one gets {', '.join(map(str, result.value or []))}"
        raise SandboxUnavailable(f"the walls do not hold ({found})")


def shared_pool(limits: Limits | None = None, preparation: Preparation | None = None, *, warm: int = 2) -> SandboxPool:
    """The process's one pool for these limits and this preparation."""
    return _shared(os.getpid(), limits or Limits(), preparation or Preparation(), warm)


@cache
def _shared(process: int, limits: Limits, preparation: Preparation, warm: int) -> SandboxPool:
    # By process: a forked child inherits the object but not its thread.
    pool = SandboxPool(limits, preparation, warm=warm)
    atexit.register(pool.close)
    return pool
