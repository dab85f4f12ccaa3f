"""Spans are merged where work goes on without a gap; busy time counts work that is still going on."""

from __future__ import annotations

import pytest

from lecritique.runtime import timeline as module
from lecritique.runtime.timeline import Timeline


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_pieces_without_a_gap_are_one_span(clock) -> None:
    line = Timeline()
    for start in (0.0, 1.0, 3.0):
        clock.now = start
        with line.span("rollout engine", "generate"):
            clock.now = start + 1.0
    assert [(s.start_seconds, s.end_seconds) for s in line.spans()] == [(0.0, 2.0), (3.0, 4.0)]
    assert line.spans() == []


def test_busy_time_is_counted_up_to_now_and_never_twice(clock) -> None:
    line = Timeline()
    with line.span("value trainer", "train"):
        clock.now = 2.0
        assert line.busy_seconds() == {"value trainer": 2.0}
        clock.now = 5.0
    assert line.busy_seconds() == {"value trainer": 3.0}
    clock.now = 6.0
    assert line.busy_seconds() == {}


def test_an_exception_ends_the_span(clock) -> None:
    line = Timeline()

    def fails() -> None:
        with line.span("policy trainer", "train"):
            clock.now = 1.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert line.busy_seconds() == {"policy trainer": 1.0}
