"""A discrete-event loop: things happen at times, in order, and nothing else passes time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    """Calls what is due, in order of time; what is due at the same time in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._asked = 0

    def after(self, seconds: float, action: Action) -> None:
        """Call `action` so much later."""
        self._asked += 1
        heapq.heappush(self._due, (self.now + seconds, self._asked, action))

    def advance(self) -> bool:
        """Let the next thing happen; False when nothing is left."""
        if not self._due:
            return False
        self.now, _, action = heapq.heappop(self._due)
        action()
        return True


class Worker:
    """One thing at a time, first come, first served; `busy_seconds` is what it worked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[float, Action, str]] = deque()
        self._working = False
        self.busy_seconds: dict[str, float] = {}

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self._working and not self._waiting

    def work(self, seconds: float, done: Action, kind: str = "work") -> None:
        """Do something of that length, then call `done`."""
        self._waiting.append((seconds, done, kind))
        if not self._working:
            self._next()

    def _next(self) -> None:
        if not self._waiting:
            self._working = False
            return
        self._working = True
        seconds, done, kind = self._waiting.popleft()
        self.busy_seconds[kind] = self.busy_seconds.get(kind, 0.0) + seconds

        def finish() -> None:
            self._working = False
            done()
            if not self._working:
                self._next()

        self._clock.after(seconds, finish)
