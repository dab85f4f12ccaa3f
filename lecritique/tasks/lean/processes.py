"""Lean processes under limits of wall time, memory and output."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lecritique.core.errors import VerifierFailure

Ending = Literal["done", "closed", "timeout", "exhausted"]

_TICK_SECONDS = 0.05
_MOST_OUTPUT_BYTES = 8 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one exchange: wall time, and the memory of the process and its children without mapped files."""

    seconds: float
    memory_bytes: int


class LeanProcess:
    """A process in a session of its own, so that it can be killed with its children.

    Raises:
        VerifierFailure: it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, directory: str | None, environment: Mapping[str, str], cpu_seconds: float
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by kill)
        try:
            self._process = subprocess.Popen(
                list(command),
                cwd=directory,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise VerifierFailure(f"Lean could not be started with {list(command)}: {error}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        # Should this program be killed, the process ends by itself once it has used what it may use.
        if hasattr(resource, "prlimit"):
            limit = int(cpu_seconds) + 1
            with contextlib.suppress(OSError):
                resource.prlimit(self._process.pid, resource.RLIMIT_CPU, (limit, limit))
                resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))

    @property
    def pid(self) -> int:
        """Process id, also that of its session."""
        return self._process.pid

    def exchange(
        self, text: str, *, limits: Limits, complete: Callable[[bytes], bool], last: bool
    ) -> tuple[Ending, bytes]:
        """Send a text and read until `complete(output)`, the end of the output, or a limit.

        Args:
            text: to send.
            limits: of this exchange.
            complete: whether the output so far is the whole answer.
            last: close the input behind the text.
        """
        # Lone surrogates are no UTF-8; the compiler sees question marks.
        waiting, output = text.encode("utf-8", "replace"), bytearray()
        deadline = time.monotonic() + limits.seconds
        sending = True
        while True:
            if not waiting and sending:
                sending = False
                if last:
                    self._input.close()
            if time.monotonic() > deadline:
                return "timeout", bytes(output)
            if session_bytes(self.pid) > limits.memory_bytes or len(output) > _MOST_OUTPUT_BYTES:
                return "exhausted", bytes(output)
            writers = [self._input] if sending else []
            ready, writable, _ = select.select([self._output], writers, [], _TICK_SECONDS)
            if writable:
                try:
                    waiting = waiting[os.write(self._input.fileno(), waiting[:65536]) :]
                except BrokenPipeError:
                    waiting = b""
            if ready:
                chunk = os.read(self._output.fileno(), 65536)
                if not chunk:
                    return "closed", bytes(output)
                output += chunk
                if complete(bytes(output)):
                    return "done", bytes(output)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None when it has not ended in that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def complaint(self) -> str:
        """The last line that it wrote to standard error."""
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def kill(self) -> None:
        """End it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._input, self._output, self._errors):
            with contextlib.suppress(OSError):
                pipe.close()


def session_bytes(session: int) -> int:
    """Resident memory of all processes of a session, mapped files not counted; 0 where /proc is not there."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) != session:
                continue
            _, resident, shared = (entry / "statm").read_text().split()[:3]
        except (OSError, ValueError, IndexError):  # it has just ended
            continue
        total += (int(resident) - int(shared)) * _PAGE_BYTES
    return total
