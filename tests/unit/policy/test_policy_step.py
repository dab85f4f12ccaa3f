"""A policy step: the same for every split, the configured loss, and refused when not finite."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from small_models import credited, literal_logprobs, small_policy, trajectory

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Dapo, Dppo, Ppo, Reinforce
from lecritique.config.schema import PolicySection
from lecritique.core.errors import DivergenceError
from lecritique.core.trajectory import CreditedTrajectory, PolicyBatch
from lecritique.models.weights import MemoryWeightStore
from lecritique.policy.trainer import PolicyTrainer

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1, 1, 1], [0, 1], [0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1]]
WHOLE = 100_000
LOSSES = [loss(reduction=reduction) for loss in (Dppo, Reinforce) for reduction in ("token_mean", "response_mean")] + [
    Reinforce(on_policy=False),
    Ppo(),
    Ppo(rollout_weight=False, reduction="token_mean"),
    Dapo(),
    Dapo(rollout_weight=True, rollout_weight_cap=0.2, reduction="response_mean"),
]


def members() -> tuple[CreditedTrajectory, ...]:
    """Off-policy by construction: sampler log-probs are about -1 whatever the policy says."""
    return tuple(credited(trajectory(mask, member=m), seed=5) for m, mask in enumerate(MASKS))


def batch(of: tuple[CreditedTrajectory, ...] | None = None) -> PolicyBatch:
    return PolicyBatch.of(members() if of is None else of, trained_version=0)


def trainer(
    loss=None, *, max_tokens: int = WHOLE, dtype: torch.dtype = torch.float64, temperature: float = 1.0, seed: int = 0
) -> PolicyTrainer:
    # The clip is far away, so that gradients are compared as they are.
    config = PolicySection(
        loss=Dppo() if loss is None else loss, optimizer=OptimizerConfig(learning_rate=1e-3, max_grad_norm=1e9)
    )
    return PolicyTrainer(
        small_policy(seed, dtype=dtype), config, MemoryWeightStore(), temperature=temperature, max_tokens=max_tokens
    )


def gradients(one: PolicyTrainer) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().double() for parameter in one.model.parameters()])


def name_of(loss) -> str:
    return f"{loss.type}-{loss.reduction}"


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_fault_9_loss_and_gradient_are_the_same_for_every_split(loss, dtype, tolerance: float) -> None:
    whole = trainer(loss, dtype=dtype)
    expected = whole.step(batch())
    for max_tokens in (1, 13, 25):
        split = trainer(loss, max_tokens=max_tokens, dtype=dtype)
        found = split.step(batch())
        for name in ("policy_loss", "ratio_mean", "sampler_gap_nats", "dropped_fraction", "policy_grad_norm"):
            assert found[name] == pytest.approx(expected[name], rel=10 * tolerance, abs=1e-7), name
        gap = (gradients(split) - gradients(whole)).norm() / gradients(whole).norm()
        assert gap < tolerance


def token_loss(loss, lp: float, lq: float, advantage: float) -> float:
    """The losses of the method sheet, section 1, for one token."""
    if isinstance(loss, Reinforce):
        return -advantage * (lp if loss.on_policy else math.exp(lp - lq))
    if isinstance(loss, Ppo | Dapo):  # one step: the ratio to the policy before it is 1
        return -advantage * (min(math.exp(lp - lq), loss.rollout_weight_cap) if loss.rollout_weight else 1.0)
    moved = math.exp(lp) - math.exp(lq)
    dropped = moved > loss.mask_high if advantage > 0 else moved < -loss.mask_low
    return -(not dropped) * advantage * math.exp(lp - lq) + loss.kl_coef * (lp - lq) ** 2


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_loss_equals_a_literal_sum_over_each_sequence_alone(loss, temperature: float) -> None:
    one = trainer(loss, temperature=temperature)
    per_response = []
    for member in members():
        own = member.trajectory
        lp = literal_logprobs(one.model, own.token_ids, temperature=temperature)
        on = np.flatnonzero(own.action_mask)
        per_response.append([token_loss(loss, lp[t], own.sampler_logprobs[t], member.advantages[t]) for t in on])
    if loss.reduction == "token_mean":
        expected = sum(map(sum, per_response)) / sum(map(len, per_response))
    else:
        expected = sum(sum(tokens) / len(tokens) for tokens in per_response) / len(per_response)
    assert one.step(batch())["policy_loss"] == pytest.approx(expected, rel=1e-10)


def test_some_tokens_of_the_batch_are_dropped_by_dppo() -> None:
    assert 0 < trainer(Dppo()).step(batch())["dropped_fraction"] < 1


def test_a_response_in_two_segments_has_one_length() -> None:
    """Response mean of one response with three tokens, cut into two segments: each token weighs 1/3."""
    first, second = trajectory([0, 1], member=0), trajectory([0, 1, 1], member=0, seed=1)
    second = dataclasses.replace(second, segment_index=1)
    both = batch((credited(first, advantages=[0, 1.0]), credited(second, advantages=[0, 1.0, 1.0])))
    assert both.responses == 1
    loss = Reinforce(reduction="response_mean")
    one = trainer(loss)
    lps = [literal_logprobs(one.model, t.token_ids)[t.action_mask] for t in (first, second)]
    for max_tokens in (1, WHOLE):
        found = trainer(loss, max_tokens=max_tokens).step(both)["policy_loss"]
        assert found == pytest.approx(-np.concatenate(lps).mean(), rel=1e-12)


def test_on_policy_the_first_ratio_is_one_and_nothing_is_dropped() -> None:
    policy = small_policy(dtype=torch.float32)
    own = [credited(trajectory(mask, member=m, policy=policy), seed=5) for m, mask in enumerate(MASKS)]
    found = trainer(Dppo(), dtype=torch.float32).step(batch(tuple(own)))
    assert found["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert found["sampler_gap_nats"] < 1e-5 and found["dropped_fraction"] == 0.0


def test_a_step_makes_what_was_good_more_likely_and_versions_count_steps() -> None:
    policy = small_policy()
    up = credited(trajectory([0, 1, 1, 1], member=0, policy=policy), advantages=[0, 1, 1, 1])
    down = credited(trajectory([0, 1, 1, 1], member=1, policy=policy), advantages=[0, -1, -1, -1])
    one = trainer(Dppo())
    assert one.version == 0 and one.publish().version == 0

    def likelihood(member: CreditedTrajectory) -> float:
        own = member.trajectory
        return float(literal_logprobs(one.model, own.token_ids)[own.action_mask].sum())

    before = likelihood(up), likelihood(down)
    one.step(batch((up, down)))
    assert likelihood(up) > before[0] and likelihood(down) < before[1]
    assert one.version == 1 and one.publish().version == 1


def test_fault_35_nothing_on_the_mask_makes_no_step() -> None:
    one = trainer()
    before = copy.deepcopy(one.model.state_dict())
    for empty in (batch(()), batch((credited(trajectory([0, 0, 0])),))):
        assert one.step(empty) == {"policy_loss": 0.0}
    assert one.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.model.state_dict().items())


def test_fault_35_of_two_rows_of_four_tokens_one_is_off_the_mask() -> None:
    """The mean is over 4 tokens, not 8, and over one response, not two."""
    on = credited(trajectory([0, 1, 1, 1, 1], member=0), advantages=[0, 1, 1, 1, 1])
    off = credited(trajectory([0, 0, 0, 0, 0], member=1))
    for reduction in ("token_mean", "response_mean"):
        one = trainer(Reinforce(reduction=reduction))
        expected = -literal_logprobs(one.model, on.trajectory.token_ids)[1:].mean()
        assert one.step(batch((on, off)))["policy_loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["advantage", "sampler", "weights"])
def test_what_is_not_finite_is_divergence_and_leaves_the_weights(bad: float, where: str) -> None:
    one, own = trainer(), trajectory(MASKS[1])
    column = np.ones(len(own))
    if where == "advantage":
        column[3] = bad
    if where == "sampler":
        own = dataclasses.replace(own, sampler_logprobs=np.where(own.action_mask, bad, 0.0))
    if where == "weights":
        with torch.no_grad():
            one.model.get_input_embeddings().weight[int(own.token_ids[2])] = bad
    before = {name: tensor.clone().nan_to_num(7.0) for name, tensor in one.model.state_dict().items()}
    text = "an advantage of policy step 1 is" if where == "advantage" else "the policy loss of step 1 is"
    with pytest.raises(DivergenceError, match=text):
        one.step(batch((members()[0], credited(own, advantages=column))))
    assert one.version == 0
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor.nan_to_num(7.0), before[name]), name


def test_fault_14_junk_off_the_mask_changes_nothing() -> None:
    clean = tuple(
        dataclasses.replace(m, advantages=np.where(m.trajectory.action_mask, m.advantages, 0.0)) for m in members()
    )
    dirty = tuple(
        dataclasses.replace(
            m,
            advantages=np.where(m.trajectory.action_mask, m.advantages, np.nan),
            trajectory=dataclasses.replace(
                m.trajectory, sampler_logprobs=np.where(m.trajectory.action_mask, m.trajectory.sampler_logprobs, np.nan)
            ),
        )
        for m in members()
    )
    one, other = trainer(), trainer()
    assert one.step(batch(clean)) == other.step(batch(dirty))
    assert torch.equal(gradients(one), gradients(other))


def test_staleness_is_the_age_of_the_oldest_token() -> None:
    own = trajectory([0, 1, 1], version=6)
    mixed = dataclasses.replace(own, policy_version=np.array([-1, 6, 3]))
    one = PolicyBatch.of((credited(own), credited(mixed)), trained_version=8)
    assert one.ages == (2, 5)
    assert trainer().step(one)["staleness_max"] == 5.0
