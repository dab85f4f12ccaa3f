"""Who worked when: spans of every role, for utilisation figures and the report's timeline."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Spans kept between two readings; older ones are dropped from the picture, not from the utilisation.
_KEPT = 4096
# Pieces of the same work closer together than this are drawn as one.
_GAP_SECONDS = 0.002


@dataclass(frozen=True, kw_only=True)
class Span:
    """One piece of work of one role, in seconds since the timeline began."""

    role: str
    kind: str
    start_seconds: float
    end_seconds: float


class Timeline:
    """Takes spans from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.perf_counter()
        self._spans: deque[Span] = deque(maxlen=_KEPT)
        self._busy_seconds: dict[str, float] = defaultdict(float)
        # For work that goes on: up to when it is among the busy seconds already.
        self._counted_until: dict[str, float] = {}

    @property
    def now_seconds(self) -> float:
        """Seconds since the timeline began."""
        return time.perf_counter() - self._began

    @contextmanager
    def span(self, role: str, kind: str) -> Iterator[None]:
        """Everything inside is one span; one at a time for each role."""
        start = self.now_seconds
        with self._lock:
            self._counted_until[role] = start
        try:
            yield
        finally:
            self._end(role, kind, start, self.now_seconds)

    def _end(self, role: str, kind: str, start_seconds: float, end_seconds: float) -> None:
        with self._lock:
            self._busy_seconds[role] += end_seconds - self._counted_until.pop(role)
            last = self._spans[-1] if self._spans else None
            if last and (last.role, last.kind) == (role, kind) and start_seconds - last.end_seconds < _GAP_SECONDS:
                self._spans.pop()
                start_seconds = last.start_seconds
            self._spans.append(Span(role=role, kind=kind, start_seconds=start_seconds, end_seconds=end_seconds))

    def spans(self) -> list[Span]:
        """Spans since the last call."""
        with self._lock:
            spans = list(self._spans)
            self._spans.clear()
        return spans

    def busy_seconds(self) -> dict[str, float]:
        """Seconds that each role was busy since the last call, work that goes on included."""
        with self._lock:
            busy, now = dict(self._busy_seconds), self.now_seconds
            for role, counted_until in self._counted_until.items():
                busy[role] = busy.get(role, 0.0) + now - counted_until
                self._counted_until[role] = now
            self._busy_seconds.clear()
        return busy
