"""The engine over actors: who is told what, and what is told again."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from lecritique.actors.cluster import ActorLost, Seat
from lecritique.actors.engine import RemoteEngine
from lecritique.actors.messages import Cancel, RoundReport
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import Completion, GenerateRequest, Sampling
from lecritique.core.weights import WeightManifest
from lecritique.rollout.vllm_supervision import ReplicaLost


def request(row: int, member: int = 0, turn: int = 0) -> GenerateRequest:
    sequence = RolloutId(GroupId(row, 0), member)
    return GenerateRequest(
        request_id=f"{sequence}.{turn}",
        sequence_id=sequence,
        token_ids=np.array([1, 2]),
        max_new_tokens=4,
        stop_ids=frozenset({0}),
        sampling=Sampling(),
        seed=row,
    )


def completion(request_id: str) -> Completion:
    ids = np.array([5])
    return Completion(
        request_id=request_id, token_ids=ids, logprobs=np.zeros(1), policy_version=ids, finish_reason="stop"
    )


class Actor:
    """A member whose rounds are answered by the test: `script` gives for each round what it completes, or its death."""

    def __init__(self, *script: Any) -> None:
        self.seat = Seat(role="engine", cpus=1, gpus=0)
        self.name, self.incarnation, self.told = "engine 0", 1, []
        self.adopted: list[int] = []
        self.closed = 0
        self.replacements = 1
        """How many it takes until one has loaded."""
        self._script = list(script)
        self.prepare = lambda: None

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if method == "work":
            self.told.append([each.request_id for each in arguments[0]])
            step = self._script.pop(0) if self._script else ()
            if step is ActorLost:
                answer.set_exception(ActorLost("gone"))
                return answer
            done = tuple(map(completion, (each for each in step if isinstance(each, str))))
            lost = tuple(each for each in step if isinstance(each, ReplicaLost))
            answer.set_result(RoundReport(completions=done, failures={}, first_versions={}, losses=lost))
        else:
            if method == "adopt":
                self.adopted.append(arguments[0].version)
            self.closed += method == "close"
            answer.set_result(None)
        return answer

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.call(method, *arguments).result()

    def replace(self, incarnation: int, lost: ActorLost) -> None:
        self.incarnation += self.replacements
        self.prepare()


def engine(*actors: Actor, exact: bool = True, rows: int = 8) -> RemoteEngine:
    made = RemoteEngine(actors, rows=rows, exact=exact)  # type: ignore[arg-type]
    made.adopt(WeightManifest(role="policy", version=3, digest=""))
    return made


def test_a_replacement_of_an_exact_engine_hears_every_round_since_the_weights_changed() -> None:
    actor = Actor(["0.0.0.0"], ActorLost, ["0.0.0.0"], ["1.0.0.0"])
    made = engine(actor)
    first, second = made.submit(request(0)), made.submit(request(1))
    made.advance()
    third = made.submit(request(0, turn=1))
    assert first.done() and not second.done()
    while made.advance() and len(actor.told) < 4:
        pass
    # The two rounds before, then on with what is new; the completion that came twice is handed out once.
    assert actor.told == [["0.0.0.0", "1.0.0.0"], ["0.0.0.1"], ["0.0.0.0", "1.0.0.0"], ["0.0.0.1"]]
    assert second.done() and not third.done() and actor.adopted == [3, 3] and made.restarts == 1


def test_replacements_that_end_while_they_load_count_too() -> None:
    actor = Actor(ActorLost, ["0.0.0.0"], ActorLost)
    actor.replacements = 2
    made = engine(actor)
    made.submit(request(0))
    while made.advance():
        pass
    assert made.restarts == 2
    made.submit(request(1))
    made.advance()
    assert made.restarts == 4


def test_new_weights_make_rounds_before_them_forgotten() -> None:
    actor = Actor(["0.0.0.0"], ActorLost)
    made = engine(actor)
    made.submit(request(0))
    made.advance()
    made.adopt(WeightManifest(role="policy", version=4, digest=""))
    made.submit(request(1))
    made.advance()
    made.advance()
    assert actor.told == [["0.0.0.0"], ["1.0.0.0"], ["1.0.0.0"]] and actor.adopted == [3, 4, 4]


def test_another_engine_is_asked_for_what_was_open_alone() -> None:
    actor = Actor(["0.0.0.0"], ActorLost)
    made = engine(actor, exact=False)
    for row in range(3):
        made.submit(request(row))
    made.advance()
    given_up = made.submit(request(3))
    made.cancel("1.0.0.0")
    made.advance()  # told of both; dies
    made.cancel("3.0.0.0")
    made.advance()
    assert actor.told[1:] == [["3.0.0.0", "1.0.0.0"], ["2.0.0.0", "3.0.0.0"]]
    assert not given_up.done()


def test_a_cancelled_request_that_nobody_was_told_of_ends_at_once() -> None:
    made = engine(Actor())
    future = made.submit(request(0))
    made.cancel("0.0.0.0")
    assert future.result().finish_reason == "cancelled" and not made.advance()


def test_no_more_requests_are_told_than_twice_the_rows() -> None:
    actor = Actor([], ["0.0.0.0", "1.0.0.0", "2.0.0.0"])
    made = engine(actor, rows=2)
    for row in range(9):
        made.submit(request(row))
    for _ in range(3):
        made.advance()
    assert [len(told) for told in actor.told] == [4, 0, 3]


def test_groups_stay_together_and_go_where_the_fewest_requests_are() -> None:
    one, two = Actor(), Actor()
    made = engine(one, two)
    for row, member in [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2), (3, 0)]:
        made.submit(request(row, member))
    made.advance()
    made.advance()
    assert one.told[0] == ["0.0.0.0", "0.0.1.0", "0.0.2.0"] and two.told[0] == ["1.0.0.0", "2.0.0.0", "3.0.0.0"]


def test_what_a_replica_has_replaced_itself_is_counted_and_told() -> None:
    died = [
        ReplicaLost(number=at, reason="killed", replacement=at + 1 if at < 2 else None, restarts_left=1 - at)
        for at in range(3)
    ]
    made = engine(Actor(died[:1], ActorLost, died[1:]), exact=False)
    told: list[ReplicaLost] = []
    made.watch(told.append)
    made.submit(request(0))
    for _ in range(3):
        made.advance()
    # Two of the replica's own and the actor itself; the last one was not replaced.
    assert made.restarts == 3 and [(lost.actor, lost.number) for lost in told] == [("engine 0", at) for at in range(3)]


def test_a_request_is_queued_once() -> None:
    made = engine(Actor())
    made.submit(request(0))
    with pytest.raises(ValueError, match="already queued"):
        made.submit(request(0))
    assert Cancel(request_id="0.0.0.0").request_id == request(0).request_id


def test_an_engine_closes_once_for_later_the_place_is_somebody_elses() -> None:
    actor = Actor()
    made = engine(actor)
    made.close()
    made.close()
    assert actor.closed == 1
