"""A role of a simulated run that does one thing at a time, as a simpy resource."""

from __future__ import annotations

from collections.abc import Callable, Generator

import simpy


class Worker:
    """First come, first served; `busy_seconds` is what it has worked, counted when it begins."""

    def __init__(self, environment: simpy.Environment) -> None:
        self._environment = environment
        self._attention = simpy.Resource(environment, capacity=1)
        self.busy_seconds = 0.0

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self._attention.count and not self._attention.queue

    def work(self, seconds: float | Callable[[], float], done: Callable[[], None]) -> None:
        """Do something of that length when its turn has come, then call `done`; the length may be asked for then."""
        # Queued here and not in the process, which begins after whoever asks has gone on: `idle` is true of both.
        self._environment.process(self._working(self._attention.request(), seconds, done))

    def _working(
        self, turn: simpy.resources.resource.Request, seconds: float | Callable[[], float], done: Callable[[], None]
    ) -> Generator[simpy.Event, None, None]:
        yield turn
        length = seconds() if callable(seconds) else seconds
        self.busy_seconds += length
        yield self._environment.timeout(length)
        self._attention.release(turn)
        done()
