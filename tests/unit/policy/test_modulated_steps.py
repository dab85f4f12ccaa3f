"""Advantages as a teacher modulates them in the trainer: when, by which log-probs, and what of it is reported."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from small_models import credited, literal_logprobs, small_policy, trajectory

import lecritique.policy.trainer as trainer_module
from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Dapo, Dppo, Ppo
from lecritique.config.schema import PolicySection
from lecritique.config.teachers import EmaTeacher, FrozenTeacher, Fusion, NoModulation, Rlsd
from lecritique.core.metrics import CATALOG
from lecritique.core.trajectory import CreditedTrajectory, PolicyBatch
from lecritique.models.weights import MemoryWeightStore
from lecritique.policy.modulation import Modulator
from lecritique.policy.teacher import SelfTeacher, teacher_row
from lecritique.policy.trainer import PolicyTrainer
from tests.oracles.literal_modulation import ppo_loop, rlsd_loop, vaspo_loop, whiten_loop

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1, 0, 1]]
PROMPT = np.array([3, 9, 4, 11, 2, 7, 1])


def members(*, prompt: np.ndarray | None = PROMPT, advantages=None) -> tuple[CreditedTrajectory, ...]:
    made = (
        credited(trajectory(mask, member=m), seed=5, advantages=None if advantages is None else advantages[m])
        for m, mask in enumerate(MASKS)
    )
    return tuple(dataclasses.replace(member, teacher_prompt=prompt) for member in made)


def batch(of: tuple[CreditedTrajectory, ...] | None = None) -> PolicyBatch:
    return PolicyBatch.of(members() if of is None else of, trained_version=0)


def trainer(
    modulation, *, teacher=None, loss=None, max_tokens: int = 1000, learning_rate: float = 1e-2, **section
) -> PolicyTrainer:
    """Student and teacher start alike; what they read differs."""
    policy, kind = small_policy(), teacher or EmaTeacher()
    config = PolicySection(
        loss=loss or Ppo(),
        modulation=modulation,
        teacher=kind,
        optimizer=OptimizerConfig(learning_rate=learning_rate, weight_decay=0.0, max_grad_norm=1e9),
        **section,
    )
    own = SelfTeacher(policy, kind, temperature=1.0, max_tokens=max_tokens, context_length=100)
    return PolicyTrainer(
        policy,
        config,
        MemoryWeightStore(),
        temperature=1.0,
        max_tokens=max_tokens,
        teacher=None if modulation.type == "none" else own,
    )


def gradients(one: PolicyTrainer) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in one.model.parameters()])


def weights(one: PolicyTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()])


def gaps(member: CreditedTrajectory, teacher, student) -> dict[int, float]:
    """d_t of each action token by two full softmaxes."""
    own, row = member.trajectory, teacher_row(member)
    shift = len(row.token_ids) - len(own)
    q, lp = literal_logprobs(teacher, row.token_ids), literal_logprobs(student, own.token_ids)
    return {int(t): q[t + shift] - lp[t] for t in np.flatnonzero(own.action_mask)}


def by_hand(of: tuple[CreditedTrajectory, ...], change, *, teacher=None) -> tuple[CreditedTrajectory, ...]:
    """The members with `change(A, d)` in place of A, the student being the untrained policy."""
    student = small_policy()
    found = []
    for member in of:
        advantages = np.zeros(len(member.trajectory))
        for t, gap in gaps(member, teacher or student, student).items():
            advantages[t] = change(float(member.advantages[t]), gap)
        found.append(dataclasses.replace(member, advantages=advantages))
    return tuple(found)


def vaspo(advantage: float, gap: float) -> float:
    return vaspo_loop(advantage, gap, 0.2, 0.02, 0.02, True)


FORMS = {
    "fusion": (Fusion(), vaspo),
    "other constants": (
        Fusion(eps_w=0.5, tau=0.1, delta=0.9),
        lambda a, d: vaspo_loop(a, d, 0.5, 0.1, 0.9, True),
    ),
    "no mask": (Fusion(masked=False), lambda a, d: vaspo_loop(a, d, 0.2, 0.02, 0.02, False)),
    "rlsd": (Rlsd(), lambda a, d: rlsd_loop(a, d, 0.2, 0.5)),
    "rlsd, all of it": (Rlsd(mix=1.0, eps_w=0.4), lambda a, d: rlsd_loop(a, d, 0.4, 1.0)),
}


@pytest.mark.parametrize("loss", [Ppo(), Dppo(), Dapo()], ids=lambda loss: loss.type)
@pytest.mark.parametrize("name", FORMS)
def test_a_step_is_that_of_the_advantages_modulated_by_hand(name: str, loss) -> None:
    modulation, change = FORMS[name]
    changed = by_hand(members(), change)
    assert any(abs(a.advantages - b.advantages)[a.trajectory.action_mask].max() > 0.01
               for a, b in zip(changed, members(), strict=True))  # fmt: skip
    one, plain = trainer(modulation, loss=loss), trainer(NoModulation(), loss=loss)
    found, expected = one.step(batch()), plain.step(batch(changed))
    assert found["policy_loss"] == pytest.approx(expected["policy_loss"], rel=1e-10)
    torch.testing.assert_close(gradients(one), gradients(plain), rtol=1e-9, atol=1e-12)
    # Reported is what the estimator made.
    assert found["advantage_mean"] == trainer(NoModulation(), loss=loss).step(batch())["advantage_mean"]
    assert found.keys() <= CATALOG.keys()


def test_a_vaspo_step_written_out() -> None:
    """Section 6, steps 4 and 5, over numbers: d by the fixed lp_old, the gate, the surrogate of two minibatches."""
    one = trainer(Fusion(), minibatch_size=2)
    old_policy, models = small_policy(), []
    optimizer_step = one._optimizer.step
    one._optimizer.step = lambda role: models.append(copy.deepcopy(one.model)) or optimizer_step(role)
    found = one.step(batch())
    losses = []
    for index, policy in enumerate(models):
        responses = []
        for member in members()[2 * index : 2 * index + 2]:
            own = member.trajectory
            lp, lp_old = literal_logprobs(policy, own.token_ids), literal_logprobs(old_policy, own.token_ids)
            of_tokens = [
                ppo_loop(lp[t], lp_old[t], own.sampler_logprobs[t], vaspo(member.advantages[t], gap), 0.2, 0.2, 2.0)
                for t, gap in gaps(member, old_policy, old_policy).items()
            ]
            responses.append(sum(of_tokens) / len(of_tokens))
        losses.append(sum(responses) / 2)
    assert len(losses) == 2 and found["update_gap_nats"] > 1e-3
    assert found["policy_loss"] == pytest.approx(sum(losses) / 2, rel=1e-9)


def test_fault_33_the_numbers_of_the_gate() -> None:
    table = [(0.5, 0.4, 0.6), (0.5, -1.5, 0.4), (0.5, -0.005, 0.4975), (0.5, -0.0003, 0.5), (0.5, -0.0005, 0.49975)]
    table += [(-0.5, d, -0.5) for d in (0.4, -1.5, -0.005, 0.0)]
    a, d, expected = (torch.tensor(column, dtype=torch.float64) for column in zip(*table, strict=True))
    modulator = Modulator(Fusion(), version=0)
    found = modulator.modulated(a, d - 3.0, torch.full_like(d, -3.0))
    # The table's .4975 and .49975 are to first order.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    metrics = modulator.metrics()
    assert metrics["gate_open_fraction"] == pytest.approx(4 / 9)
    assert metrics["teacher_gap_mean_nats"] == pytest.approx(d.mean().item())
    assert metrics["teacher_gap_abs_nats"] == pytest.approx(d.abs().mean().item())
    assert metrics["fusion_strength"] == pytest.approx(((found - a).abs().sum() / a.abs().sum()).item())
    assert metrics["modulation_weight_mean"] == pytest.approx((found / a).mean().item())


def test_metrics_of_advantages_that_are_all_zero_are_undefined_where_they_divide_by_them() -> None:
    modulator = Modulator(Rlsd(), version=0)
    zero, gap = torch.zeros(3), torch.ones(3)
    assert modulator.metrics() == {}
    assert modulator.modulated(zero, gap, zero).tolist() == [0.0] * 3
    metrics = modulator.metrics()
    assert metrics["teacher_gap_mean_nats"] == 1.0 and "gate_open_fraction" not in metrics
    assert math.isnan(metrics["fusion_strength"]) and math.isnan(metrics["modulation_weight_mean"])


def test_eps_w_of_zero_is_no_modulation_to_the_last_bit() -> None:
    for modulation in (Fusion(eps_w=0.0), Fusion(eps_w=0.0, masked=False), Rlsd(mix=0.0), Rlsd(eps_w=0.0)):
        one, plain = (
            trainer(modulation, minibatch_size=2, epochs=2),
            trainer(NoModulation(), minibatch_size=2, epochs=2),
        )
        found = [dict(each.step(batch())) for each in (one, plain)]
        assert torch.equal(weights(one), weights(plain))
        assert {name: found[0][name] for name in found[1]} == found[1]


def test_a_teacher_that_is_the_student_and_reads_the_same_changes_nothing() -> None:
    same = batch(members(prompt=None))
    for modulation in (Fusion(), Fusion(masked=False), Rlsd()):
        one, plain = trainer(modulation), trainer(NoModulation())
        found, _ = one.step(same), plain.step(same)
        assert torch.equal(weights(one), weights(plain))
        assert found["teacher_gap_abs_nats"] == found["fusion_strength"] == 0.0
        assert found["modulation_weight_mean"] == 1.0


def test_whitening_comes_after_the_modulation_and_the_gate_looks_at_the_raw_sign() -> None:
    # All advantages are above 0: whitened first, half of the gates would be shut.
    advantages = [np.linspace(1.0, 2.0, len(mask)) for mask in MASKS]
    changed = by_hand(members(advantages=advantages), vaspo)
    flat = whiten_loop([float(a) for m in changed for a in m.advantages[m.trajectory.action_mask]])
    rest = iter(flat)
    expected = tuple(
        dataclasses.replace(
            m, advantages=np.array([next(rest) if on else 0.0 for on in m.trajectory.action_mask.tolist()])
        )
        for m in changed
    )
    one, plain = trainer(Fusion(), whiten=True), trainer(NoModulation())
    found = one.step(batch(members(advantages=advantages)))
    plain.step(batch(expected))
    assert found["gate_open_fraction"] > 0.9
    torch.testing.assert_close(gradients(one), gradients(plain), rtol=1e-8, atol=1e-11)


def watched(monkeypatch, one: PolicyTrainer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(lp, advantages) of every forward pass to come, with the models as they then are."""
    seen = []
    real = trainer_module.token_losses

    def token_losses(config, lp_N, lq_N, advantages_N, **rest):
        assert not advantages_N.requires_grad
        seen.append((copy.deepcopy(one.model), copy.deepcopy(one.teacher.model), advantages_N.clone()))
        return real(config, lp_N, lq_N, advantages_N, **rest)

    monkeypatch.setattr(trainer_module, "token_losses", token_losses)
    return seen


LATE = {
    "current": (Fusion(denominator="current"), EmaTeacher()),
    "rescored": (Fusion(), EmaTeacher(decay=0.5, rescore=True)),
    "both": (Fusion(denominator="current"), EmaTeacher(decay=0.5, rescore=True)),
    "once": (Fusion(), EmaTeacher(decay=0.5)),
    "rlsd, current": (Rlsd(denominator="current"), FrozenTeacher()),
}


@pytest.mark.parametrize("name", LATE)
def test_what_is_modulated_again_at_each_forward_pass(monkeypatch, name: str) -> None:
    """One response a minibatch, two epochs: by then student and teacher have moved."""
    modulation, teacher = LATE[name]
    one = trainer(modulation, teacher=teacher, minibatch_size=1, epochs=2)
    seen, first = watched(monkeypatch, one), small_policy()
    one.step(batch())
    assert len(seen) == 8
    change = vaspo if modulation.type == "fusion" else (lambda a, d: rlsd_loop(a, d, 0.2, 0.5))
    for index, (student, moved_teacher, advantages_N) in enumerate(seen):
        member = members()[index % 4]
        of_student = student if modulation.denominator == "current" else first
        of_teacher = moved_teacher if teacher.rescore else first
        d = gaps(member, of_teacher, of_student)
        expected = [change(float(member.advantages[t]), gap) for t, gap in d.items()]
        assert advantages_N.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_fault_9_late_modulation_is_the_same_for_every_split_into_micro_batches() -> None:
    late = (Fusion(denominator="current"), EmaTeacher(rescore=True))
    whole = trainer(late[0], teacher=late[1], minibatch_size=2, epochs=2)
    expected = dict(whole.step(batch()))
    for max_tokens in (1, 13):
        split = trainer(late[0], teacher=late[1], minibatch_size=2, epochs=2, max_tokens=max_tokens)
        found = split.step(batch())
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-7, abs=1e-9)
        assert (weights(split) - weights(whole)).abs().max() < 1e-9


def test_the_mix_of_rlsd_falls_to_nothing_over_rollout_batches() -> None:
    one, plain = trainer(Rlsd(mix=0.6, mix_steps=3)), trainer(NoModulation())
    student = small_policy()
    for version in range(5):
        for each in (one, plain):
            each.model.load_state_dict(student.state_dict())
        one.teacher.model.load_state_dict(student.state_dict())
        mix = [0.6, 0.4, 0.2, 0.0, 0.0][version]
        one.step(batch())
        plain.step(batch(by_hand(members(), lambda a, d, mix=mix: rlsd_loop(a, d, 0.2, mix))))
        torch.testing.assert_close(gradients(one), gradients(plain), rtol=1e-9, atol=1e-12)
        assert one.version == version + 1


def test_old_log_probs_that_came_with_the_batch_are_the_denominator() -> None:
    policy = small_policy()
    other = tuple(
        dataclasses.replace(m, old_logprobs=literal_logprobs(policy, m.trajectory.token_ids) - 0.1) for m in members()
    )
    found = trainer(Fusion(), teacher=FrozenTeacher()).step(batch(other))
    own = trainer(Fusion(), teacher=FrozenTeacher()).step(batch())
    assert found["teacher_gap_mean_nats"] == pytest.approx(own["teacher_gap_mean_nats"] + 0.1, rel=1e-9)
