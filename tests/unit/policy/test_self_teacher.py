"""The self-teacher: copied in memory, moved after every optimizer step, asked on its own prompt (faults 30-32)."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from small_models import credited, literal_logprobs, small_policy, trajectory

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Ppo
from lecritique.config.schema import PolicySection
from lecritique.config.teachers import EmaTeacher, FrozenTeacher, Fusion, SnapshotTeacher
from lecritique.core.errors import CheckpointError, DataError, DivergenceError
from lecritique.core.trajectory import CreditedTrajectory, PolicyBatch
from lecritique.models.weights import MemoryWeightStore
from lecritique.policy.teacher import SelfTeacher, teacher_row
from lecritique.policy.trainer import PolicyTrainer

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1, 0, 1]]
PROMPT = np.array([3, 9, 4, 11, 2, 7, 1])


def teacher_of(student, config, *, temperature: float = 1.0, context_length: int = 100) -> SelfTeacher:
    return SelfTeacher(student, config, temperature=temperature, max_tokens=1000, context_length=context_length)


def members(*, prompt: np.ndarray | None = PROMPT) -> tuple[CreditedTrajectory, ...]:
    made = (credited(trajectory(mask, member=m), seed=5) for m, mask in enumerate(MASKS))
    return tuple(dataclasses.replace(member, teacher_prompt=prompt) for member in made)


def batch(**kinds) -> PolicyBatch:
    return PolicyBatch.of(members(**kinds), trained_version=0)


def trainer(config, *, dtype: torch.dtype = torch.float64, **section) -> PolicyTrainer:
    policy = small_policy(dtype=dtype)
    own = PolicySection(
        loss=Ppo(), modulation=Fusion(), teacher=config, optimizer=OptimizerConfig(learning_rate=1e-2), **section
    )
    return PolicyTrainer(
        policy, own, MemoryWeightStore(), temperature=1.0, max_tokens=1000, teacher=teacher_of(policy, config)
    )


def weights(model) -> torch.Tensor:
    return torch.cat([w.detach().flatten().clone() for w in model.parameters()])


def after_each_step(one: PolicyTrainer) -> list[torch.Tensor]:
    """The student's weights after each optimizer step to come."""
    seen: list[torch.Tensor] = []
    step = one._optimizer.step

    def watched(role: str) -> float:
        norm = step(role)
        seen.append(weights(one.model))
        return norm

    one._optimizer.step = watched
    return seen


def test_the_ema_moves_after_every_optimizer_step() -> None:
    """Two minibatches a batch: theta_bar is .95 theta_bar + .05 theta twice, by hand."""
    one = trainer(EmaTeacher(), minibatch_size=2)
    first, seen = weights(one.model), after_each_step(one)
    one.step(batch())
    assert len(seen) == 2 and not torch.equal(seen[0], seen[1])
    once = 0.95 * first + 0.05 * seen[0]
    torch.testing.assert_close(weights(one.teacher.model), 0.95 * once + 0.05 * seen[1], rtol=1e-14, atol=1e-16)
    # The wrong orders are far from that.
    for other in (once, 0.95 * first + 0.05 * seen[1]):
        assert (weights(one.teacher.model) - other).abs().max() > 1e-5


def test_no_optimizer_step_no_move() -> None:
    one = trainer(EmaTeacher())
    before = weights(one.teacher.model)
    one.step(PolicyBatch.of((), trained_version=0))
    bad = tuple(dataclasses.replace(m, advantages=np.full(len(m.trajectory), np.nan)) for m in members())
    with pytest.raises(DivergenceError):
        one.step(PolicyBatch.of(bad, trained_version=0))
    assert torch.equal(weights(one.teacher.model), before)


def test_a_half_precision_ema_moves_by_less_than_a_half_precision_weight_can_say() -> None:
    one = trainer(EmaTeacher(decay=0.999), dtype=torch.bfloat16)
    start = weights(one.model).float()
    one.model.requires_grad_(False)
    for weight in one.model.parameters():
        weight.mul_(1.125)
    for _ in range(1000):
        one.teacher.after_optimizer_step(one.model)
    # 1 - .999^1000 = .632 of the way; in bfloat16 alone it would stand still.
    moved = (weights(one.teacher.model).float() - start).norm() / (weights(one.model).float() - start).norm()
    assert moved.item() == pytest.approx(1 - 0.999**1000, abs=0.03)
    assert {w.dtype for w in one.teacher.model.parameters()} == {torch.bfloat16}


def test_a_frozen_teacher_stays_and_a_snapshot_is_taken_every_so_many_batches() -> None:
    frozen, snapshot = trainer(FrozenTeacher()), trainer(SnapshotTeacher(refresh_every=2), minibatch_size=2)
    first = weights(frozen.model)
    for version in range(1, 5):
        before = weights(snapshot.teacher.model)
        for one in (frozen, snapshot):
            one.step(batch())
        assert torch.equal(weights(frozen.teacher.model), first) and not torch.equal(weights(frozen.model), first)
        expected = weights(snapshot.model) if version % 2 == 0 else before
        assert torch.equal(weights(snapshot.teacher.model), expected)


def test_fault_32_it_is_the_students_weights_in_memory_apart_from_them() -> None:
    policy = small_policy()
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.1)
    one = teacher_of(policy, FrozenTeacher())
    assert torch.equal(weights(one.model), weights(policy))
    assert not any(weight.requires_grad for weight in one.model.parameters())
    own = {weight.data_ptr() for weight in one.model.parameters()}
    assert own.isdisjoint(weight.data_ptr() for weight in policy.parameters())
    assert all(weight.requires_grad for weight in policy.parameters())


def test_fault_31_the_first_prompt_is_replaced_and_what_was_sampled_and_answered_stays_byte_for_byte() -> None:
    for member in members():
        own, row = member.trajectory, teacher_row(member)
        first = int(np.flatnonzero(own.action_mask)[0])
        assert row.token_ids.tolist() == [*PROMPT.tolist(), *own.token_ids[first:].tolist()]
        assert row.mask.tolist() == [False] * len(PROMPT) + own.action_mask[first:].tolist()
        assert row.token_ids[row.mask].tolist() == own.token_ids[own.action_mask].tolist()
    bare = teacher_row(members(prompt=None)[1])
    assert bare.token_ids is members()[1].trajectory.token_ids or bare.token_ids.tolist() == (
        members()[1].trajectory.token_ids.tolist()
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_its_scores_are_log_probs_of_the_sampled_tokens_behind_its_own_prompt(temperature: float) -> None:
    policy = small_policy(3)
    scored = teacher_of(policy, EmaTeacher(), temperature=temperature).scored(batch())
    for member in scored.members:
        own = member.trajectory
        first = int(np.flatnonzero(own.action_mask)[0])
        literal = literal_logprobs(policy, [*PROMPT, *own.token_ids[first:]], temperature=temperature)
        expected = np.where(own.action_mask, np.concatenate([np.zeros(first), literal[len(PROMPT) :]]), 0.0)
        np.testing.assert_allclose(member.teacher_logprobs, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_fault_31_no_context_and_equal_weights_say_the_same_to_the_last_bit(temperature: float) -> None:
    policy = small_policy(dtype=torch.float32)
    one = PolicyTrainer(policy, PolicySection(), MemoryWeightStore(), temperature=temperature, max_tokens=1000)
    of_student = one.scored(batch(prompt=None))
    of_teacher = teacher_of(policy, EmaTeacher(), temperature=temperature).scored(batch(prompt=None))
    for a, b in zip(of_student.members, of_teacher.members, strict=True):
        assert a.old_logprobs.tolist() == b.teacher_logprobs.tolist()


def test_fault_30_what_it_reads_is_never_cut_and_too_much_of_it_is_a_clear_error() -> None:
    longest = max(len(PROMPT) + sum(mask[mask.index(1) :]) + mask[mask.index(1) :].count(0) for mask in MASKS)
    teacher_of(small_policy(), EmaTeacher(), context_length=longest).scored(batch())
    with pytest.raises(DataError, match=rf"{longest} tokens with the teacher's prompt.*limit of {longest - 1}"):
        teacher_of(small_policy(), EmaTeacher(), context_length=longest - 1).scored(batch())


def test_scores_that_are_not_finite_stop_the_run() -> None:
    one = teacher_of(small_policy(), FrozenTeacher())
    with torch.no_grad():
        next(one.model.parameters()).fill_(float("nan"))
    with pytest.raises(DivergenceError, match="teacher"):
        one.scored(batch())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "config", [EmaTeacher(), FrozenTeacher(), SnapshotTeacher(refresh_every=3)], ids=lambda c: c.type
)
def test_fault_32_a_restored_trainer_goes_on_to_the_same_bits(config, dtype) -> None:
    straight = trainer(config, dtype=dtype, minibatch_size=2)
    for _ in range(2):
        straight.step(batch())
    saved = copy.deepcopy(straight.state())
    resumed = trainer(config, dtype=dtype, minibatch_size=2)
    resumed.restore(saved)
    for one in (straight, resumed):
        one.step(batch())
    assert torch.equal(weights(straight.model), weights(resumed.model))
    assert torch.equal(weights(straight.teacher.model), weights(resumed.teacher.model))
    assert straight.teacher.state()["means"].keys() == resumed.teacher.state()["means"].keys()
    for name, mean in straight.teacher.state()["means"].items():
        assert mean.dtype == torch.float32 and torch.equal(mean, resumed.teacher.state()["means"][name])


def test_a_state_of_another_teacher_is_refused() -> None:
    one, plain = (
        trainer(EmaTeacher()),
        PolicyTrainer(small_policy(), PolicySection(), MemoryWeightStore(), temperature=1.0, max_tokens=1000),
    )
    with pytest.raises(CheckpointError, match="type 'frozen', this run has 'ema'"):
        one.restore(trainer(FrozenTeacher()).state())
    with pytest.raises(CheckpointError, match="another precision"):
        trainer(EmaTeacher(), dtype=torch.bfloat16).restore(one.state())
    for mine, other in ((one, plain), (plain, one)):
        with pytest.raises(CheckpointError, match="with a teacher or both without"):
            mine.restore(other.state())
    with pytest.raises(ValueError, match="needs a teacher"):
        PolicyTrainer(
            small_policy(), PolicySection(modulation=Fusion()), MemoryWeightStore(), temperature=1.0, max_tokens=9
        )
