"""A cluster whose actors are threads of this process: everything that is said is pickled, and they die as planned."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lecritique.actors.cluster import ActorLost, Seat
from lecritique.actors.stage import Stage
from lecritique.config.schema import RunConfig
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.actor_roles import ActorRoles
from lecritique.runtime.build import Parts, build, load_base
from lecritique.runtime.restoring import train_on_actors

# Models are not loaded by several threads at once.
_LOADING = threading.Lock()


@dataclass(frozen=True)
class Death:
    """The actor of a seat dies at the `number`-th call of a host's method (from 1), before or after it is done.

    Or it hangs there until it is killed: its process is stopped and answers nothing, or it lives and is lost in it.
    """

    seat: str
    method: str
    number: int
    done: bool = False
    how: Literal["dies", "stops", "is lost"] = "dies"


class ThreadActor:
    """A stage on threads."""

    def __init__(self, seat: Seat, cluster: ThreadCluster) -> None:
        self._seat, self._cluster = seat, cluster
        self._stage = Stage(seat.name, None, {})
        self._threads = ThreadPoolExecutor(seat.concurrent_calls)
        self._dead, self._stopped = threading.Event(), threading.Event()

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        answered: Future[Any] = Future()
        sent = pickle.dumps(arguments)
        if self._dead.is_set():
            answered.set_exception(ActorLost("it is dead"))
        else:
            self._threads.submit(self._work, answered, method, sent)
        return answered

    def ping(self) -> Future[Any]:
        answered: Future[Any] = Future()
        if self._dead.is_set():
            answered.set_exception(ActorLost("it is dead"))
        elif not self._stopped.is_set():
            answered.set_result(None)
        return answered

    @property
    def dead(self) -> bool:
        return self._dead.is_set()

    def kill(self) -> None:
        self._dead.set()
        self._threads.shutdown(wait=False)

    def _work(self, answered: Future[Any], method: str, sent: bytes) -> None:
        arguments = pickle.loads(sent)
        called = arguments[1] if method == "call" else method
        death = self._cluster.death(self._seat.name, called)
        if death and not death.done:
            self._end(death)
        if self._stopped.is_set():
            self._dead.wait()
        if not self._dead.is_set():
            with _LOADING if method == "make" else nullcontext():
                answer = pickle.loads(pickle.dumps(getattr(self._stage, method)(*arguments)))
        if death and death.done:
            self._end(death)
        if self._stopped.is_set():
            self._dead.wait()
        if self._dead.is_set():
            answered.set_exception(ActorLost("killed by the test"))
            return
        try:
            answered.set_result(answer.result())
        except Exception as error:
            answered.set_exception(error)

    def _end(self, death: Death) -> None:
        if death.how == "dies":
            self.kill()
        elif death.how == "stops":
            self._stopped.set()
        else:
            self._dead.wait()


@dataclass
class ThreadCluster:
    """Starts actors on threads, and lets them die as planned."""

    deaths: tuple[Death, ...] = ()
    started: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    sitting: dict[str, ThreadActor] = field(default_factory=dict)

    def start(self, seat: Seat, *, log: Path, environment: Mapping[str, str]) -> ThreadActor:
        self.started[seat.name] += 1
        self.sitting[seat.name] = ThreadActor(seat, self)
        return self.sitting[seat.name]

    def death(self, seat: str, method: str) -> Death | None:
        self.calls[seat, method] += 1
        found = [d for d in self.deaths if (d.seat, d.method, d.number) == (seat, method, self.calls[seat, method])]
        return found[0] if found else None


def run_on_actors(path: Path, config: RunConfig, cluster: Any) -> Parts:
    """A whole run whose models are in actors of a cluster; its parts as they were at the start."""
    base = load_base(config)
    with (
        closing(RunDirectory.create(path, base.config)) as directory,
        closing(ActorRoles(base.config, cluster, directory, context_length=base.language.context_length)) as actors,
    ):
        parts = build(base, actors=actors)
        train_on_actors(base, parts, directory)
    return parts


def run_locally(path: Path, config: RunConfig) -> Parts:
    """The same in one process."""
    from lecritique.runtime.training import train

    base = load_base(config)
    parts = build(base)
    with closing(RunDirectory.create(path, base.config)) as directory:
        train(parts, directory)
    return parts
