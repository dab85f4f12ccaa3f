"""Notices actors that hang: a process that is stopped or out of reach, and a call that is never answered.

While an actor owes an answer it is asked every few seconds whether it lives, beside what it works on. A process that
is stopped, or whose machine is gone, leaves that open and is given up after `silent_seconds`; one that lives and is
lost in a call is given up after `stuck_seconds`. Given up means killed, and every open call ends with `ActorLost`, as
if the process had ended by itself. Whoever waits for an answer waits for it alone: one thread looks at all actors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from lecritique.actors.cluster import Actor, ActorLost

_LOOK_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long an actor that owes an answer is waited for.

    Attributes:
        silent_seconds: while it does not answer whether it lives.
        stuck_seconds: for one call, while it lives.
    """

    silent_seconds: float
    stuck_seconds: float

    @property
    def look_seconds(self) -> float:
        """How often actors are looked at: the shorter patience is overrun by a quarter at most."""
        return min(_LOOK_SECONDS, self.silent_seconds / 4, self.stuck_seconds / 4)


@dataclass(kw_only=True)
class _Open:
    """A call without an answer, for how long, and whether `stuck_seconds` bounds it."""

    name: str
    limited: bool
    seconds: float = 0.0


class WatchedActor:
    """An actor whose calls all end: with its answer, or with ActorLost once it has ended or was given up.

    Until its first answer it is starting, which `runtime.actors.start_seconds` bounds: nobody asks whether it lives.

    Args:
        actor: what the cluster has started.
        patience: with it.
    """

    def __init__(self, actor: Actor, patience: Patience) -> None:
        self._actor = actor
        self._patience = patience
        self._lock = threading.Lock()
        self._open: dict[Future[Any], _Open] = {}
        self._has_answered = False
        self._ping: Future[Any] | None = None
        self._silent_seconds = 0.0
        self._lost: str | None = None

    @property
    def lost(self) -> bool:
        """Whether it was given up or killed."""
        return self._lost is not None

    def make(self, number: int, maker: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """`Stage.make`; how long it may take is the caller's to say, while the actor lives."""
        return self._ask("make", False, "make", number, maker, arguments)

    def call(self, number: int, method: str, arguments: tuple[Any, ...], *, limited: bool = True) -> Future[Any]:
        """`Stage.call`; without `limited` it may take as long as the actor lives."""
        return self._ask(method, limited, "call", number, method, arguments)

    def ping(self) -> Future[Any]:
        """Answered while its process lives; ActorLost when that has ended, or was given up or killed."""
        lost = self._lost
        if lost is None:
            return self._actor.ping()
        answer: Future[Any] = Future()
        answer.set_exception(ActorLost(lost))
        return answer

    def kill(self) -> None:
        """End it at once; what is open gets ActorLost."""
        self._end("it was ended by the run")

    def look(self, seconds: float) -> None:
        """So much time has passed since the last look: give it up if that was too much, else ask whether it lives.

        Called by one thread alone.
        """
        with self._lock:
            owed = list(self._open.values()) if self._has_answered else []
        if not owed:
            self._ping, self._silent_seconds = None, 0.0
            return
        for each in owed:
            each.seconds += seconds
        answered = self._ping is not None and self._ping.done() and self._ping.exception() is None
        self._silent_seconds = 0.0 if answered or self._ping is None else self._silent_seconds + seconds
        if self._ping is None or self._ping.done():
            self._ping = self._actor.ping()
        reason = self._reason(owed)
        if reason is not None:
            self._end(reason)

    def _reason(self, owed: Sequence[_Open]) -> str | None:
        """Why it is given up now, if it is."""
        patience = self._patience
        if self._silent_seconds > patience.silent_seconds:
            return (
                f"it hung: its process did not answer whether it lives for {patience.silent_seconds:g} seconds, "
                "'runtime.actors.silent_seconds'"
            )
        stuck = next((each for each in owed if each.limited and each.seconds > patience.stuck_seconds), None)
        if stuck is None:
            return None
        return (
            f"it hung: its process lives, and did not answer '{stuck.name}' for {patience.stuck_seconds:g} seconds, "
            "'runtime.actors.stuck_seconds'"
        )

    def _ask(self, name: str, limited: bool, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        lost = self._lost
        if lost is None:
            asked = self._actor.call(method, *arguments)
            with self._lock:
                lost = self._lost
                if lost is None:
                    self._open[answer] = _Open(name=name, limited=limited)
        if lost is None:
            asked.add_done_callback(partial(self._settle, answer))
        else:
            answer.set_exception(ActorLost(lost))
        return answer

    def _settle(self, answer: Future[Any], asked: Future[Any]) -> None:
        """The actor has answered, or has ended; nothing where it was given up before."""
        error = asked.exception()
        with self._lock:
            self._has_answered |= not isinstance(error, ActorLost)
            if self._open.pop(answer, None) is None:
                return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(asked.result())

    def _end(self, reason: str) -> None:
        with self._lock:
            self._lost = self._lost or reason
            given_up, self._open = list(self._open), {}
        self._actor.kill()
        for answer in given_up:
            answer.set_exception(ActorLost(self._lost))


class Watch:
    """A thread that looks at actors.

    Args:
        every_seconds: how often.
    """

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._actors: list[WatchedActor] = []
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, actor: WatchedActor) -> None:
        """Look at this one too, from now on and until it is lost."""
        with self._lock:
            self._actors.append(actor)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="actor watch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Look at nobody any more."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        before = time.monotonic()
        while not self._closing.wait(self._every_seconds):
            now = time.monotonic()
            # Where this process was itself stopped meanwhile, nobody was waited for.
            passed, before = min(now - before, 2 * self._every_seconds), now
            with self._lock:
                self._actors = [actor for actor in self._actors if not actor.lost]
                actors = list(self._actors)
            for actor in actors:
                actor.look(passed)
