"""Value losses: known faults, gradients, identities and bad input."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lecritique.core.errors import ConfigurationError, DivergenceError
from lecritique.numerics.policy_losses import token_mean
from lecritique.numerics.value_losses import categorical_loss, categorical_value, mse_loss, two_hot

F64 = torch.float64
UNIT = {"low": 0.0, "high": 1.0}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def test_fault_16_a_target_on_two_atoms_and_one_outside() -> None:
    assert two_hot(torch.tensor([0.3], dtype=F64), atoms=2, **UNIT)[0].tolist() == pytest.approx([0.7, 0.3], abs=1e-15)
    with pytest.raises(ConfigurationError, match=r"value target 1\.2 lies outside the critic's support \[0, 1\]"):
        two_hot(torch.tensor([0.5, 1.2]), atoms=2, **UNIT)


def test_fault_16_extreme_logits_give_finite_losses_and_gradients() -> None:
    logits = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
    loss = categorical_loss(logits, torch.tensor([1.0, 1.0]), **UNIT)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([200.0, 0.0])
    assert torch.isfinite(logits.grad).all()
    assert categorical_value(logits, **UNIT).tolist() == pytest.approx([0.0, 1.0])


def test_fault_16_mse_has_no_squashing() -> None:
    values = torch.tensor([12.0, -3.0], requires_grad=True)
    loss = mse_loss(values, torch.tensor([10.0, -3.0]))
    loss.sum().backward()
    assert loss.tolist() == [2.0, 0.0]
    assert values.grad.tolist() == [2.0, 0.0]


def test_fault_9_token_mean_of_half_squared_errors() -> None:
    values, targets = torch.tensor([0.5, 1.0, 1.0, 1.0], requires_grad=True), torch.zeros(4)
    mask = torch.ones(4, dtype=torch.bool)
    gradients = []
    for cuts in ([0, 4], [0, 1, 4], [0, 2, 4], [0, 1, 2, 3, 4]):
        values.grad = None
        total = torch.zeros(())
        for start, stop in itertools.pairwise(cuts):
            part = slice(start, stop)
            share = token_mean(mse_loss(values[part], targets[part]), mask[part], action_tokens=4)
            share.backward()
            total += share.detach()
        assert total.item() == pytest.approx(0.40625, abs=1e-7)
        gradients.append(values.grad.clone())
    for gradient in gradients:
        assert torch.allclose(gradient, gradients[0], rtol=1e-6)


@pytest.mark.parametrize(("low", "high", "atoms"), [(0.0, 1.0, 2), (-1.0, 1.0, 5), (-20.0, 5.0, 101)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_two_hot_is_a_distribution_with_the_target_as_expectation(
    low: float, high: float, atoms: int, dtype: torch.dtype
) -> None:
    targets = torch.linspace(low, high, 333, dtype=dtype)
    weights = two_hot(targets, low=low, high=high, atoms=atoms)
    support = torch.linspace(low, high, atoms, dtype=dtype)
    tolerance = (1e-6 if dtype == torch.float32 else 1e-13) * (high - low)
    assert weights.dtype == dtype
    assert (weights >= 0).all()
    assert (weights > 0).sum(-1).max() <= 2
    assert torch.allclose(weights.sum(-1), torch.ones(333, dtype=dtype), atol=4e-6 if dtype == torch.float32 else 1e-12)
    assert torch.allclose(weights @ support, targets, atol=4 * tolerance, rtol=0)


def test_rounding_outside_the_support_is_clamped() -> None:
    weights = two_hot(torch.tensor([1.0 + 9e-6, -9e-6], dtype=F64), atoms=2, **UNIT)
    assert weights.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    for outside in (1.0 + 2e-5, -2e-5):
        with pytest.raises(ConfigurationError):
            two_hot(torch.tensor([outside], dtype=F64), atoms=2, **UNIT)
    wide = two_hot(torch.tensor([100.0 + 9e-4], dtype=F64), low=0.0, high=100.0, atoms=3)
    assert wide.tolist() == [[0.0, 0.0, 1.0]]
    narrow = two_hot(torch.tensor([0.1 + 9e-6], dtype=F64), low=0.0, high=0.1, atoms=2)
    assert narrow.tolist() == [[0.0, 1.0]]


def test_two_atoms_are_binary_cross_entropy() -> None:
    logits, targets = normal(20, 2), torch.rand(20, dtype=F64, generator=torch.Generator().manual_seed(1))
    gap = logits[:, 1] - logits[:, 0]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(gap, targets, reduction="none")
    assert torch.allclose(categorical_loss(logits, targets, **UNIT), expected, atol=1e-14)
    assert torch.allclose(categorical_value(logits, **UNIT), gap.sigmoid(), atol=1e-15)


def test_gradients_are_those_of_finite_differences_and_prediction_minus_target() -> None:
    logits = normal(6, 5).requires_grad_()
    targets = torch.linspace(-0.9, 0.95, 6, dtype=F64)
    support = {"low": -1.0, "high": 1.0}
    assert torch.autograd.gradcheck(lambda x: categorical_loss(x, targets, **support), (logits,))
    assert torch.autograd.gradcheck(lambda x: categorical_value(x, **support), (logits,))
    assert torch.autograd.gradcheck(lambda v: mse_loss(v, targets), (normal(6).requires_grad_(),))
    categorical_loss(logits, targets, **support).sum().backward()
    expected = logits.detach().softmax(-1) - two_hot(targets, atoms=5, **support)
    assert torch.allclose(logits.grad, expected, atol=1e-14)


def test_the_loss_is_smallest_where_the_value_is_the_target() -> None:
    target = torch.tensor([0.3], dtype=F64)
    best = two_hot(target, atoms=2, **UNIT).log()
    least = categorical_loss(best, target, **UNIT).item()
    assert categorical_value(best, **UNIT).item() == pytest.approx(0.3, abs=1e-15)
    for nudge in (-0.1, 0.1):
        moved = best + torch.tensor([[0.0, nudge]], dtype=F64)
        assert categorical_loss(moved, target, **UNIT).item() > least


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e6])
def test_fault_14_masked_content_is_not_read(junk: float) -> None:
    mask = torch.tensor([True, False])
    targets = torch.tensor([0.3, junk], dtype=F64)
    logits = torch.tensor([[0.2, -0.1], [junk, junk]], dtype=F64, requires_grad=True)
    loss = categorical_loss(logits, targets, action_mask_N=mask, **UNIT)
    loss.sum().backward()
    assert loss[0].item() == categorical_loss(logits[:1], targets[:1], **UNIT).item()
    assert loss[1].item() == 0.0
    assert logits.grad[1].tolist() == [0.0, 0.0]

    values = torch.tensor([0.5, junk], dtype=F64, requires_grad=True)
    loss = mse_loss(values, targets, action_mask_N=mask)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.02, 0.0])
    assert values.grad.tolist() == pytest.approx([0.2, 0.0])


def test_targets_are_constants() -> None:
    targets = torch.tensor([0.3], requires_grad=True)
    logits = torch.zeros(1, 2, requires_grad=True)
    (categorical_loss(logits, targets, **UNIT) + mse_loss(logits[:, 0], targets)).sum().backward()
    assert targets.grad is None


def test_half_precision_logits_are_widened() -> None:
    logits = torch.zeros(1, 2, dtype=torch.bfloat16)
    assert categorical_loss(logits, torch.tensor([0.3]), **UNIT).dtype == torch.float32
    assert categorical_value(logits, **UNIT).dtype == torch.float32
    assert mse_loss(logits[:, 0], torch.tensor([0.3], dtype=torch.float16)).dtype == torch.float32


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="low < high"):
        two_hot(torch.zeros(1), low=1.0, high=1.0, atoms=2)
    with pytest.raises(ValueError, match="at least 2 atoms"):
        categorical_value(torch.zeros(3, 1), **UNIT)
    with pytest.raises(DivergenceError, match="not finite"):
        two_hot(torch.tensor([math.nan]), atoms=2, **UNIT)
    with pytest.raises(ValueError, match="logits"):
        categorical_loss(torch.zeros(3, 2), torch.zeros(2), **UNIT)
    with pytest.raises(ValueError, match="targets"):
        mse_loss(torch.zeros(3), torch.zeros(2))
