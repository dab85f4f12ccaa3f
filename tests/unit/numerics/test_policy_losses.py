"""Policy losses and reductions: known faults, gradients, identities and bad input."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lecritique.numerics.policy_losses import dppo_keep, dppo_loss, reinforce_loss, response_mean, token_mean

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def test_dppo_by_hand() -> None:
    lp, lq = torch.tensor([0.75, 0.25], dtype=F64).log(), torch.tensor([0.5, 0.5], dtype=F64).log()
    found = dppo_loss(lp, lq, torch.tensor([1.0, 1.0], dtype=F64))
    penalty = 1e-3 * math.log(0.5) ** 2
    assert found.kept_N.tolist() == [False, True]
    assert found.loss_N[0].item() == pytest.approx(1e-3 * math.log(1.5) ** 2, abs=1e-15)
    assert found.loss_N[1].item() == pytest.approx(-0.5 + penalty, abs=1e-15)


def test_dppo_thresholds_are_strict_and_zero_advantage_counts_as_falling() -> None:
    p, q = torch.tensor([0.75, 0.25, 0.25, 0.75]), torch.tensor([0.5, 0.5, 0.5, 0.5])
    advantages = torch.tensor([1.0, -1.0, 0.0, 0.0])
    assert dppo_keep(p, q, advantages, mask_low=0.25, mask_high=0.25).all()
    kept = dppo_keep(p, q, advantages, mask_low=0.24, mask_high=0.24)
    assert kept.tolist() == [False, False, False, True]


def test_a_dropped_token_keeps_its_penalty_and_its_gradient_is_only_that() -> None:
    lp = torch.tensor([0.9], dtype=F64).log().requires_grad_()
    lq = torch.tensor([0.5], dtype=F64).log()
    loss = dppo_loss(lp, lq, torch.tensor([1.0], dtype=F64), kl_coef=0.1)
    assert not loss.kept_N.any()
    loss.loss_N.sum().backward()
    assert lp.grad.item() == pytest.approx(0.2 * (math.log(0.9) - math.log(0.5)), abs=1e-12)


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_gradients_are_those_of_finite_differences(kl_coef: float) -> None:
    lp, lq = -normal(12).abs().requires_grad_(), -normal(12, seed=1).abs()
    advantages = normal(12, seed=2)
    lp = lp.detach().requires_grad_()
    mask = torch.arange(12) % 4 != 0
    assert torch.autograd.gradcheck(
        lambda x: dppo_loss(x, lq, advantages, kl_coef=kl_coef, action_mask_N=mask).loss_N, (lp,)
    )
    for on_policy in (True, False):
        assert torch.autograd.gradcheck(
            lambda x, on_policy=on_policy: reinforce_loss(x, lq, advantages, on_policy=on_policy).loss_N, (lp,)
        )
    counts = torch.tensor([3] * 3 + [6] * 6 + [3] * 3)
    assert torch.autograd.gradcheck(lambda x: token_mean(x, mask, action_tokens=9), (lp,))
    assert torch.autograd.gradcheck(lambda x: response_mean(x, mask, response_tokens_N=counts, responses=3), (lp,))


def test_fault_34_on_policy_all_losses_share_one_gradient() -> None:
    start = -normal(9).abs()
    advantages = normal(9, seed=1)
    gradients = []
    for loss_of in (
        lambda lp: dppo_loss(lp, start, advantages, kl_coef=0.0),
        lambda lp: dppo_loss(lp, start, advantages, kl_coef=5.0),
        lambda lp: reinforce_loss(lp, start, advantages, on_policy=True),
        lambda lp: reinforce_loss(lp, start, advantages, on_policy=False),
    ):
        lp = start.clone().requires_grad_()
        token_loss = loss_of(lp)
        assert token_loss.kept_N.all()
        token_loss.loss_N.sum().backward()
        gradients.append(lp.grad)
    for gradient in gradients:
        assert torch.allclose(gradient, -advantages, atol=1e-15)


def test_without_thresholds_and_penalty_dppo_is_off_policy_reinforce() -> None:
    lp, lq, advantages = -normal(9).abs(), -normal(9, seed=1).abs(), normal(9, seed=2)
    dppo = dppo_loss(lp, lq, advantages, mask_low=1.0, mask_high=1.0, kl_coef=0.0)
    assert torch.equal(dppo.loss_N, reinforce_loss(lp, lq, advantages, on_policy=False).loss_N)


def test_nothing_flows_into_advantages_or_sampler() -> None:
    lp, lq, advantages = (normal(4, seed=s).requires_grad_() for s in range(3))
    for token_loss in (dppo_loss(lp, lq, advantages), reinforce_loss(lp, lq, advantages, on_policy=False)):
        token_loss.loss_N.sum().backward()
    assert lp.grad is not None
    assert lq.grad is None
    assert advantages.grad is None


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e6])
def test_fault_14_masked_content_changes_no_bit_of_loss_or_gradient(junk: float) -> None:
    mask = torch.tensor([True, False, True, False])
    clean = [-normal(4).abs(), -normal(4, seed=1).abs(), normal(4, seed=2)]
    dirty = [column.masked_fill(~mask, junk) for column in clean]
    for loss_of in (
        lambda *inputs: dppo_loss(*inputs, action_mask_N=mask),
        lambda *inputs: reinforce_loss(*inputs, on_policy=False, action_mask_N=mask),
        lambda *inputs: reinforce_loss(*inputs, on_policy=True, action_mask_N=mask),
    ):
        results = []
        for columns in (clean, dirty):
            lp = columns[0].clone().requires_grad_()
            loss = token_mean(loss_of(lp, *columns[1:]).loss_N, mask, action_tokens=2)
            loss.backward()
            results.append((loss.detach(), lp.grad))
        assert results[0][0].item() == results[1][0].item()
        assert torch.equal(results[0][1], results[1][1])
        assert results[0][1][~mask].eq(0).all()


def test_fault_14_reductions_select_instead_of_multiplying() -> None:
    loss = torch.tensor([0.25, math.nan, 1.0, math.inf], dtype=F64, requires_grad=True)
    mask = torch.tensor([True, False, True, False])
    counts = torch.tensor([1, 0, 1, -7])
    for total in (
        token_mean(loss, mask, action_tokens=2),
        response_mean(loss, mask, response_tokens_N=counts, responses=2),
    ):
        loss.grad = None
        total.backward()
        assert total.item() == 0.625
        assert loss.grad.tolist() == [0.5, 0, 0.5, 0]


def test_a_dropped_or_weightless_token_with_an_overflowing_ratio_stays_finite() -> None:
    lp = torch.tensor([-0.1, -0.1], requires_grad=True)
    lq = torch.tensor([-200.0, -200.0])
    token_loss = dppo_loss(lp, lq, torch.tensor([1.0, 0.0]), kl_coef=1e-3)
    token_loss.loss_N.sum().backward()
    assert token_loss.kept_N.tolist() == [False, True]
    assert torch.isfinite(token_loss.loss_N).all()
    assert torch.isfinite(lp.grad).all()


def test_fault_9_policy_loss_and_gradient_are_the_same_for_every_split() -> None:
    weights = normal(3, 5).float().requires_grad_()
    features, lq, advantages = normal(12, 5, seed=1).float(), -normal(12, seed=2).abs().float(), normal(12).float()
    lengths = [1, 4, 7]
    counts = torch.tensor([n for n in lengths for _ in range(n)])
    mask = torch.ones(12, dtype=torch.bool)

    def share(part: slice, reduction: str) -> torch.Tensor:
        lp = (features[part] @ weights.T).log_softmax(-1)[:, 0]
        loss = dppo_loss(lp, lq[part], advantages[part]).loss_N
        if reduction == "token":
            return token_mean(loss, mask[part], action_tokens=12)
        return response_mean(loss, mask[part], response_tokens_N=counts[part], responses=3)

    for reduction in ("token", "response"):
        results = []
        for cuts in ([0, 12], [0, 1, 5, 12], [0, 3, 4, 9, 12], list(range(13))):
            weights.grad = None
            total = 0.0
            for start, stop in itertools.pairwise(cuts):
                loss = share(slice(start, stop), reduction)
                loss.backward()
                total += loss.item()
            results.append((total, weights.grad.clone()))
        for total, gradient in results[1:]:
            assert total == pytest.approx(results[0][0], rel=1e-6)
            gap = (gradient - results[0][1]).norm() / results[0][1].norm()
            assert gap < 1e-6


def test_fault_35_a_row_off_the_mask_is_out_of_the_denominator() -> None:
    loss = torch.ones(2, 4, requires_grad=True)
    mask = torch.tensor([[True] * 4, [False] * 4])
    assert token_mean(loss, mask, action_tokens=4).item() == 1.0


def test_fault_35_everything_off_the_mask_is_loss_zero_with_gradient_zero() -> None:
    loss = torch.full((2, 4), math.nan, requires_grad=True)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    counts = torch.zeros(2, 4)
    for total in (
        token_mean(loss, mask, action_tokens=0),
        response_mean(loss, mask, response_tokens_N=counts, responses=0),
    ):
        loss.grad = None
        total.backward()
        assert total.item() == 0.0
        assert loss.grad.eq(0).all()


def test_equal_lengths_make_the_two_reductions_equal() -> None:
    loss, mask = normal(3, 4), torch.ones(3, 4, dtype=torch.bool)
    counts = torch.full((3, 4), 4)
    by_response = response_mean(loss, mask, response_tokens_N=counts, responses=3)
    assert by_response.item() == pytest.approx(token_mean(loss, mask, action_tokens=12).item(), abs=1e-15)


def test_half_precision_log_probs_are_widened() -> None:
    lp = torch.tensor([-1.0, -2.0], dtype=torch.bfloat16, requires_grad=True)
    token_loss = dppo_loss(lp, lp.detach(), torch.tensor([0.1, 0.2]))
    assert token_loss.loss_N.dtype == torch.float32
    assert token_loss.loss_N.tolist() == pytest.approx([-0.1, -0.2])


def test_bad_input_is_refused() -> None:
    two, three = torch.zeros(2), torch.zeros(3)
    with pytest.raises(ValueError, match="kl_coef"):
        dppo_loss(two, two, two, kl_coef=-1.0)
    with pytest.raises(ValueError, match="mask_low"):
        dppo_loss(two, two, two, mask_low=-0.1)
    with pytest.raises(ValueError, match="advantages"):
        dppo_loss(two, two, three)
    with pytest.raises(ValueError, match="sampler"):
        reinforce_loss(two, three, two, on_policy=True)
    with pytest.raises(ValueError, match="boolean"):
        token_mean(two, two, action_tokens=2)
    with pytest.raises(ValueError, match="action_tokens is 0"):
        token_mean(two, torch.ones(2, dtype=torch.bool), action_tokens=0)
    with pytest.raises(ValueError, match="response_tokens"):
        response_mean(two, torch.ones(2, dtype=torch.bool), response_tokens_N=two, responses=1)
