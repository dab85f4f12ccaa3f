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
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from lecritique.core.errors import ConfigurationError
from lecritique.rollout.vllm_messages import Command, Failed, Ready, ReplicaSettings, Report, Stop

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
        self._started = threading.Event()
        self._failure: str | None = None
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

    def send(self, command: Command) -> None:
        """Hand over a command; one that has died hears nothing, and its end is reported by the listener."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.send(command)

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
                self._report(self.number, report)
        except (EOFError, OSError):
            self._failure = self._last_words()
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
