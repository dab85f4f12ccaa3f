"""A replica's process: takes commands from a pipe and decodes one token of every open request at a time.

Commands are looked at between two tokens, so an update of the weights never falls into one, and every token's policy
version is known. Started with `python -m lecritique.rollout.vllm_server DESCRIPTOR`.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import numpy as np

from lecritique.core.rollout import Completion, FinishReason, GenerateRequest
from lecritique.rollout.vllm_messages import (
    Adopt,
    Adopted,
    Began,
    Cancel,
    Command,
    Completed,
    Failed,
    Ready,
    Rejected,
    ReplicaSettings,
    Report,
    Stop,
    Submit,
    Weights,
    Working,
)

# How often a replica that decodes says so, if it has nothing else to say.
_SIGN_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What a step sampled for one request, and whether vLLM is done with it."""

    request_id: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason | None


class Decoder(Protocol):
    """What a replica drives: vLLM, or something that behaves like it."""

    def add(self, request: GenerateRequest) -> None:
        """Take a request; ValueError when it cannot be served."""
        ...

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        ...

    def step(self) -> list[Sampled]:
        """Decode a token of each request that has a place."""
        ...

    def load(self, weights: Weights) -> None:
        """Replace the weights and forget every cached key, those of open requests too."""
        ...


@dataclass(kw_only=True)
class _Open:
    """A request and what was sampled for it."""

    request: GenerateRequest
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def completion(self, reason: FinishReason) -> Completion:
        return Completion(
            request_id=self.request.request_id,
            token_ids=np.array(self.token_ids, dtype=np.int64),
            logprobs=np.array(self.logprobs, dtype=np.float64),
            policy_version=np.array(self.versions, dtype=np.int64),
            finish_reason=reason,
        )


class Replica:
    """Works off commands until it is told to stop.

    Args:
        decoder: samples.
        inbox: commands in the order in which they were given.
        send: takes reports.
    """

    def __init__(self, decoder: Decoder, inbox: queue.SimpleQueue[Command], send: Connection) -> None:
        self._decoder = decoder
        self._inbox = inbox
        self._send = send
        self._open: dict[str, _Open] = {}
        self._version: int | None = None
        self._last_sign = time.monotonic()

    def serve(self) -> None:
        """Return when told to stop; what the decoder raises is passed on."""
        while self._obey(self._commands()):
            if self._open:
                self._report_sampled(self._decoder.step())
                self._give_sign()

    def _commands(self) -> list[Command]:
        """All that wait; with nothing to decode the first one is waited for."""
        commands = [] if self._open else [self._inbox.get()]
        while not self._inbox.empty():
            commands.append(self._inbox.get())
        return commands

    def _obey(self, commands: Sequence[Command]) -> bool:
        """Do them in order; False when one says stop. Of several versions the last is loaded, in place of the first."""
        newest = next((command for command in reversed(commands) if isinstance(command, Adopt)), None)
        for command in commands:
            match command:
                case Stop():
                    return False
                case Submit(request=request):
                    self._begin(request)
                case Cancel(request_id=request_id):
                    self._cancel(request_id)
                case Adopt(manifest=manifest):
                    if newest is not None:
                        self._decoder.load(newest.weights)
                        self._version, newest = newest.manifest.version, None
                    self._report(Adopted(manifest=manifest))
        return True

    def _begin(self, request: GenerateRequest) -> None:
        try:
            if self._version is None:
                raise ValueError("no weights have been adopted yet")
            self._decoder.add(request)
        except ValueError as error:
            self._report(Rejected(request_id=request.request_id, reason=one_line(error)))
        else:
            self._open[request.request_id] = _Open(request=request)

    def _cancel(self, request_id: str) -> None:
        entry = self._open.pop(request_id, None)
        if entry is not None:
            self._decoder.abort(request_id)
            self._report(Completed(completion=entry.completion("cancelled")))

    def _report_sampled(self, everything: Sequence[Sampled]) -> None:
        assert self._version is not None
        began, ended = [], []
        for sampled in everything:
            entry = self._open.get(sampled.request_id)
            if entry is None:
                continue
            if sampled.token_ids and not entry.token_ids:
                began.append(sampled.request_id)
            entry.token_ids += sampled.token_ids
            entry.logprobs += sampled.logprobs
            entry.versions += [self._version] * len(sampled.token_ids)
            if sampled.finish_reason is not None:
                ended.append(self._open.pop(sampled.request_id).completion(sampled.finish_reason))
        if began:
            self._report(Began(version=self._version, request_ids=tuple(began)))
        for completion in ended:
            self._report(Completed(completion=completion))

    def _give_sign(self) -> None:
        """Who listens tells a replica that works on a long answer from one that hangs."""
        if time.monotonic() - self._last_sign >= _SIGN_SECONDS:
            self._report(Working())

    def _report(self, report: Report) -> None:
        self._send.send(report)
        self._last_sign = time.monotonic()


def run_replica(connection: Connection, inbox: queue.SimpleQueue[Command], settings: ReplicaSettings) -> None:
    """Start vLLM, say so, serve; what goes wrong is said too."""
    from lecritique.rollout.vllm_library import VllmDecoder

    try:
        decoder = VllmDecoder(settings)
        try:
            connection.send(Ready())
            Replica(decoder, inbox, connection).serve()
        finally:
            decoder.close()
    except Exception as error:
        import traceback

        traceback.print_exc()
        connection.send(Failed(reason=f"{type(error).__name__}: {one_line(error)}"))


def one_line(error: BaseException) -> str:
    """The first line of an error's text, of bounded length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:400]


def _receive(connection: Connection, inbox: queue.SimpleQueue[Command], folder: Path) -> None:
    """Empty the pipe at once, so that a caller never waits for a replica that is busy.

    At its end the caller is gone, whatever became of it: its folder, this process and what it started go too.
    """
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(os.getpgid(0), signal.SIGKILL)


def main(descriptor: int) -> None:
    """Serve the caller at the other end of the socket `descriptor` until it says stop or is gone."""
    if os.getpgid(0) != os.getpid():
        raise RuntimeError("a replica is started as the leader of its own process group")
    connection = Connection(descriptor)
    settings = connection.recv()
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    folder = Path(settings.model_folder).parent
    threading.Thread(target=_receive, args=(connection, inbox, folder), name="commands", daemon=True).start()
    run_replica(connection, inbox, settings)
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM is closed; the interpreter's own end can hang in what its libraries have left behind.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
