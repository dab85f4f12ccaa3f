"""A cluster whose actors are processes of this machine: what joins a process group needs one. They die as planned."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lecritique.actors.cluster import ActorLost, Seat
from lecritique.actors.stage import Stage

# Forked from a process that has loaded torch, so that an actor starts at once.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["lecritique.runtime.group_hosting", "tests.unit.actors.process_cluster"])


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A signal to one actor while another, or itself, works on the `number`-th call of a host's method (from 1)."""

    victim: str
    seat: str
    method: str
    number: int
    after_seconds: float = 0.02
    signal: int = signal.SIGKILL


class ProcessActor:
    """A stage in a process."""

    def __init__(self, seat: Seat, cluster: ProcessCluster, log: Path, environment: Mapping[str, str]) -> None:
        self._seat, self._cluster = seat, cluster
        self._own, theirs = _FORKS.Pipe()
        self._sending, self._open, self._numbers = threading.Lock(), dict[int, Future[Any]](), itertools.count()
        self._lost = False
        self.process = _FORKS.Process(
            target=_act, args=(theirs, seat.name, seat.concurrent_calls + 1, str(log), dict(environment)), daemon=True
        )
        self.process.start()
        theirs.close()
        threading.Thread(target=self._listen, daemon=True).start()

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        answered: Future[Any] = Future()
        with self._sending:
            if self._lost:
                answered.set_exception(ActorLost("its process has ended"))
                return answered
            number = next(self._numbers)
            self._open[number] = answered
            with suppress(OSError):  # it has just died: the listener says so
                self._own.send_bytes(pickle.dumps((number, method, arguments)))
        self._cluster.strike(self._seat.name, arguments[1] if method == "call" else method)
        return answered

    def ping(self) -> Future[Any]:
        return self.call("ping")

    def kill(self) -> None:
        self.process.kill()

    def _listen(self) -> None:
        while True:
            try:
                number, answer = pickle.loads(self._own.recv_bytes())
            except (EOFError, OSError):
                break
            answered = self._open.pop(number)
            if answer is None or answer.error is None:
                answered.set_result(None if answer is None else answer.value)
            else:
                answered.set_exception(answer.error)
        with self._sending:
            self._lost = True
            lost, self._open = list(self._open.values()), {}
        for answered in lost:
            answered.set_exception(ActorLost("its process has ended"))


@dataclass
class ProcessCluster:
    """Starts processes, and has them struck as planned."""

    strikes: tuple[Strike, ...] = ()
    started: Counter[str] = field(default_factory=Counter)
    struck: list[Strike] = field(default_factory=list)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    sitting: dict[str, ProcessActor] = field(default_factory=dict)

    def start(self, seat: Seat, *, log: Path, environment: Mapping[str, str]) -> ProcessActor:
        self.started[seat.name] += 1
        self.sitting[seat.name] = ProcessActor(seat, self, log, environment)
        return self.sitting[seat.name]

    def strike(self, seat: str, method: str) -> None:
        self.calls[seat, method] += 1
        for each in self.strikes:
            if (each.seat, each.method, each.number) == (seat, method, self.calls[seat, method]):
                self.struck.append(each)
                time.sleep(each.after_seconds)
                os.kill(self.sitting[each.victim].process.pid, each.signal)


def _act(told: Connection, name: str, at_once: int, log: str, environment: dict[str, str]) -> None:
    """The actor's process: answers calls until nobody is there to make them."""
    import torch

    torch.set_num_threads(1)
    stage, threads, sending = Stage(name, log, environment), ThreadPoolExecutor(at_once), threading.Lock()

    def work(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        answer = pickle.dumps((number, getattr(stage, method)(*arguments)))
        with sending:
            told.send_bytes(answer)

    while True:
        try:
            threads.submit(work, *pickle.loads(told.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)
