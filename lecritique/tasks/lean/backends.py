"""Three ways to ask Lean: a process for each check, REPL processes that keep the header, a Kimina server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import urllib.error
import urllib.request
import weakref
from pathlib import Path
from typing import Any

from lecritique.core.errors import ConfigurationError, VerifierFailure
from lecritique.tasks.lean.checking import Compilation, LeanBackend, LeanMessage, read_message
from lecritique.tasks.lean.options import KiminaLean, LeanOptions, PlainLean, ReplLean
from lecritique.tasks.lean.processes import LeanProcess, Limits

_MEBIBYTE = 1 << 20


def backend_of(options: LeanOptions) -> LeanBackend:
    """The back end of the options; no process is started yet.

    Raises:
        ConfigurationError: its command, directory or API key is not there.
    """
    limits = Limits(seconds=options.limit_seconds, memory_bytes=options.memory_mebibytes * _MEBIBYTE)
    match options.backend:
        case PlainLean() as plain:
            _require(plain)
            return PlainBackend(plain, limits, options.workers)
        case ReplLean() as repl:
            _require(repl)
            return ReplBackend(repl, limits, options.workers)
        case KiminaLean() as kimina:
            return KiminaBackend(kimina, limits, options.workers)


def _require(options: PlainLean | ReplLean) -> None:
    if options.directory is not None and not Path(options.directory).is_dir():
        raise ConfigurationError(f"task.backend.directory = {options.directory!r}: there is no such directory")
    if shutil.which(options.command[0], path=options.environment.get("PATH")) is None:
        raise ConfigurationError(
            f"task.backend.command = {options.command}: there is no program {options.command[0]!r}; Lean is installed "
            "with elan, see the README"
        )


class PlainBackend:
    """`lean --json --stdin`."""

    def __init__(self, options: PlainLean, limits: Limits, workers: int) -> None:
        self._options, self._limits = options, limits
        self._free = threading.Semaphore(workers)

    def compiled(self, header: str, body: str) -> Compilation:
        """The messages of one process."""
        # Lean's own memory limit ends a check with a message; ours, a little above, ends the process.
        memory = self._limits.memory_bytes // _MEBIBYTE
        command = [*self._options.command, "--json", "--stdin", "-M", str(memory)]
        with self._free:
            process = LeanProcess(
                command,
                directory=self._options.directory,
                environment=self._options.environment,
                cpu_seconds=2 * self._limits.seconds,
            )
            try:
                ending, output = process.exchange(
                    header + body, limits=self._limits, complete=lambda output: False, last=True
                )
                code = process.wait(1.0) if ending == "closed" else None
                complaint = process.complaint()
            finally:
                process.kill()
        if ending in ("timeout", "exhausted"):
            return Compilation(outcome=ending)
        return _plain_compilation(output, code, complaint, lines_before=header.count("\n"))

    def close(self) -> None:
        """Nothing is kept between checks."""


def _plain_compilation(output: bytes, code: int | None, complaint: str, *, lines_before: int) -> Compilation:
    messages = []
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith("{"):
            try:
                messages.append(read_message(json.loads(line), lines_before=lines_before))
            except ValueError as error:
                raise VerifierFailure(f"Lean wrote {line[:200]!r}: {error}") from error
    _require_header(messages)
    if code == 0 or (code == 1 and any(message.severity == "error" for message in messages)):
        return Compilation(outcome="compiled", messages=tuple(messages))
    # A signal: out of memory or out of stack, which a proof can bring about.
    if code is None or code < 0 or code >= 128 or "memory" in complaint:
        return Compilation(outcome="exhausted")
    raise VerifierFailure(f"Lean exited with {code}: {complaint or 'without a message'}")


def _require_header(messages: list[LeanMessage]) -> None:
    for message in messages:
        if message.severity == "error" and message.line < 1:
            raise VerifierFailure(f"Lean does not accept the header: {message.text[:300]}")


class ReplBackend:
    """REPL processes, each with the headers that it has imported."""

    def __init__(self, options: ReplLean, limits: Limits, workers: int) -> None:
        self._options, self._limits, self._workers = options, limits, workers
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free = threading.Semaphore(self._workers)
        self._idle: list[_Repl] = []
        self._finalizer = weakref.finalize(self, _close, self._pid, self._idle)

    def compiled(self, header: str, body: str) -> Compilation:
        """The messages of one command in the header's environment."""
        if self._pid != os.getpid():  # a fork: the processes belong to the parent
            self._finalizer.detach()
            self._begin()
        with self._free:
            try:
                repl = self._idle.pop()
            except IndexError:
                repl = _Repl(self._options, self._limits)
            try:
                answer = repl.checked(header, body)
            except BaseException:  # also an interrupt: a late answer must not be taken for that to the next command
                repl.kill()
                raise
            if isinstance(answer, Compilation) or repl.checks >= self._options.checks_per_process:
                repl.kill()
            else:
                self._idle.append(repl)
        if isinstance(answer, Compilation):
            return answer
        messages = [read_message(raw, lines_before=0) for raw in answer.get("messages") or ()]
        return Compilation(outcome="compiled", messages=tuple(messages), sorries=len(answer.get("sorries") or ()))

    def close(self) -> None:
        """End the processes; a later check starts new ones."""
        _close(os.getpid(), self._idle)


def _close(pid: int, idle: list[_Repl]) -> None:
    while idle and pid == os.getpid():
        idle.pop().kill()


class _Repl:
    """One REPL process."""

    def __init__(self, options: ReplLean, limits: Limits) -> None:
        self._limits = limits
        self._start = Limits(seconds=options.start_seconds, memory_bytes=limits.memory_bytes)
        self._process = LeanProcess(
            options.command,
            directory=options.directory,
            environment=options.environment,
            cpu_seconds=options.start_seconds + (options.checks_per_process + 1) * limits.seconds,
        )
        self._environments: dict[str, int | None] = {"": None}
        self.checks = 0

    def checked(self, header: str, body: str) -> dict[str, Any] | Compilation:
        """The answer to a body, or the limit that it ran into.

        Raises:
            VerifierFailure: the header does not compile, or the REPL does not speak the protocol.
        """
        header = header.strip()
        if header not in self._environments:
            self._environments[header] = self._imported(header)
        self.checks += 1
        return self._asked(body, self._environments[header], self._limits)

    def _imported(self, header: str) -> int:
        answer = self._asked(header + "\n", None, self._start)
        if isinstance(answer, Compilation):
            complaint = self._process.complaint()
            raise VerifierFailure(f"the REPL of Lean did not import the header: {complaint or answer.outcome}")
        for raw in answer.get("messages") or ():
            message = read_message(raw, lines_before=0)
            if message.severity == "error":
                raise VerifierFailure(f"Lean does not accept the header: {message.text[:300]}")
        if not isinstance(answer.get("env"), int):
            raise VerifierFailure(f"the REPL of Lean answered {str(answer)[:200]} to the header, expected an env")
        return answer["env"]

    def _asked(self, command: str, environment: int | None, limits: Limits) -> dict[str, Any] | Compilation:
        request = {"cmd": command} if environment is None else {"cmd": command, "env": environment}
        ending, output = self._process.exchange(
            json.dumps(request) + "\n\n",
            limits=limits,
            complete=_is_complete,
            last=False,
        )
        if ending == "timeout":
            return Compilation(outcome="timeout")
        if ending in ("exhausted", "closed"):  # closed: out of memory or out of stack
            return Compilation(outcome="exhausted")
        answer = _decoded(output)
        if not isinstance(answer, dict) or "message" in answer:
            raise VerifierFailure(f"the REPL of Lean answered {str(answer)[:200]}")
        return answer

    def kill(self) -> None:
        """End the process."""
        self._process.kill()


def _is_complete(output: bytes) -> bool:
    """Whether an answer has come to its end: a JSON value and an empty line."""
    return output.endswith(b"\n\n") and _decoded(output) is not None


def _decoded(output: bytes) -> Any:
    try:
        return json.loads(output)
    except ValueError:
        return None


class KiminaBackend:
    """`POST /api/check` of a Kimina Lean server."""

    def __init__(self, options: KiminaLean, limits: Limits, workers: int) -> None:
        self._url = options.url.rstrip("/") + "/api/check"
        self._seconds = limits.seconds
        self._free = threading.Semaphore(workers)
        self._headers = {"Content-Type": "application/json"}
        if options.api_key_variable is not None:
            key = os.environ.get(options.api_key_variable)
            if not key:
                raise ConfigurationError(
                    f"task.backend.api_key_variable = {options.api_key_variable!r}: the environment has no such "
                    "variable"
                )
            self._headers["Authorization"] = f"Bearer {key}"

    def compiled(self, header: str, body: str) -> Compilation:
        """The server's answer."""
        snippet = {"id": "check", "code": header + body}
        request = {"snippets": [snippet], "timeout": max(1, round(self._seconds)), "debug": False, "reuse": True}
        with self._free:
            answer = self._sent(json.dumps(request).encode())
        if answer is None:
            return Compilation(outcome="timeout")
        try:
            (result,) = answer["results"]
            problem, response = result.get("error"), result.get("response") or {}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise VerifierFailure(f"the Kimina server answered {str(answer)[:200]}, expected one result") from None
        if problem:
            if "timed out" in problem:
                return Compilation(outcome="timeout")
            if "memory" in problem.lower():
                return Compilation(outcome="exhausted")
            raise VerifierFailure(f"the Kimina server failed: {str(problem)[:300]}")
        if "message" in response or not isinstance(response.get("messages") or [], list):
            raise VerifierFailure(f"the Kimina server answered {str(response)[:200]}")
        return _kimina_compilation(response, header, body)

    def _sent(self, data: bytes) -> Any:
        """The decoded answer; None when there is none in time."""
        request = urllib.request.Request(self._url, data=data, headers=self._headers, method="POST")
        try:
            # The server keeps the limit itself and may have to import the header first.
            with urllib.request.urlopen(request, timeout=2 * self._seconds + 10.0) as response:
                return json.loads(response.read())
        except (TimeoutError, socket.timeout):  # noqa: UP041  (an alias only from 3.10 on)
            return None
        except urllib.error.HTTPError as error:
            raise VerifierFailure(f"the Kimina server at {self._url} answered HTTP {error.code}") from error
        except (OSError, ValueError) as error:
            raise VerifierFailure(f"the Kimina server at {self._url} could not be asked: {error}") from error

    def close(self) -> None:
        """Nothing is kept."""


def _kimina_compilation(response: dict[str, Any], header: str, body: str) -> Compilation:
    raw = response.get("messages") or []
    before = header.count("\n")
    # Some versions of the server count lines from behind the imports, which they send ahead.
    leading = 0
    for line in (header + body).splitlines():
        if line.strip() and not line.strip().startswith("import "):
            break
        leading += 1
    last = max((int(message["pos"]["line"]) for message in raw), default=0)
    shift = before if last == before + len(body.splitlines()) else before - leading
    messages = [read_message(message, lines_before=shift) for message in raw]
    _require_header(messages)
    return Compilation(outcome="compiled", messages=tuple(messages), sorries=len(response.get("sorries") or ()))
