"""Actors that hang are given up: when, and what becomes of what they were asked."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from lecritique.actors import liveness
from lecritique.actors.cluster import ActorLost
from lecritique.actors.liveness import Patience, Watch, WatchedActor

PATIENCE = Patience(silent_seconds=60.0, stuck_seconds=600.0)


class Actor:
    """Answers when the test says so; pings at once, as long as it is not stopped."""

    def __init__(self) -> None:
        self.calls: list[Future[Any]] = []
        self.stopped = False
        self.pings, self.kills = 0, 0

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        self.calls.append(Future())
        return self.calls[-1]

    def ping(self) -> Future[Any]:
        self.pings += 1
        answer: Future[Any] = Future()
        if not self.stopped:
            answer.set_result(None)
        return answer

    def kill(self) -> None:
        self.kills += 1


def begun() -> tuple[Actor, WatchedActor]:
    """An actor that has made its host."""
    actor = Actor()
    watched = WatchedActor(actor, PATIENCE)
    made = watched.make(1, "module:function", ())
    actor.calls[0].set_result("made")
    assert made.result(0) == "made"
    return actor, watched


def looked_at(watched: WatchedActor, seconds: float) -> None:
    for _ in range(round(seconds / 5)):
        watched.look(5.0)


def test_a_process_that_does_not_answer_is_given_up_with_all_that_it_owes() -> None:
    actor, watched = begun()
    owed = [watched.call(1, method, ()) for method in ("work", "adopt")]
    watched.look(5.0)
    actor.stopped = True
    looked_at(watched, 60.0)
    assert not watched.lost and not any(answer.done() for answer in owed)
    looked_at(watched, 10.0)
    for answer in (*owed, watched.call(1, "work", ())):
        with pytest.raises(ActorLost, match=r"hung: its process did not answer .* 60 seconds, .*silent_seconds"):
            answer.result(0)
    assert watched.lost and actor.kills == 1 and len(actor.calls) == 3
    for late in actor.calls[1:]:
        late.set_result("too late")  # drops, and raises nothing


def test_a_process_that_answers_late_lives() -> None:
    actor, watched = begun()
    answer = watched.call(1, "step", ())
    for _ in range(5):
        actor.stopped = True
        looked_at(watched, 55.0)
        actor.stopped = False
        watched._ping.set_result(None)  # type: ignore[union-attr]
        watched.look(5.0)
    actor.calls[-1].set_result(7)
    assert answer.result(0) == 7 and not actor.kills


def test_a_call_that_is_never_answered_is_given_up_though_the_process_lives() -> None:
    actor, watched = begun()
    answer = watched.call(1, "step", ())
    looked_at(watched, 600.0)
    assert not answer.done()
    looked_at(watched, 5.0)
    with pytest.raises(ActorLost, match=r"lives, and did not answer 'step' for 600 seconds, .*stuck_seconds"):
        answer.result(0)
    assert actor.kills == 1


def test_time_between_calls_is_nobodys() -> None:
    actor, watched = begun()
    for _ in range(4):
        answer = watched.call(1, "step", ())
        looked_at(watched, 400.0)
        actor.calls[-1].set_result(None)
        assert answer.result(0) is None
        pings = actor.pings
        looked_at(watched, 400.0)
        assert actor.pings == pings  # who owes nothing is not asked
    assert not watched.lost


def test_loading_and_calls_without_limit_may_take_as_long_as_the_process_lives() -> None:
    actor, watched = begun()
    answers = [watched.call(1, "follow", (), limited=False), watched.make(2, "module:function", ())]
    looked_at(watched, 5000.0)
    assert not any(answer.done() for answer in answers)
    actor.stopped = True
    looked_at(watched, 70.0)
    assert all(isinstance(answer.exception(0), ActorLost) for answer in answers)


def test_an_actor_that_has_not_begun_is_not_asked_whether_it_lives() -> None:
    actor = Actor()
    actor.stopped = True
    watched = WatchedActor(actor, PATIENCE)
    watched.make(1, "module:function", ())
    looked_at(watched, 5000.0)
    assert not watched.lost and actor.pings == 0


def test_a_killed_actor_answers_everybody() -> None:
    actor, watched = begun()
    answer = watched.call(1, "step", ())
    watched.kill()
    watched.kill()
    assert isinstance(answer.exception(0), ActorLost) and actor.kills == 2


def test_what_the_role_raises_is_no_end_of_its_actor() -> None:
    actor, watched = begun()
    answer = watched.call(1, "step", ())
    actor.calls[-1].set_exception(KeyError("a version"))
    assert isinstance(answer.exception(0), KeyError) and not watched.lost


def test_a_thread_looks_at_actors_until_they_are_lost() -> None:
    patience = Patience(silent_seconds=0.1, stuck_seconds=600.0)
    actor = Actor()
    watched = WatchedActor(actor, patience)
    watch = Watch(patience.look_seconds)
    watch.add(watched)
    made = watched.make(1, "module:function", ())
    actor.calls[0].set_result(None)
    assert made.result(0) is None
    actor.stopped = True
    with pytest.raises(ActorLost):
        watched.call(1, "step", ()).result(30)
    watch.close()
    assert watch._actors in ([], [watched]) and not watch._thread.is_alive()  # type: ignore[union-attr]


def test_who_was_stopped_itself_has_waited_for_nobody(monkeypatch) -> None:
    """After a suspended process goes on, an hour has passed at once, and answers are about to be read."""
    passed: list[float] = []
    enough = threading.Event()

    class Looked:
        lost = False

        def look(self, seconds: float) -> None:
            passed.append(seconds)
            enough.set()

    clock = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(liveness.time, "monotonic", lambda: float(next(clock)))
    watch = Watch(0.01)
    watch.add(Looked())  # type: ignore[arg-type]
    assert enough.wait(30)
    watch.close()
    assert set(passed) == {0.02}
