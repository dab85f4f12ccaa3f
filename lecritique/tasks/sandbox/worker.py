"""One isolated process, seen from outside: start it, hand it a job, read what comes within the limits, end it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lecritique.tasks.json_values import JsonRefused, parse_json
from lecritique.tasks.sandbox.execution import Execution, Kind, Limits
from lecritique.tasks.sandbox.isolation import SandboxUnavailable, filter_file, interpreter, isolated

_INSIDE = Path(__file__).with_name("inside.py")
_START_SECONDS = 60.0
_END_SECONDS = 2.0
_FRAME_OVERHEAD = 4096


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a worker has done before its first job.

    Args:
        prelude: source that is run once; functions that it defines can be called by jobs without source.
        packages: folders that are readable inside and on the import path.
        reuse: whether a worker serves many calls. Only for calls that run no code of a model: what one call leaves
            in the process, the next one finds.
        hash_seed: PYTHONHASHSEED inside; fixed, so that sets of text have one order.
    """

    prelude: str = ""
    packages: tuple[str, ...] = ()
    reuse: bool = False
    hash_seed: int = 0


@dataclass
class _Stream:
    """Bytes read from one descriptor, up to `most`."""

    most: int
    data: bytearray = field(default_factory=bytearray)
    full: bool = False

    def add(self, part: bytes) -> None:
        self.data += part
        if len(self.data) > self.most:
            del self.data[self.most :]
            self.full = True

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Worker:
    """A started sandbox. Used by one thread at a time."""

    def __init__(self, limits: Limits, preparation: Preparation) -> None:
        self._limits = limits
        self._results, results_inside = os.pipe()
        self._started, started_inside = os.pipe()
        filter_descriptor = filter_file()
        self._first = -1
        self._spent = False
        try:
            self._process = subprocess.Popen(
                self._command(limits, preparation, results_inside, started_inside, filter_descriptor),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(results_inside, started_inside, filter_descriptor),
                env={},
                cwd="/",
                bufsize=0,
            )
        except OSError as error:
            os.close(self._results)
            os.close(self._started)
            raise SandboxUnavailable(f"bubblewrap cannot be started ({error})") from error
        finally:
            for descriptor in (results_inside, started_inside, filter_descriptor):
                os.close(descriptor)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        for descriptor in (self._stdin.fileno(), self._stdout.fileno(), self._stderr.fileno(), self._results):
            os.set_blocking(descriptor, False)

    @staticmethod
    def _command(
        limits: Limits, preparation: Preparation, results: int, started: int, filter_descriptor: int
    ) -> list[str]:
        settings = {
            "results_descriptor": results,
            "prelude": preparation.prelude,
            "packages": preparation.packages,
            "reuse": preparation.reuse,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "open_files": limits.open_files,
            "cpu_seconds": limits.cpu_seconds,
        }
        return isolated(
            [interpreter(), "-s", "-P", "-S", "-X", "utf8", str(_INSIDE), json.dumps(settings)],
            read_only=[*preparation.packages, str(_INSIDE)],
            file_bytes=limits.file_bytes,
            hash_seed=preparation.hash_seed,
            filter_descriptor=filter_descriptor,
            started_descriptor=started,
        )

    def wait_ready(self) -> None:
        """Return when the worker can take a job.

        Raises:
            SandboxUnavailable: it ended, or took more than a minute.
        """
        self._first = self._first_process()
        frame, stdout, stderr = self._exchange(b"", time.monotonic() + _START_SECONDS, most=_FRAME_OVERHEAD)
        if frame is None:
            self.end()
            raise SandboxUnavailable(f"a worker did not start: {(stderr.text or stdout.text)[-300:] or 'no message'}")

    def execute(self, job: Mapping[str, Any], wall_seconds: float) -> Execution:
        """Run one job. The worker is fit for another only if it was started for reuse and this one ended in time."""
        token = secrets.token_hex(16)
        data = json.dumps({**job, "token": token}).encode()
        started = time.monotonic()
        frame, stdout, stderr = self._exchange(
            len(data).to_bytes(8, "big") + data, started + wall_seconds, most=self._limits.value_bytes + _FRAME_OVERHEAD
        )
        seconds = time.monotonic() - started
        kind, value, error = self._ending(frame, token, seconds, wall_seconds, stdout.full or stderr.full)
        return Execution(
            kind=kind, value=value, error=error, stdout=stdout.text, stderr=stderr.text, seconds=seconds
        )  # fmt: skip

    def _ending(
        self, frame: bytes | None, token: str, seconds: float, wall_seconds: float, full: bool
    ) -> tuple[Kind, Any, str]:
        """(kind, value, error) of what was read."""
        if full:
            self.kill()
            return "killed", None, f"it wrote more than {self._limits.output_bytes} bytes"
        if frame is not None:
            return self._answer(frame, token)
        if seconds >= wall_seconds:
            self.kill()
            return "timeout", None, "it did not end within its time"
        if not self._spent:
            self.kill()
            return "killed", None, f"it returned more than {self._limits.value_bytes} bytes"
        code = self.end()
        if code == 128 + signal.SIGKILL and seconds >= 0.9 * self._limits.cpu_seconds:
            return "timeout", None, f"it used more than {self._limits.cpu_seconds} seconds of the processor"
        return "killed", None, f"it ended without a result (exit code {code})"

    def _answer(self, frame: bytes, token: str) -> tuple[Kind, Any, str]:
        """The frame's content; one that is not ours was forged by the program, which then counts as killed."""
        try:
            answer = parse_json(frame.decode("utf-8", "replace"), most_characters=len(frame))
        except JsonRefused as refusal:
            self.kill()
            return "killed", None, f"its result cannot be read: {refusal}"
        forged = not isinstance(answer, dict) or answer.get("token") != token or answer.get("kind") not in _ENDINGS
        if forged:
            self.kill()
            return "killed", None, "it wrote to the sandbox's own channel"
        error = str(answer.get("error", ""))[:1000].encode("utf-8", "replace").decode()
        return answer["kind"], answer.get("value"), error

    def _exchange(self, outgoing: bytes, deadline: float, most: int) -> tuple[bytes | None, _Stream, _Stream]:
        """Write `outgoing`; read until a whole result frame, the end of the process, a full stream or `deadline`."""
        result = _Stream(8 + most)
        stdout, stderr = _Stream(self._limits.output_bytes), _Stream(self._limits.output_bytes)
        streams = {self._results: result, self._stdout.fileno(): stdout, self._stderr.fileno(): stderr}
        pending = memoryview(outgoing)
        with selectors.DefaultSelector() as selector:
            for descriptor in streams:
                selector.register(descriptor, selectors.EVENT_READ)
            if pending:
                selector.register(self._stdin, selectors.EVENT_WRITE)
            while self._results in selector.get_map() and not (stdout.full or stderr.full):
                for key, _ in selector.select(max(deadline - time.monotonic(), 0)):
                    if key.fd in streams:
                        self._read(selector, key.fd, streams[key.fd])
                    else:
                        pending = self._write(selector, pending)
                if _frame(result) is not None or result.full or time.monotonic() >= deadline:
                    break
            self._drain(selector, streams)
        return _frame(result), stdout, stderr

    def _read(self, selector: selectors.BaseSelector, descriptor: int, stream: _Stream) -> None:
        try:
            part = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        if part:
            stream.add(part)
        else:
            selector.unregister(descriptor)
            self._spent = self._spent or descriptor == self._results

    def _write(self, selector: selectors.BaseSelector, pending: memoryview) -> memoryview:
        try:
            pending = pending[os.write(self._stdin.fileno(), pending) :]
        except BlockingIOError:
            return pending
        except BrokenPipeError:
            pending = pending[:0]
        if not pending:
            selector.unregister(self._stdin)
        return pending

    def _drain(self, selector: selectors.BaseSelector, streams: Mapping[int, _Stream]) -> None:
        """Take what already lies in the pipes: a program prints before its result is sent."""
        for descriptor, stream in streams.items():
            while descriptor in selector.get_map() and not stream.full:
                before = len(stream.data)
                self._read(selector, descriptor, stream)
                if len(stream.data) == before:
                    break

    def _first_process(self) -> int:
        """A handle of the first process inside, or -1 if it never was."""
        told = b""
        while b"}" not in told and select.select([self._started], [], [], _START_SECONDS)[0]:
            part = os.read(self._started, 4096)
            if not part:
                break
            told += part
        os.close(self._started)
        self._started = -1
        try:
            return os.pidfd_open(json.loads(told)["child-pid"])
        except (ValueError, KeyError, OSError):  # bubblewrap failed, which wait_ready reports
            return -1

    def kill(self) -> None:
        """Kill everything inside.

        The first process inside is killed and not bubblewrap: that one then collects it, where a child that
        outlives its parent would stay a zombie under a first process that does not collect any.
        """
        if self._first >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
        else:
            self._process.kill()

    def end(self) -> int:
        """Kill what still runs, give all descriptors back; returns the exit code."""
        if self._started >= 0:
            # Were bubblewrap killed before it has let its child go on, the child would wait for ever.
            self._first = self._first_process()
        if self._spent:
            # It ends by itself, and its exit code says how.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        if self._process.poll() is None:
            self.kill()
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        for stream in (self._stdin, self._stdout, self._stderr):
            stream.close()
        for name in ("_results", "_started", "_first"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)
        return code


_ENDINGS = ("output", "error")


def _frame(stream: _Stream) -> bytes | None:
    """The first whole frame in the stream, or nothing; a frame that claims more than may be read never is whole."""
    size = int.from_bytes(stream.data[:8], "big")
    if len(stream.data) < 8 or len(stream.data) < 8 + size:
        return None
    return bytes(stream.data[8 : 8 + size])
