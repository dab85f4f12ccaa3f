"""From turns to per-token columns by hand, and the invariants of the records."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from small_models import rollout_id

from lecritique.core.errors import VerifierFailure
from lecritique.core.rollout import Completion, GenerateRequest, Rollout, Sampling, Turn
from lecritique.core.task import Message, Task
from lecritique.core.trajectory import (
    ContextInsertion,
    CreditedTrajectory,
    PolicyBatch,
    Trajectory,
    ValueBatch,
    ValueSample,
)
from lecritique.rollout.trajectories import trajectory_of

TASK = Task(task_id="t", messages=(Message(role="user", content="q"),))


def completion(ids: list[int], logprobs: list[float], versions: list[int], finish: str = "stop") -> Completion:
    return Completion(
        request_id="r",
        token_ids=np.array(ids),
        logprobs=np.array(logprobs),
        policy_version=np.array(versions),
        finish_reason=finish,
    )


def rollout(**changed) -> Rollout:
    turns = (
        Turn(given_ids=np.array([1, 2]), completion=completion([5, 6], [-0.5, -1.0], [3, 3]), text="", messages=()),
        Turn(given_ids=np.array([7]), completion=completion([8], [-0.25], [4]), text="", messages=()),
    )
    fields = {
        "rollout_id": rollout_id(2), "task": TASK, "turns": turns, "closing_ids": np.array([9, 1]), "reward": 0.5,
        "error": None, "truncated": False,
    }  # fmt: skip
    return Rollout(**{**fields, **changed})


def test_hand_example_of_two_turns_and_a_closing_message() -> None:
    found = trajectory_of(rollout())
    assert found.token_ids.tolist() == [1, 2, 5, 6, 7, 8, 9, 1]
    assert found.action_mask.tolist() == [False, False, True, True, False, True, False, False]
    assert found.sampler_logprobs.tolist() == [0.0, 0.0, -0.5, -1.0, 0.0, -0.25, 0.0, 0.0]
    assert found.turn_index.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert found.policy_version.tolist() == [-1, -1, 3, 3, -1, 4, -1, -1]
    assert (found.episode_return, found.truncated, found.rollout_id) == (0.5, False, rollout_id(2))
    assert found.oldest_policy_version == 3 and found.action_tokens == 3


def test_a_failed_rollout_has_no_trajectory() -> None:
    failed = rollout(reward=None, error=VerifierFailure("x"))
    with pytest.raises(ValueError, match=r"0\.0\.2 failed \(verifier\)"):
        trajectory_of(failed)
    with pytest.raises(ValueError, match="exactly one of reward and error"):
        rollout(error=VerifierFailure("x"))


RECORDS = [
    rollout(),
    trajectory_of(rollout()),
    completion([1], [0.0], [0]),
    ContextInsertion(position=0, token_ids=np.array([1])),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_are_frozen_and_their_arrays_read_only_copies(record) -> None:
    arrays = [f.name for f in dataclasses.fields(record) if isinstance(getattr(record, f.name), np.ndarray)]
    assert arrays
    for name in arrays:
        with pytest.raises(ValueError, match="read-only"):
            getattr(record, name)[0] = 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, np.zeros(1))


def test_an_array_given_to_a_record_is_copied() -> None:
    ids = np.array([1, 2, 3])
    record = ContextInsertion(position=0, token_ids=ids)
    ids[0] = 99
    assert record.token_ids.tolist() == [1, 2, 3]


COLUMNS = ("action_mask", "sampler_logprobs", "turn_index", "policy_version")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_another_length_is_refused(name: str) -> None:
    whole = trajectory_of(rollout())
    with pytest.raises(ValueError, match=f"{name} has 7 entries, expected 8"):
        dataclasses.replace(whole, **{name: getattr(whole, name)[:-1]})


def test_what_cannot_be_is_refused() -> None:
    whole = trajectory_of(rollout())
    with pytest.raises(ValueError, match="first token has no state"):
        dataclasses.replace(whole, action_mask=np.ones(8, dtype=bool))
    with pytest.raises(ValueError, match="nan is not finite"):
        dataclasses.replace(whole, episode_return=float("nan"))
    with pytest.raises(ValueError, match="advantages has 3 entries"):
        CreditedTrajectory(trajectory=whole, advantages=np.zeros(3), value_targets=np.zeros(8), estimator="x")
    with pytest.raises(ValueError, match="one-dimensional"):
        dataclasses.replace(whole, token_ids=np.zeros((2, 4)))
    with pytest.raises(ValueError, match="logprobs has 1 entries, expected 2"):
        completion([1, 2], [0.0], [0, 0])
    with pytest.raises(ValueError, match="value_targets has 2 entries"):
        sample(whole, np.zeros(2))
    with pytest.raises(ValueError, match="differ in number"):
        dataclasses.replace(sample(whole, np.zeros(8)), contexts=())
    with pytest.raises(ValueError, match="negative"):
        ContextInsertion(position=-1, token_ids=np.array([1]))


def test_requests_without_prompt_or_room_are_refused() -> None:
    fields = {"request_id": "r", "sequence_id": rollout_id(), "stop_ids": frozenset(), "seed": 0}
    with pytest.raises(ValueError, match="no prompt tokens"):
        GenerateRequest(token_ids=np.zeros(0), max_new_tokens=1, sampling=Sampling(), **fields)
    with pytest.raises(ValueError, match="asks for 0 tokens"):
        GenerateRequest(token_ids=np.ones(1), max_new_tokens=0, sampling=Sampling(), **fields)


def sample(of: Trajectory, targets: np.ndarray) -> ValueSample:
    return ValueSample(
        rollout_id=of.rollout_id, trajectories=(of,), contexts=(None,), value_targets=(targets,), value_version=0
    )


def test_batches_count_their_denominators_and_ages_from_the_oldest_token() -> None:
    whole = trajectory_of(rollout())
    silent = dataclasses.replace(whole, action_mask=np.zeros(8, dtype=bool), rollout_id=rollout_id(3))
    members = tuple(
        CreditedTrajectory(trajectory=t, advantages=np.zeros(8), value_targets=np.zeros(8), estimator="x")
        for t in (whole, silent, dataclasses.replace(whole, segment_index=1))
    )
    batch = PolicyBatch.of(members, trained_version=10)
    assert (batch.action_tokens, batch.responses, batch.ages) == (6, 1, (7, 7))
    assert silent not in [member.trajectory for member in batch.members]
    assert silent.oldest_policy_version == -1
    assert ValueBatch.of((sample(whole, np.zeros(8)), sample(whole, np.zeros(8)))).action_tokens == 6
