"""Threads with an inbox: order of commands, questions between pieces of work, failure reported once, stop."""

from __future__ import annotations

import threading
import time

import pytest

from lecritique.runtime.roles import ThreadRole
from lecritique.runtime.timeline import Timeline


class Counter(ThreadRole):
    """Works `pieces` times, then waits."""

    def __init__(self, pieces: int = 0) -> None:
        self.failures: list[tuple[str, Exception]] = []
        super().__init__("counter", on_failure=lambda *what: self.failures.append(what), timeline=Timeline())
        self.left, self.done, self.closed = pieces, 0, False

    def add(self, pieces: int) -> None:
        self.left += pieces

    def _work(self) -> bool:
        if self.left:
            self.left -= 1
            self.done += 1
        return self.left > 0

    def _close(self) -> None:
        self.closed = True


def eventually(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_commands_are_carried_out_in_order_on_the_roles_thread() -> None:
    role, seen = Counter(), []
    role.start()
    for number in range(5):
        role.tell(lambda n: seen.append((n, threading.current_thread().name)), number)
    eventually(lambda: len(seen) == 5)
    assert seen == [(number, "lecritique counter") for number in range(5)]
    role.stop()
    assert role.health == "stopped"
    assert role.closed


def test_it_works_on_its_own_account_and_waits_when_there_is_nothing_to_do() -> None:
    role = Counter(pieces=3)
    assert role.health == "new"
    role.start()
    eventually(lambda: role.done == 3)
    role.tell(role.add, 2)
    eventually(lambda: role.done == 5)
    assert role.health == "running"
    assert role.state() == {"health": "running", "waiting_commands": 0}
    role.stop()
    role.stop()


def test_a_question_is_answered_between_pieces_of_work_and_after_the_end() -> None:
    role = Counter()
    role.start()
    assert role.ask(lambda: threading.current_thread().name) == "lecritique counter"
    with pytest.raises(ZeroDivisionError):
        role.ask(lambda: 1 // 0)
    assert role.health == "running"
    role.stop()
    assert role.ask(lambda: threading.current_thread().name) == threading.current_thread().name


def test_the_first_exception_ends_the_role_and_is_reported_once() -> None:
    role = Counter()
    role.start()
    role.tell(lambda: 1 // 0)
    role.tell(lambda: {}["missing"])
    eventually(lambda: role.health == "failed")
    assert [(name, type(error)) for name, error in role.failures] == [("counter", ZeroDivisionError)]
    assert role.closed
    assert role.ask(lambda: 7) == 7, "a question to a role that has failed is not left unanswered"


def test_stopped_it_carries_out_nothing_more() -> None:
    role, seen = Counter(), []
    gate = threading.Event()
    role.start()
    role.tell(gate.wait, 10)
    role.tell(seen.append, "late")
    role.stop(wait=False)
    gate.set()
    role.stop()
    assert seen == []
