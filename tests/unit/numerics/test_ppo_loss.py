"""The clipped surrogate, the rollout weight, and what DAPO adds: hand examples, gradients, identities, bad input."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.numerics.baselines import group_advantages
from lecritique.numerics.dapo import overlong_penalty, zero_variance
from lecritique.numerics.policy_losses import (
    ppo_loss,
    reinforce_loss,
    response_mean,
    rollout_weight,
    token_mean,
)

F64 = torch.float64


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def gradient(loss_of, start: torch.Tensor) -> torch.Tensor:
    lp = start.clone().requires_grad_()
    loss_of(lp).loss_N.sum().backward()
    return lp.grad


def test_ppo_by_hand() -> None:
    ratios, advantages = tensor(1.5, 0.5, 1.5, 0.5, 1.1), tensor(2.0, 2.0, -2.0, -2.0, 0.0)
    found = ppo_loss(ratios.log(), torch.zeros(5, dtype=F64), advantages)
    # Risen and good: held at 1.2. Fallen and good: still pushed up. And the other way round for bad tokens.
    assert found.loss_N.tolist() == pytest.approx([-2.4, -1.0, 3.0, 1.6, 0.0], abs=1e-12)
    assert found.kept_N.tolist() == [False, True, True, False, True]
    grad = gradient(lambda lp: ppo_loss(lp, torch.zeros(5, dtype=F64), advantages), ratios.log())
    assert grad.tolist() == pytest.approx([0.0, -1.0, 3.0, 0.0, 0.0], abs=1e-12)


def test_dapo_clips_higher_than_it_clips_low() -> None:
    ratios, advantages = tensor(1.25, 1.3, 0.75), tensor(1.0, 1.0, -1.0)
    found = ppo_loss(ratios.log(), torch.zeros(3, dtype=F64), advantages, eps_low=0.2, eps_high=0.28)
    assert found.loss_N.tolist() == pytest.approx([-1.25, -1.28, 0.8], abs=1e-12)


def test_a_ratio_on_the_bound_is_kept_and_has_its_whole_gradient() -> None:
    lp = tensor(0.0, 0.0)
    loss = ppo_loss(lp, lp, tensor(1.0, -1.0), eps_low=0.0, eps_high=0.0)
    assert loss.kept_N.all()
    grad = gradient(lambda x: ppo_loss(x, lp, tensor(1.0, -1.0), eps_low=0.0, eps_high=0.0), lp)
    assert grad.tolist() == [-1.0, 1.0]


def test_the_rollout_weight_scales_loss_and_gradient_and_is_a_constant() -> None:
    lp, old, advantages, u = -normal(9).abs(), -normal(9, seed=1).abs(), normal(9, seed=2), normal(9, seed=3).abs()
    u.requires_grad_()
    plain = ppo_loss(lp, old, advantages)
    weighted = ppo_loss(lp, old, advantages, rollout_weight_N=u)
    assert torch.allclose(weighted.loss_N, u * plain.loss_N, atol=1e-14)
    assert torch.equal(weighted.kept_N, plain.kept_N)
    found = gradient(lambda x: ppo_loss(x, old, advantages, rollout_weight_N=u), lp)
    assert torch.allclose(found, u * gradient(lambda x: ppo_loss(x, old, advantages), lp), atol=1e-14)
    assert u.grad is None


def test_the_rollout_weight_is_cut_from_above_only() -> None:
    old, sampler = tensor(-1.0, -1.0, -1.0, -1.0), tensor(-1.0, -1.5, -9.0, 0.5)
    found = rollout_weight(old.requires_grad_(), sampler)
    assert found.tolist() == pytest.approx([1.0, math.exp(0.5), 2.0, math.exp(-1.5)])
    assert not found.requires_grad
    assert rollout_weight(old, sampler, cap=math.inf)[2].item() == pytest.approx(math.exp(8.0))
    masked = rollout_weight(old, tensor(math.nan, 0, 0, 0), action_mask_N=torch.tensor([False, True, True, True]))
    assert masked[0].item() == 1.0


def test_gradients_are_those_of_finite_differences() -> None:
    # Ratios away from the corners of the clip, where there is no derivative.
    lp = tensor(0.4, -0.4, 0.1, -0.1, 0.4, -0.4).requires_grad_()
    advantages, u = tensor(1.0, 1.0, 2.0, -2.0, -1.0, -1.0), tensor(1.0, 0.5, 2.0, 1.5, 0.7, 1.0)
    mask = torch.tensor([True, True, True, True, True, False])
    old = torch.zeros(6, dtype=F64)
    assert torch.autograd.gradcheck(
        lambda x: ppo_loss(x, old, advantages, rollout_weight_N=u, action_mask_N=mask).loss_N, (lp,)
    )


def test_fault_34_on_policy_the_first_step_is_reinforce_whatever_the_clip() -> None:
    lp, advantages = -normal(9).abs(), normal(9, seed=1)
    expected = gradient(lambda x: reinforce_loss(x, lp, advantages, on_policy=True), lp)
    for eps in (0.0, 0.2, 0.28):
        found = gradient(lambda x, eps=eps: ppo_loss(x, lp, advantages, eps_low=eps, eps_high=eps), lp)
        assert torch.allclose(found, expected, atol=1e-15)


def test_fault_34_temperature_divides_logits_and_the_first_ratio_is_one() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    logprobs = (logits / 0.6).log_softmax(-1)[0]
    assert logprobs.tolist() == pytest.approx([-0.2026, -1.8692, -3.5359], abs=1e-4)
    # Trainer in float32, sampler in float64: the same distribution.
    sampler = (logits.double() / 0.6).log_softmax(-1)[0].float()
    assert (logprobs - sampler).exp().tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    assert rollout_weight(logprobs, sampler).tolist() == pytest.approx([1.0] * 3, abs=1e-5)


def test_with_a_wide_clip_ppo_is_off_policy_reinforce() -> None:
    lp, old, advantages = -normal(9).abs(), -normal(9, seed=1).abs(), normal(9, seed=2)
    wide = ppo_loss(lp, old, advantages, eps_low=1.0, eps_high=1e9)
    assert torch.equal(wide.loss_N, reinforce_loss(lp, old, advantages, on_policy=False).loss_N)


@pytest.mark.parametrize("reduction", ["token_mean", "response_mean"])
def test_dapo_at_equal_clips_is_ppo_at_the_same_reduction(reduction: str) -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    ratios = torch.tensor([[1.5, 0.5, 9.0], [1.5, 0.5, 1.0]], dtype=F64)
    old = -normal(2, 3).abs()
    lp = old + ratios.log()
    _, advantages_K = group_advantages(tensor(1.0, 0.0), "mean", scale="std")
    advantages = advantages_K[:, None].expand(2, 3)

    def reduced(loss_N: torch.Tensor) -> float:
        if reduction == "token_mean":
            return token_mean(loss_N, mask, action_tokens=5).item()
        counts = torch.tensor([[2] * 3, [3] * 3])
        return response_mean(loss_N, mask, response_tokens_N=counts, responses=2).item()

    def dapo(eps_high: float) -> float:
        return reduced(ppo_loss(lp, old, advantages, eps_low=0.2, eps_high=eps_high, action_mask_N=mask).loss_N)

    ppo = -torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    assert dapo(0.2) == pytest.approx(reduced(ppo), abs=1e-14)
    assert dapo(0.28) < dapo(0.2)


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e6, -1e6])
def test_masked_content_changes_neither_loss_nor_gradient(junk: float) -> None:
    mask = torch.arange(8) % 3 != 0
    columns = [-normal(8, seed=s).abs() for s in range(4)]
    settings = {"action_mask_N": mask}

    def run(columns: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        lp = columns[0].clone().requires_grad_()
        loss = ppo_loss(lp, columns[1], columns[2], rollout_weight_N=columns[3], **settings).loss_N
        token_mean(loss, mask, action_tokens=5).backward()
        return loss.detach(), lp.grad

    clean = run(columns)
    dirty = run([column.masked_fill(~mask, junk) for column in columns])
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])
    assert clean[0][~mask].eq(0).all()


def test_an_infinite_ratio_gives_finite_loss_and_gradient_where_it_is_clipped() -> None:
    lp, old = torch.tensor([0.0, 0.0], requires_grad=True), torch.tensor([-1e4, -1e4])
    loss = ppo_loss(lp, old, torch.tensor([1.0, 0.0])).loss_N
    assert loss.tolist() == pytest.approx([-1.2, 0.0])
    loss.sum().backward()
    assert lp.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("reduction", ["token_mean", "response_mean"])
def test_any_split_into_micro_batches_gives_one_gradient(reduction: str) -> None:
    lp, old, advantages = (-normal(12, seed=s).abs() for s in range(3))
    mask = torch.arange(12) % 4 != 1
    response = torch.tensor([0] * 5 + [1] * 3 + [2] * 4)
    counts = torch.tensor([int(mask[response == r].sum()) for r in range(3)])[response]

    def grad_of(pieces: list[slice]) -> torch.Tensor:
        x = lp.clone().requires_grad_()
        for s in pieces:
            loss = ppo_loss(x[s], old[s], advantages[s], action_mask_N=mask[s]).loss_N
            if reduction == "token_mean":
                share = token_mean(loss, mask[s], action_tokens=int(mask.sum()))
            else:
                share = response_mean(loss, mask[s], response_tokens_N=counts[s], responses=3)
            share.backward()
        return x.grad

    whole = grad_of([slice(0, 12)])
    for cut in ([slice(0, 7), slice(7, 12)], [slice(i, i + 1) for i in range(12)]):
        assert torch.allclose(grad_of(cut), whole, rtol=1e-12, atol=1e-15)


def test_fault_35_nothing_on_the_mask_is_loss_zero() -> None:
    lp = torch.full((4,), math.nan, requires_grad=True)
    mask = torch.zeros(4, dtype=torch.bool)
    loss = ppo_loss(lp, lp.detach(), lp.detach(), action_mask_N=mask)
    total = token_mean(loss.loss_N, mask, action_tokens=0)
    total.backward()
    assert total.item() == 0.0
    assert lp.grad.tolist() == [0.0] * 4


def test_half_precision_input_is_widened() -> None:
    lp = torch.tensor([-1.0, -2.0], dtype=torch.bfloat16)
    assert ppo_loss(lp, lp, lp).loss_N.dtype == torch.float32
    assert rollout_weight(lp, lp).dtype == torch.float32


def test_bad_input_is_refused() -> None:
    lp = torch.zeros(3)
    for constants in ({"eps_low": -0.1}, {"eps_low": 1.1}, {"eps_high": -0.1}, {"eps_high": math.nan}):
        with pytest.raises(ValueError, match="eps_low"):
            ppo_loss(lp, lp, lp, **constants)
    with pytest.raises(ValueError, match=r"weight has shape \(2,\)"):
        ppo_loss(lp, lp, lp, rollout_weight_N=torch.ones(2))
    with pytest.raises(ValueError, match="advantages"):
        ppo_loss(lp, lp, torch.zeros(4))
    with pytest.raises(ValueError, match="boolean"):
        ppo_loss(lp, lp, lp, action_mask_N=lp)
    with pytest.raises(ValueError, match="cap"):
        rollout_weight(lp, lp, cap=0.0)
    with pytest.raises(ValueError, match="sampler"):
        rollout_weight(lp, torch.zeros(2))


def test_overlong_penalty_by_hand() -> None:
    lengths = [0, 12288, 12289, 14336, 16384, 20000]
    assert overlong_penalty(lengths).tolist() == pytest.approx([0, 0, -1 / 4096, -0.5, -1, -1], abs=1e-15)
    assert overlong_penalty(torch.tensor([7, 8, 10]), limit=10, cache=4).tolist() == [-0.25, -0.5, -1.0]
    for cache in (0, 11):
        with pytest.raises(ValueError, match="cache"):
            overlong_penalty([1], limit=10, cache=cache)


def test_zero_variance_groups() -> None:
    nan = math.nan
    groups = torch.tensor([[0.1, 0.1, 0.1], [0.1, 0.1, 0.2], [nan, 1.0, 1.0], [nan, 1.0, 0.0], [nan, nan, nan]])
    assert zero_variance(groups).tolist() == [True, False, True, False, True]
    assert zero_variance(torch.tensor([3.0])).item() is True
    # 0.1 summed and divided is not 0.1: a variance computed with rounding would not be 0.
    assert zero_variance(torch.full((7,), 0.1, dtype=F64)).item() is True
    _, advantages = group_advantages(groups[0].double(), "mean", scale="std")
    assert advantages.abs().max() < 1e-9
    with pytest.raises(ValueError, match="at least 1"):
        zero_variance(torch.zeros(2, 0))
