"""Why a group of ranks ended: the first evidence that is certain, and after a while what is left.

Certain is that a process has ended or hangs, and a failure of a rank's own. What a collective raises is not: where a
process is gone, the ranks that live hear of it before whoever runs actors does, and a failure that all ranks meet alike
looks the same. So then each rank is asked whether it lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from lecritique.actors.cluster import ActorLost, CollectiveFailure
from lecritique.actors.crew import Member
from lecritique.core.errors import RoleFailure

# A process that has just broken a connection takes a moment to be noticed.
NOTICE_SECONDS = 15.0


class Inquest:
    """What is known of a group's end, from when its ranks follow.

    Args:
        leader: rank 0.
        following: what the other ranks' `follow` returns or raises, by rank.
    """

    def __init__(self, leader: Member, following: Mapping[Future[Any], Member]) -> None:
        self._leader = leader
        self._following = following
        self._said: Future[None] = Future()
        self._lock = threading.Lock()
        self._cause: Future[Exception | None] = Future()

    def cause(self, said: RoleFailure) -> Exception:
        """Why the group has ended, when rank 0 has answered with this; waits for `hold`."""
        with self._lock:
            if not self._said.done():
                self._said.set_exception(said)
        return self._cause.result() or said

    def hold(self) -> None:
        """Wait until a rank fails, and find out why. Nothing of the group may be ended meanwhile."""
        try:
            self._cause.set_result(self._found())
        except BaseException as error:  # whoever waits for the cause must not wait for ever
            self._cause.set_exception(error)
            raise

    def _found(self) -> Exception | None:
        done, open_ = wait([*self._following, self._said], return_when=FIRST_COMPLETED)
        certain = self._certain(done)
        if certain is not None:
            return certain
        pings = {each.ping(): each for each in (self._leader, *self._following.values())}
        deadline = time.monotonic() + NOTICE_SECONDS
        open_ |= pings.keys()
        while open_ and (left := deadline - time.monotonic()) > 0:
            done, open_ = wait(open_, left, return_when=FIRST_COMPLETED)
            certain = self._certain(done) or _first_loss(pings, done)
            if certain is not None:
                return certain
        return self._left(pings)

    def _certain(self, done: Iterable[Future[Any]]) -> Exception | None:
        """What a rank behind rank 0 failed with by itself, else whose process has ended; None when nothing is sure."""
        for future in self._following:
            error = future.exception() if future in done else None
            if isinstance(error, Exception) and not isinstance(error, ActorLost | CollectiveFailure):
                return error
        said = self._said.exception() if self._said in done else None
        return said if isinstance(said, ActorLost) else _first_loss(self._following, done)

    def _left(self, pings: Mapping[Future[Any], Member]) -> Exception | None:
        """The cause where no process is known to have ended: what rank 0 failed with, else what another did."""
        silent = next((member for ping, member in pings.items() if not ping.done()), None)
        if silent is not None:
            waited = f"for {NOTICE_SECONDS:g} seconds after a rank had failed"
            return ActorLost(f"{silent.name}: it did not answer whether it lives {waited}")
        if self._said.done():
            return self._said.exception()  # type: ignore[return-value]
        for future, member in self._following.items():
            if future.done() and future.exception() is not None:
                return RoleFailure(f"{member.name} failed with {future.exception()}")
        return None


def _first_loss(asked: Mapping[Future[Any], Member], done: Iterable[Future[Any]]) -> ActorLost | None:
    """Of whom a process has ended, by rank."""
    lost = ((member, future.exception()) for future, member in asked.items() if future in done)
    return next((ActorLost(f"{member.name}: {error}") for member, error in lost if isinstance(error, ActorLost)), None)
