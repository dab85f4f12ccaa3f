"""Several optimizer steps on one batch: fixed log-probs from before, every rollout once an epoch, equal weights."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from small_models import credited, literal_logprobs, small_policy, trajectory

import lecritique.models.ranks as ranks_module
from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Dapo, Dppo, Ppo, Reinforce
from lecritique.config.schema import PolicySection
from lecritique.core.errors import DivergenceError
from lecritique.core.trajectory import CreditedTrajectory, PolicyBatch
from lecritique.models.weights import MemoryWeightStore
from lecritique.policy.batches import minibatches, whitened
from lecritique.policy.trainer import PolicyTrainer

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1, 1, 1], [0, 1], [0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1], [0, 1, 0, 1]]
WHOLE = 100_000
STILL = 1e-300  # a learning rate that moves no weight


def members(count: int = len(MASKS), *, policy=None) -> tuple[CreditedTrajectory, ...]:
    """Off-policy by construction unless a policy sampled them."""
    return tuple(credited(trajectory(MASKS[m % len(MASKS)], member=m, policy=policy), seed=5 + m) for m in range(count))


def batch(of: tuple[CreditedTrajectory, ...] | None = None) -> PolicyBatch:
    return PolicyBatch.of(members() if of is None else of, trained_version=0)


def trainer(
    loss, *, max_tokens: int = WHOLE, learning_rate: float = 1e-3, dtype: torch.dtype = torch.float64, **section
) -> PolicyTrainer:
    config = PolicySection(
        loss=loss,
        optimizer=OptimizerConfig(learning_rate=learning_rate, weight_decay=0.0, max_grad_norm=1e9),
        **section,
    )
    return PolicyTrainer(small_policy(dtype=dtype), config, MemoryWeightStore(), temperature=1.0, max_tokens=max_tokens)


def gradients(one: PolicyTrainer) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().double() for parameter in one.model.parameters()])


def weights(one: PolicyTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().double() for parameter in one.model.parameters()])


@pytest.mark.parametrize("reduction", ["token_mean", "response_mean"])
@pytest.mark.parametrize("kind", [Ppo, Dapo])
def test_on_the_first_step_the_ratio_is_one_and_the_gradient_that_of_reinforce(kind, reduction: str) -> None:
    plain = trainer(Reinforce(reduction=reduction))
    plain.step(batch())
    one = trainer(kind(reduction=reduction, rollout_weight=False))
    found = one.step(batch())
    assert found["update_gap_nats"] == 0.0 and found["dropped_fraction"] == 0.0
    assert "rollout_weight_mean" not in found
    torch.testing.assert_close(gradients(one), gradients(plain), rtol=1e-12, atol=1e-14)


def test_the_rollout_weight_scales_each_tokens_gradient_and_is_capped() -> None:
    """u = min(exp(lp_old - lq), cap), as if it were part of the advantage."""
    policy, weighted, u_all = small_policy(), [], []
    for member in members():
        own = member.trajectory
        u = np.minimum(np.exp(literal_logprobs(policy, own.token_ids) - own.sampler_logprobs), 0.5)
        weighted.append(dataclasses.replace(member, advantages=np.where(own.action_mask, u * member.advantages, 0.0)))
        u_all += u[own.action_mask].tolist()
    plain = trainer(Reinforce())
    plain.step(batch(tuple(weighted)))
    one = trainer(Ppo(rollout_weight_cap=0.5, reduction="token_mean"))
    found = one.step(batch())
    torch.testing.assert_close(gradients(one), gradients(plain), rtol=1e-10, atol=1e-13)
    assert found["rollout_weight_mean"] == pytest.approx(np.mean(u_all), rel=1e-12)
    assert max(u_all) == 0.5 > min(u_all)


@pytest.mark.parametrize("loss", [Ppo(), Dapo(), Dapo(rollout_weight=True), Dppo()], ids=lambda loss: loss.type)
def test_fault_9_several_steps_are_the_same_for_every_split_into_micro_batches(loss) -> None:
    def made(max_tokens: int) -> tuple[PolicyTrainer, dict[str, float]]:
        one = trainer(loss, max_tokens=max_tokens, minibatch_size=2, epochs=2)
        return one, dict(one.step(batch()))

    whole, expected = made(WHOLE)
    assert whole.steps == 6 and expected.get("update_gap_nats", 1.0) > 1e-3
    for max_tokens in (1, 13, 25):
        split, found = made(max_tokens)
        for name in expected:
            assert found[name] == pytest.approx(expected[name], rel=1e-7, abs=1e-9), name
        assert (gradients(split) - gradients(whole)).norm() < 1e-7 * gradients(whole).norm()
        assert (weights(split) - weights(whole)).abs().max() < 1e-9


def literal_token_losses(loss: Ppo | Dapo, member: CreditedTrajectory) -> list[float]:
    """The surrogate of the method sheet, section 1, where the policy has not moved yet: rho = 1."""
    own = member.trajectory
    lp = literal_logprobs(small_policy(), own.token_ids)
    u = [min(math.exp(lp[t] - own.sampler_logprobs[t]), 2.0) if loss.rollout_weight else 1.0 for t in range(len(own))]
    return [-u[t] * member.advantages[t] for t in np.flatnonzero(own.action_mask)]


@pytest.mark.parametrize("loss", [Ppo(), Dapo()], ids=lambda loss: loss.type)
def test_each_step_has_the_denominators_of_its_own_minibatch(loss) -> None:
    one = trainer(loss, learning_rate=STILL, minibatch_size=2)
    expected = []
    for start in (0, 2, 4):
        rows = [literal_token_losses(loss, member) for member in members()[start : start + 2]]
        if loss.reduction == "token_mean":
            expected.append(sum(map(sum, rows)) / sum(map(len, rows)))
        else:
            expected.append(sum(sum(row) / len(row) for row in rows) / 2)
    assert one.step(batch())["policy_loss"] == pytest.approx(np.mean(expected), rel=1e-10)
    assert one.steps == 3


def test_fault_53_of_ten_rollouts_in_minibatches_of_four_each_has_the_same_weight() -> None:
    """Two rollouts failed out of twelve, say: the last step is made of two, and moves half as far."""
    loss, of = Ppo(), members(10)
    one = trainer(loss, learning_rate=STILL, minibatch_size=4)
    means = [np.mean(literal_token_losses(loss, member)) for member in of]
    found = one.step(batch(of))["policy_loss"]
    assert one.steps == 3 and found * 3 * 4 == pytest.approx(sum(means), rel=1e-10)
    # In the gradient too: that of the last step alone is a quarter of the sum over its two responses.
    last = trainer(loss)
    last.step(batch(of[8:]))
    torch.testing.assert_close(gradients(one), gradients(last) / 2, rtol=1e-10, atol=1e-14)
    assert [part.share for part in minibatches(batch(of), 4)] == [1.0, 1.0, 0.5]
    assert [part.share for part in minibatches(batch(of[:3]), 4)] == [1.0]


def test_segments_of_one_rollout_stay_in_one_minibatch_in_the_order_of_the_batch() -> None:
    of = members(4)
    second = dataclasses.replace(of[1].trajectory, segment_index=1)
    parts = minibatches(batch((of[0], of[1], of[2], credited(second), of[3])), 2)
    ids = [[(m.trajectory.rollout_id.member, m.trajectory.segment_index) for m in p.batch.members] for p in parts]
    assert ids == [[(0, 0), (1, 0), (1, 1)], [(2, 0), (3, 0)]]
    assert [part.batch.responses for part in parts] == [2, 2]
    assert [part.batch.action_tokens for part in parts] == [2 + 7 + 7, 1 + 1]


def test_versions_count_batches_and_steps_count_optimizer_steps() -> None:
    one = trainer(Ppo(), minibatch_size=2, epochs=2)
    assert one.publish().version == one.version == one.steps == 0
    for number in (1, 2):
        before = weights(one)
        one.step(batch())
        assert (one.version, one.steps) == (number, 6 * number) and one.publish().version == number
        assert not torch.equal(weights(one), before)
    assert one.step(batch(())) == {"policy_loss": 0.0} and one.version == 2


def test_a_minibatch_of_the_whole_batch_is_no_minibatch() -> None:
    one, other = trainer(Dppo()), trainer(Dppo(), minibatch_size=len(MASKS))
    assert one.step(batch()) == other.step(batch())
    assert torch.equal(weights(one), weights(other))


def test_log_probs_from_before_are_scored_once_and_stay(monkeypatch) -> None:
    calls = []
    inner = ranks_module.logprobs
    monkeypatch.setattr(ranks_module, "logprobs", lambda *a, **k: calls.append(1) or inner(*a, **k))
    trainer(Ppo(), minibatch_size=2, epochs=3).step(batch())
    assert calls == [1]
    trainer(Dppo(), minibatch_size=2).step(batch())
    assert calls == [1]
    one = trainer(Ppo())
    scored = one.scored(batch())
    for member in scored.members:
        own = member.trajectory
        expected = np.where(own.action_mask, literal_logprobs(one.model, own.token_ids), 0.0)
        np.testing.assert_allclose(member.old_logprobs, expected, atol=1e-12)
    one.step(scored)
    assert calls == [1, 1], "a batch that brings them is not scored again"


@pytest.mark.parametrize(("sign", "shift", "clipped"), [(1, 0.3, 1.0), (1, -0.3, 0.0), (-1, -0.3, 1.0), (-1, 0.3, 0.0)])
def test_a_ratio_that_left_the_clip_range_in_the_advantages_direction_has_no_gradient(sign, shift, clipped) -> None:
    """rho = exp(shift) on every token: beyond 1.2 it is clipped for A > 0, below .8 for A < 0."""
    one = trainer(Ppo())
    moved = []
    for member in one.scored(batch()).members:
        on = member.trajectory.action_mask
        advantages, old = np.where(on, float(sign), 0.0), np.where(on, member.old_logprobs - shift, 0.0)
        moved.append(dataclasses.replace(member, advantages=advantages, old_logprobs=old))
    found = one.step(batch(tuple(moved)))
    assert found["dropped_fraction"] == clipped and found["update_gap_nats"] == pytest.approx(0.3)
    assert (found["policy_grad_norm"] == 0.0) == bool(clipped)


def test_dapo_leaves_more_room_upwards() -> None:
    for kind, clipped in ((Ppo, 1.0), (Dapo, 0.0)):
        one = trainer(kind())
        moved = tuple(
            dataclasses.replace(m, advantages=np.abs(m.advantages) + 0.1, old_logprobs=m.old_logprobs - math.log(1.25))
            for m in one.scored(batch()).members
        )
        assert one.step(batch(moved))["dropped_fraction"] == clipped


def test_whitening_is_over_the_whole_batch_and_a_step_of_its_own() -> None:
    flat = np.concatenate([m.advantages[m.trajectory.action_mask] for m in members()])
    by_hand = tuple(
        dataclasses.replace(
            m,
            advantages=np.where(
                m.trajectory.action_mask, (m.advantages - flat.mean()) / math.sqrt(flat.var() + 1e-8), 0.0
            ),
        )
        for m in members()
    )
    one, other = trainer(Ppo(), minibatch_size=2, whiten=True), trainer(Ppo(), minibatch_size=2)
    found, expected = one.step(batch()), other.step(batch(by_hand))
    assert found["policy_loss"] == pytest.approx(expected["policy_loss"], rel=1e-9)
    assert (weights(one) - weights(other)).abs().max() < 1e-9
    # What is reported is in reward units.
    assert found["advantage_std"] == pytest.approx(flat.std()) != pytest.approx(expected["advantage_std"])
    for member, own in zip(whitened(batch()).members, by_hand, strict=True):
        np.testing.assert_allclose(member.advantages, own.advantages, atol=1e-12)


def test_a_log_prob_from_before_that_is_not_finite_is_divergence() -> None:
    one = trainer(Ppo())
    with torch.no_grad():
        one.model.get_input_embeddings().weight[int(members()[1].trajectory.token_ids[2])] = math.nan
    before = copy.deepcopy(one.model.state_dict())
    with pytest.raises(DivergenceError, match="a log-prob before policy step 1 is not finite"):
        one.step(batch())
    assert one.version == one.steps == 0
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor.nan_to_num(7.0), before[name].nan_to_num(7.0)), name


def test_divergence_in_a_later_step_counts_no_version() -> None:
    of = list(members())
    bad = dataclasses.replace(of[4].trajectory, sampler_logprobs=np.where(of[4].trajectory.action_mask, -np.inf, 0.0))
    of[4] = dataclasses.replace(of[4], trajectory=bad)
    one = trainer(Dppo(), minibatch_size=2)
    with pytest.raises(DivergenceError, match="the policy loss of step 3 is"):
        one.step(batch(tuple(of)))
    assert (one.version, one.steps) == (0, 2) and bool(weights(one).isfinite().all())
