"""What the seats of a group hold in its tests: a maker's module must be the one that the tests have, under one name."""

from __future__ import annotations

import threading
import time

from lecritique.actors.cluster import ActorLost
from lecritique.actors.group_hosts import FollowingHost

HELD = f"{__name__}:held"


class Rank:
    """What a seat of a group holds here; rank 0 works before another fails."""

    working, over = threading.Event(), threading.Event()

    def __init__(self, failure: Exception | None, meeting: str) -> None:
        self._failure, self._meeting = failure, meeting

    def meets(self) -> str:
        return self._meeting

    def work(self, seconds: float) -> None:
        """As in a collective whose partner is gone, and which says so or hangs."""
        self.working.set()
        if not self.over.wait(seconds):
            raise RuntimeError("Connection closed by peer")

    def die(self) -> None:
        """As when the end of its process is noticed after the others have heard of it."""
        self.working.set()
        time.sleep(0.3)
        raise ActorLost("killed by the kernel")

    def follow(self) -> None:
        (self.over if self._failure is None else self.working).wait(30.0)
        if self._failure is not None:
            raise self._failure


def held(failure: Exception | None, meeting: str) -> Rank:
    if isinstance(failure, FileNotFoundError):
        raise failure
    rank = Rank(failure, meeting)
    return FollowingHost(rank) if isinstance(failure, RuntimeError) else rank  # type: ignore[return-value, arg-type]
