"""Recorded beginnings: kept byte for byte, continued by the engine, replayed turn by turn, refused when different."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from literal_decoding import request
from small_models import small_policy
from small_trajectories import trajectory

from lecritique.core.errors import EngineFailure
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import Completion
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.engine import EmbeddedEngine
from lecritique.rollout.prefixed import Beginning, PrefixedEngine

GROUP = GroupId(0, 0)


def embedded() -> EmbeddedEngine:
    return EmbeddedEngine(small_policy(), MemoryWeightStore(), max_rows=4, chunk_tokens=3, prefill_tokens=100)


def finished(one, future: Future[Completion]) -> Completion:
    while one.advance():
        pass
    return future.result(timeout=0)


def recorded(token_ids, turns):
    """Prompt and environment tokens have turn None in `turns`."""
    own = trajectory(RolloutId(GROUP, 0), prompt=2, actions=len(token_ids) - 2)
    return replace(
        own,
        token_ids=np.array(token_ids),
        action_mask=np.array([turn is not None for turn in turns]),
        turn_index=np.array([turn or 0 for turn in turns]),
    )


def asked(token_ids, *, turn: int = 0, new: int = 6):
    one = request(tuple(token_ids), max_new_tokens=new)
    return replace(one, request_id=f"{one.sequence_id}.{turn}", stop_ids=frozenset())


def test_a_completion_begins_with_what_was_recorded_and_goes_on_as_sampling_from_there_would():
    own = recorded([5, 9, 11, 2, 7, 3, 8], [None, None, 0, 0, 0, 0, 0])
    one = PrefixedEngine(embedded(), {GROUP: Beginning(trajectory=own, actions=3)})
    found = finished(one, one.submit(asked([5, 9])))
    assert found.token_ids[:3].tolist() == [11, 2, 7] and len(found.token_ids) == 6
    assert found.finish_reason == "length"
    np.testing.assert_array_equal(found.logprobs[:3], -1.0)
    plain = embedded()
    rest = finished(plain, plain.submit(asked([5, 9, 11, 2, 7], new=3)))
    assert found.token_ids[3:].tolist() == rest.token_ids.tolist()
    np.testing.assert_array_equal(found.logprobs[3:], rest.logprobs)


def test_nothing_recorded_of_a_turn_is_plain_sampling():
    own = recorded([5, 9, 11, 2], [None, None, 0, 0])
    for beginnings in ({GROUP: Beginning(trajectory=own, actions=0)}, {}):
        one, plain = PrefixedEngine(embedded(), beginnings), embedded()
        found, expected = finished(one, one.submit(asked([5, 9]))), finished(plain, plain.submit(asked([5, 9])))
        assert found.token_ids.tolist() == expected.token_ids.tolist()


def test_whole_turns_are_answered_at_once_and_the_environment_must_answer_as_before():
    own = recorded([5, 9, 11, 2, 4, 4, 3, 8, 1], [None, None, 0, 0, None, None, 1, 1, 1])
    one = PrefixedEngine(embedded(), {GROUP: Beginning(trajectory=own, actions=3)})
    first = one.submit(asked([5, 9])).result(timeout=0)
    assert first.token_ids.tolist() == [11, 2] and first.finish_reason == "stop"
    second = finished(one, one.submit(asked([5, 9, 11, 2, 4, 4], turn=1)))
    assert second.token_ids[0] == 3 and len(second.token_ids) == 6
    for other in ([5, 9, 11, 2, 4, 6], [5, 9, 11, 2, 4], [5, 8]):
        with pytest.raises(EngineFailure, match="did not answer"):
            one.submit(asked(other, turn=1)).result(timeout=0)
    # Past the beginning everything is the engine's own.
    later = finished(one, one.submit(asked([5, 9, 11, 2, 4, 4, 3, 0, 0, 6], turn=2, new=2)))
    assert len(later.token_ids) == 2


def test_no_room_behind_the_beginning_is_a_turn_cut_by_its_limit():
    own = recorded([5, 9, 11, 2, 7, 3], [None, None, 0, 0, 0, 0])
    one = PrefixedEngine(embedded(), {GROUP: Beginning(trajectory=own, actions=3)})
    found = one.submit(asked([5, 9], new=3)).result(timeout=0)
    assert found.token_ids.tolist() == [11, 2, 7] and found.finish_reason == "length"


def test_an_engine_that_fails_fails_the_whole_and_a_whole_response_is_no_beginning():
    own = recorded([5, 9, 11, 2, 7, 3], [None, None, 0, 0, 0, 0])
    one = PrefixedEngine(embedded(), {GROUP: Beginning(trajectory=own, actions=1)})
    future = one.submit(asked([5, 9]))
    one.close()
    assert future.cancelled()
    with pytest.raises(ValueError, match="fewer than all 4"):
        Beginning(trajectory=own, actions=4)
