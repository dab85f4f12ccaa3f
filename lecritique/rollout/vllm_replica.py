"""The process of one vLLM replica, seen from the engine that started it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from lecritique.core.errors import ConfigurationError
from lecritique.rollout.vllm_messages import (
    Adopt,
    Adopted,
    Command,
    Completed,
    Failed,
    Ready,
    Rejected,
    ReplicaSettings,
    Report,
    Stop,
    Submit,
)

# How long a replica that was asked to stop has before it is killed.
_STOP_SECONDS = 10.0
# Of a replica, where the caller has not set them otherwise.
_VARIABLES = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    # vLLM would bind the threads of all replicas and of the trainer to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
SERVER = ("-P", "-m", "lecritique.rollout.vllm_server")


def require_vllm() -> None:
    """Raise ConfigurationError when vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigurationError("'runtime.engine.type' = 'vllm' needs the extra vllm: pip install 'lecritique[vllm]'.")


class _Answers:
    """What a replica owes, and since when nothing was heard from it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owed = 0
        self._since = 0.0
        self._being_told = False

    def expect(self, command: Command) -> None:
        """It is asked for something that it answers."""
        if isinstance(command, Submit | Adopt):
            with self._lock:
                if self._owed == 0:
                    self._since = time.monotonic()
                self._owed += 1

    def heard(self, report: Report) -> None:
        """It has said something, which the engine is being told now."""
        with self._lock:
            self._being_told = True
            self._owed -= isinstance(report, Completed | Rejected | Adopted)

    def told(self) -> None:
        """The engine has been told, and more is listened for."""
        with self._lock:
            self._being_told = False
            self._since = time.monotonic()

    def silent_seconds(self) -> float:
        """How long it has not said anything, though it owes something."""
        with self._lock:
            # While the engine takes what was said, nobody listens.
            return 0.0 if self._being_told or self._owed == 0 else time.monotonic() - self._since


class ReplicaProcess:
    """Starts a replica at once and listens to it on a thread.

    It leads a process group of its own, so that vLLM's workers end with it and an interrupt from the keyboard does not
    reach it.

    Args:
        settings: sent first.
        number: given back with every report.
        log: file of what it prints.
        variables: added to its environment.
        report: told what it says, and once that it failed however it ended; called on the listening thread.
        server: arguments of the interpreter.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        *,
        number: int,
        log: Path,
        variables: Mapping[str, str],
        report: Callable[[int, Report], None],
        server: tuple[str, ...] = SERVER,
    ) -> None:
        self.number = number
        self._log = log
        self._report = report
        self._began = time.monotonic()
        self._started = threading.Event()
        self._answers = _Answers()
        self._failure: str | None = None
        self._killed_for: str | None = None
        self._sending = threading.Lock()
        self._ended = False
        if server == SERVER:
            require_vllm()
        mine, theirs = socket.socketpair()
        # Sampling has compiled parts that vLLM's own switch does not reach.
        eager = {"TORCHDYNAMO_DISABLE": "1"} if settings.enforce_eager else {}
        environment = {**_VARIABLES, **eager, **os.environ, **variables, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        with theirs, log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, *server, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        self._connection = Connection(mine.detach())
        self._connection.send(settings)
        self._listener = threading.Thread(target=self._listen, name=f"vllm replica {number}", daemon=True)
        self._listener.start()

    def wait_until_ready(self, seconds: float) -> None:
        """Return when it serves.

        Raises:
            ConfigurationError: it does not start, or not in time.
        """
        if not self._started.wait(seconds):
            raise ConfigurationError(
                f"vLLM replica {self.number} did not start within {seconds:g} seconds, expected it to "
                "('runtime.engine.start_seconds')."
            )
        if self._failure is not None:
            raise ConfigurationError(f"'runtime.engine.type' = 'vllm' cannot start: {self._failure}.")

    @property
    def failure(self) -> str | None:
        """Why it has ended, if it has."""
        return self._failure

    def send(self, command: Command) -> None:
        """Hand over a command; one that has died hears nothing, and its end is reported by the listener."""
        self._answers.expect(command)
        with self._sending, contextlib.suppress(OSError):
            self._connection.send(command)

    def kill_if_stuck(self, *, start_seconds: float, stuck_seconds: float) -> None:
        """Kill it when it takes too long to start, or owes an answer and has said nothing for too long.

        Its end is reported by the listener. Waits for nobody, as whoever holds a lock may wait for the pipe.
        """
        if self._failure is not None:
            return
        if not self._started.is_set():
            if time.monotonic() - self._began > start_seconds:
                self._killed_for = f"it did not start within {start_seconds:g} seconds ('runtime.engine.start_seconds')"
        elif self._answers.silent_seconds() > stuck_seconds:
            self._killed_for = f"it did nothing for {stuck_seconds:g} seconds ('runtime.engine.stuck_seconds')"
        if self._killed_for is not None:
            self._kill()

    def bury(self) -> None:
        """End what is left of one that has failed: its memory is free for the next, as far as it can be freed."""
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)

    def ask_to_stop(self) -> None:
        """Let it end by itself, if it is far enough to listen."""
        if not self._ended and self._process.poll() is None:
            if self._started.is_set():
                self.send(Stop())
            else:
                self._kill()

    def stop(self) -> None:
        """Return when it and what it started have ended."""
        if self._ended:
            return
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._kill()
        self._ended = True
        self._listener.join()
        with self._sending:
            self._connection.close()

    def _kill(self) -> None:
        """Its whole group, workers that outlived it included."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _listen(self) -> None:
        try:
            while True:
                report = self._connection.recv()
                if isinstance(report, Failed):
                    self._failure = report.reason
                    break
                if isinstance(report, Ready):
                    self._started.set()
                self._answers.heard(report)
                self._report(self.number, report)
                self._answers.told()
        except (EOFError, OSError):
            self._failure = self._killed_for or self._last_words()
        self._report(self.number, Failed(reason=self._failure))
        self._started.set()

    def _last_words(self) -> str:
        """Why it may have died: its exit code and the last line that it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        with contextlib.suppress(OSError):
            lines = self._log.read_bytes()[-4000:].decode(errors="replace").split("\n")
            said = next((line.strip() for line in reversed(lines) if line.strip()), "")
            return f"its process ended with code {self._process.returncode}" + (f" ({said[:400]})" if said else "")
        return f"its process ended with code {self._process.returncode}"
