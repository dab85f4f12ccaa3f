"""Distillation steps: the divergence of whole distributions, aligned on action tokens, with its global denominators."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small_models import credited, small_policy, trajectory

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Opsd
from lecritique.config.schema import PolicySection
from lecritique.config.teachers import EmaTeacher, FrozenTeacher
from lecritique.core.errors import ConfigurationError, DivergenceError
from lecritique.core.metrics import CATALOG
from lecritique.core.trajectory import CreditedTrajectory, PolicyBatch
from lecritique.models.scoring import TokenRow, in_paired_micro_batches
from lecritique.models.weights import MemoryWeightStore
from lecritique.policy.teacher import SelfTeacher, teacher_row
from lecritique.policy.trainer import PolicyTrainer
from tests.oracles.literal_modulation import divergence_loop

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1, 0, 1], [0, 0, 1]]
PROMPT = np.array([3, 9, 4, 11, 2, 7, 1])
LOSSES = [Opsd(), Opsd(kind="reverse_kl"), Opsd(kind="jsd"), Opsd(kind="jsd", beta=0.2), Opsd(reduction="token_mean")]


def members(count: int = 4, *, prompt: np.ndarray | None = PROMPT) -> tuple[CreditedTrajectory, ...]:
    made = (credited(trajectory(mask, member=m), seed=5) for m, mask in enumerate(MASKS[:count]))
    return tuple(dataclasses.replace(member, teacher_prompt=prompt) for member in made)


def batch(count: int = 4, **kinds) -> PolicyBatch:
    return PolicyBatch.of(members(count, **kinds), trained_version=0)


def trainer(
    loss,
    *,
    max_tokens: int = 1000,
    learning_rate: float = 1e-2,
    temperature: float = 1.0,
    kind=None,
    tied=True,
    **section,
) -> PolicyTrainer:
    policy, kind = small_policy(tied=tied), kind or FrozenTeacher()
    config = PolicySection(
        loss=loss,
        teacher=kind,
        optimizer=OptimizerConfig(learning_rate=learning_rate, weight_decay=0.0, max_grad_norm=1e9),
        **section,
    )
    teacher = SelfTeacher(policy, kind, temperature=temperature, max_tokens=max_tokens, context_length=100)
    return PolicyTrainer(
        policy, config, MemoryWeightStore(), temperature=temperature, max_tokens=max_tokens, teacher=teacher
    )


def logits_before(model, row: TokenRow) -> torch.Tensor:
    """Logits of the position before each wanted token, [N, V]."""
    logits = model(input_ids=torch.tensor([row.token_ids.tolist()]), use_cache=False).logits[0]
    return torch.stack([logits[int(t) - 1] for t in np.flatnonzero(row.mask)])


def literal(loss, of, student, teacher, *, temperature: float = 1.0) -> tuple[float, float]:
    """The loss of one minibatch and the mean divergence, over Python numbers."""
    responses = []
    for member in of:
        own = TokenRow(token_ids=member.trajectory.token_ids, mask=member.trajectory.action_mask)
        with torch.no_grad():
            p = (logits_before(student, own) / temperature).tolist()
            q = (logits_before(teacher, teacher_row(member)) / temperature).tolist()
        responses.append([divergence_loop(a, b, loss.kind, loss.beta) for a, b in zip(p, q, strict=True)])
    flat = [each for response in responses for each in response]
    mean = sum(flat) / len(flat)
    if loss.reduction == "token_mean":
        return mean, mean
    return sum(sum(response) / len(response) for response in responses) / len(responses), mean


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind}-{loss.beta}-{loss.reduction}")
def test_the_loss_is_the_divergence_written_out(loss, temperature: float) -> None:
    one = trainer(loss, temperature=temperature)
    expected, divergence = literal(loss, members(), small_policy(), small_policy(), temperature=temperature)
    found = one.step(batch())
    assert found["policy_loss"] == pytest.approx(expected, rel=1e-9) and expected > 0.01
    assert found["opsd_divergence"] == pytest.approx(divergence, rel=1e-9)
    assert found.keys() <= CATALOG.keys() and "advantage_mean" not in found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("loss", LOSSES[:3], ids=lambda loss: loss.kind)
def test_the_gradient_is_that_of_the_logits_in_full_and_none_reaches_the_teacher(loss, tied: bool) -> None:
    one = trainer(loss, learning_rate=1e-300, tied=tied)
    one.step(batch())
    student, teacher = small_policy(tied=tied), small_policy(tied=tied)
    total = torch.zeros((), dtype=torch.float64)
    for member in members():
        own = TokenRow(token_ids=member.trajectory.token_ids, mask=member.trajectory.action_mask)
        log_p = logits_before(student, own).log_softmax(-1)
        log_q = logits_before(teacher, teacher_row(member)).log_softmax(-1).detach()
        log_m = torch.logaddexp(log_p, log_q) - np.log(2.0)
        kls = {
            "forward_kl": (log_q.exp() * (log_q - log_p)).sum(-1),
            "reverse_kl": (log_p.exp() * (log_p - log_q)).sum(-1),
            "jsd": 0.5 * (log_q.exp() * (log_q - log_m)).sum(-1) + 0.5 * (log_p.exp() * (log_p - log_m)).sum(-1),
        }
        total = total + kls[loss.kind].mean() / len(MASKS[:4])
    total.backward()
    for own_weight, weight in zip(one.model.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(own_weight.grad, weight.grad, rtol=1e-8, atol=1e-11)
    assert all(weight.grad is None for weight in one.teacher.model.parameters())


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind}-{loss.beta}-{loss.reduction}")
def test_a_teacher_that_is_the_student_and_reads_the_same_teaches_nothing(loss) -> None:
    one = trainer(loss)
    found = one.step(batch(prompt=None))
    assert found["policy_loss"] == pytest.approx(0.0, abs=1e-12)
    assert found["policy_grad_norm"] < 1e-9


def test_fault_9_the_same_for_every_split_into_micro_batches() -> None:
    whole = trainer(Opsd(), minibatch_size=2, epochs=2)
    expected = dict(whole.step(batch()))
    for max_tokens in (1, 13, 25):
        split = trainer(Opsd(), minibatch_size=2, epochs=2, max_tokens=max_tokens)
        assert dict(split.step(batch())) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_fault_53_each_minibatch_has_its_own_denominators_and_a_short_one_its_share() -> None:
    """Five responses, two at a time: the last one counts half."""
    one = trainer(Opsd(), learning_rate=1e-300, minibatch_size=2)
    parts = [literal(Opsd(), members(5)[start : start + 2], small_policy(), small_policy())[0] for start in (0, 2, 4)]
    expected = (parts[0] + parts[1] + parts[2] / 2) / 3
    assert one.step(batch(5))["policy_loss"] == pytest.approx(expected, rel=1e-9)


def test_the_teacher_of_each_forward_pass_is_the_one_that_has_moved() -> None:
    one = trainer(Opsd(), kind=EmaTeacher(decay=0.3), minibatch_size=2)
    students, teachers = [], []
    step = one._optimizer.step

    def watched(role: str) -> float:
        students.append({name: w.clone() for name, w in one.model.state_dict().items()})
        teachers.append({name: w.clone() for name, w in one.teacher.model.state_dict().items()})
        return step(role)

    one._optimizer.step = watched
    found = one.step(batch())
    losses = []
    for index in range(2):
        student, teacher = small_policy(), small_policy()
        student.load_state_dict(students[index])
        teacher.load_state_dict(teachers[index])
        losses.append(literal(Opsd(), members()[2 * index : 2 * index + 2], student, teacher)[0])
    assert found["policy_loss"] == pytest.approx(sum(losses) / 2, rel=1e-9)
    assert not torch.equal(teachers[0]["model.norm.weight"], teachers[1]["model.norm.weight"])


def test_steps_bring_the_student_closer() -> None:
    one = trainer(Opsd(), learning_rate=3e-3)
    found = [one.step(batch())["opsd_divergence"] for _ in range(12)]
    assert found[-1] < 0.7 * found[0]


def test_two_readings_must_want_the_same_tokens() -> None:
    mask = np.array([False, True, True])
    rows = [TokenRow(token_ids=np.array([1, 2, 3]), mask=mask)], [TokenRow(token_ids=np.array([1, 2, 4]), mask=mask)]
    with pytest.raises(ValueError, match="do not want the same tokens"):
        list(in_paired_micro_batches(small_policy(), *rows, max_tokens=10))


def test_bad_input() -> None:
    one = trainer(Opsd())
    with torch.no_grad():
        next(one.teacher.model.parameters()).fill_(float("nan"))
    with pytest.raises(DivergenceError, match="loss of step 1"):
        one.step(batch())
    policy = small_policy(tied=False)
    policy.lm_head = torch.nn.Linear(16, 24, bias=True, dtype=torch.float64)
    with pytest.raises(ConfigurationError, match=r"'policy\.loss\.type' = 'opsd'.*'model\.name'"):
        PolicyTrainer(
            policy, PolicySection(loss=Opsd()), MemoryWeightStore(), temperature=1.0, max_tokens=9,
            teacher=SelfTeacher(policy, FrozenTeacher(), temperature=1.0, max_tokens=9, context_length=9),
        )  # fmt: skip
