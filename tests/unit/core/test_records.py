"""Hand-off records cannot be changed by either side, and refuse what they should not hold."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from lecritique.core import errors
from lecritique.core.arrays import readonly
from lecritique.core.errors import VerifierFailure
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import Completion, GenerateRequest, Rollout, Sampling
from lecritique.core.task import Message, Reference, Reply, Task
from lecritique.core.trajectory import (
    ContextInsertion,
    CreditedTrajectory,
    PolicyBatch,
    Trajectory,
    ValueBatch,
    ValueSample,
)

RID = RolloutId(GroupId(3, 1), 2)
TASK = Task(task_id="t", messages=(Message(role="user", content="?"),), reference=Reference(answer="4"))


def trajectory(mask=(0, 1, 1, 0, 1), **changes) -> Trajectory:
    n = len(mask)
    fields = {
        "rollout_id": RID,
        "token_ids": np.arange(n),
        "action_mask": np.array(mask, dtype=bool),
        "sampler_logprobs": np.zeros(n),
        "turn_index": np.zeros(n, dtype=int),
        "policy_version": np.where(np.array(mask, dtype=bool), 4, -1),
        "episode_return": 1.0,
        "truncated": False,
    }
    return Trajectory(**{**fields, **changes})


def credited(of: Trajectory) -> CreditedTrajectory:
    return CreditedTrajectory(
        trajectory=of, advantages=np.zeros(len(of)), value_targets=np.zeros(len(of)), estimator="mean"
    )


def test_arrays_are_copied_and_locked():
    mine = np.arange(5)
    held = trajectory(token_ids=mine)
    mine[0] = 99
    assert held.token_ids[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        held.token_ids[0] = 7
    with pytest.raises(dataclasses.FrozenInstanceError):
        held.episode_return = 0.0


def test_a_locked_array_is_not_copied_again():
    held = trajectory()
    assert readonly(held.token_ids, np.int64) is held.token_ids
    with pytest.raises(ValueError, match="one-dimensional"):
        readonly(np.zeros((2, 2)), np.float64)


@pytest.mark.parametrize("name", ["action_mask", "sampler_logprobs", "turn_index", "policy_version"])
def test_every_column_has_the_length_of_the_trajectory(name):
    dtype = bool if name == "action_mask" else int
    with pytest.raises(ValueError, match=f"{name} has 4 entries, expected 5"):
        trajectory(**{name: np.zeros(4, dtype=dtype)})


def test_the_first_token_is_never_an_action():
    with pytest.raises(ValueError, match="no state before it"):
        trajectory(mask=(1, 1))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_return_is_finite(value):
    with pytest.raises(ValueError, match="not finite"):
        trajectory(episode_return=value)


def test_age_counts_from_the_oldest_sampled_token():
    versions = np.array([-1, 6, 4, -1, 5])
    batch = PolicyBatch.of((credited(trajectory(policy_version=versions)),), trained_version=9)
    assert batch.ages == (5,)


def test_denominators_are_of_the_whole_batch_and_empty_trajectories_are_left_out():
    segments = [trajectory(), trajectory(mask=(0, 1), segment_index=1), trajectory(mask=(0, 0))]
    batch = PolicyBatch.of(tuple(credited(s) for s in segments), trained_version=4)
    assert (batch.action_tokens, batch.responses, len(batch.members)) == (4, 1, 2)
    assert trajectory(mask=(0, 0)).oldest_policy_version == -1


def test_value_samples_hold_frozen_targets_of_every_segment():
    targets = np.ones(5)
    sample = ValueSample(
        rollout_id=RID, trajectories=(trajectory(),), contexts=(None,), value_targets=(targets,), value_version=0
    )
    targets[:] = 0
    assert sample.value_targets[0].tolist() == [1] * 5
    assert ValueBatch.of((sample, sample)).action_tokens == 6
    with pytest.raises(ValueError, match="differ in number"):
        dataclasses.replace(sample, contexts=())
    with pytest.raises(ValueError, match="expected 5"):
        dataclasses.replace(sample, value_targets=(np.ones(4),))


def test_optional_columns_are_held_to_the_same():
    """Frozen, one entry per token, one column per segment; None where nothing needs them."""
    column = np.zeros(5)
    held = credited(trajectory())
    assert held.token_rho is None and held.old_logprobs is None
    sample = ValueSample(
        rollout_id=RID, trajectories=(trajectory(),), contexts=(None,), value_targets=(column,), value_version=0
    )
    assert sample.old_values is None
    for name in ("token_rho", "old_logprobs", "values"):
        assert not getattr(dataclasses.replace(held, **{name: column}), name).flags.writeable
        with pytest.raises(ValueError, match=f"{name} has 4 entries, expected 5"):
            dataclasses.replace(held, **{name: np.zeros(4)})
    assert not dataclasses.replace(sample, old_values=(column,)).old_values[0].flags.writeable
    with pytest.raises(ValueError, match="old_values has 4 entries, expected 5"):
        dataclasses.replace(sample, old_values=(np.zeros(4),))
    with pytest.raises(ValueError, match="segments and old_values differ in number"):
        dataclasses.replace(sample, old_values=())


def test_a_rollout_has_either_a_reward_or_an_error():
    fields = {"rollout_id": RID, "task": TASK, "turns": (), "closing_ids": np.zeros(0), "truncated": False}
    assert Rollout(**fields, reward=0.0, error=None).status == "ok"
    failed = Rollout(**fields, reward=None, error=VerifierFailure("crashed"))
    assert failed.status == "verifier" and failed.summary()["reward"] is None
    for reward, error in ((None, None), (1.0, VerifierFailure("crashed"))):
        with pytest.raises(ValueError, match="exactly one"):
            Rollout(**fields, reward=reward, error=error)


def test_requests_and_completions_are_checked():
    sampling = Sampling()
    fields = {"request_id": "r", "sequence_id": RID, "stop_ids": frozenset({1}), "sampling": sampling, "seed": 0}
    with pytest.raises(ValueError, match="no prompt"):
        GenerateRequest(**fields, token_ids=np.zeros(0), max_new_tokens=1)
    with pytest.raises(ValueError, match="0 tokens"):
        GenerateRequest(**fields, token_ids=np.ones(1), max_new_tokens=0)
    with pytest.raises(ValueError, match="logprobs has 2 entries, expected 1"):
        Completion(request_id="r", token_ids=[1], logprobs=[0.0, 0.0], policy_version=[0], finish_reason="stop")
    with pytest.raises(ValueError, match="negative"):
        ContextInsertion(position=-1, token_ids=[1])


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}])
def test_sampling_is_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_full_support():
    assert Sampling(temperature=0.5).full_support
    assert not Sampling(top_p=0.9).full_support and not Sampling(top_k=3).full_support


def test_tasks_end_with_a_question_and_hide_a_real_answer():
    with pytest.raises(ValueError, match="end with a user message"):
        Task(task_id="t", messages=(Message(role="assistant", content="!"),))
    with pytest.raises(ValueError, match="end with a user message"):
        Task(task_id="t", messages=())
    with pytest.raises(ValueError, match="blank"):
        Reference(answer=" \n")
    with pytest.raises(ValueError, match="none of system"):
        Message(role="tool", content="")
    with pytest.raises(ValueError, match="either ends"):
        Reply()
    assert Reply(reward=0.0).done and not Reply(messages=TASK.messages).done


def test_task_metadata_is_a_locked_copy():
    mine = {"a": 1}
    task = Task(task_id="t", messages=TASK.messages, metadata=mine)
    mine["a"] = 2
    assert task.metadata["a"] == 1
    with pytest.raises(TypeError):
        task.metadata["a"] = 3


def test_identities_are_values():
    assert RolloutId(GroupId(3, 1), 2) == RID and str(RID) == "3.1.2"
    assert len({RID, RolloutId(GroupId(3, 1), 2), RolloutId(GroupId(31, 2), 2)}) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [("ConfigurationError", 2), ("DataError", 2), ("CheckpointError", 2), ("DivergenceError", 3), ("RoleFailure", 4)],
)
def test_errors_carry_their_exit_code(error, code):
    assert getattr(errors, error)("x").exit_code == code


def test_kinds_of_rollout_errors_are_told_apart():
    kinds = [kind.kind for kind in errors.RolloutError.__subclasses__()]
    assert sorted(kinds) == ["budget", "engine", "environment", "verifier"]


@pytest.mark.parametrize("text", [None, 5, "a\ud800b"])
def test_what_no_tokenizer_takes_is_no_text(text):
    message = Message(role="user", content="")
    for act in (
        lambda: Message(role="user", content=text),
        lambda: Reference(answer=text),
        lambda: Task(task_id=text, messages=(message,)),
    ):
        with pytest.raises(ValueError, match=r"must be text|lone surrogate at position 1"):
            act()
    if text is not None:
        with pytest.raises(ValueError, match="solution"):
            Reference(answer="1", solution=text)
