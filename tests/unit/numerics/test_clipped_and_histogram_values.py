"""Clipped MSE and HL-Gauss: known faults, gradients, identities and bad input."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.core.errors import ConfigurationError, DivergenceError
from lecritique.numerics.policy_losses import token_mean
from lecritique.numerics.value_losses import (
    categorical_loss,
    categorical_value,
    clipped_mse,
    hl_gauss,
    hl_gauss_loss,
    mse_loss,
    two_hot,
)

F64 = torch.float64


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def test_fault_12_the_larger_of_the_two_errors() -> None:
    values = tensor(1.0, 0.9).requires_grad_()
    found = clipped_mse(values, tensor(5.0, 0.5), tensor(10.0, 1.0), eps_v=0.2)
    assert found.loss_N.tolist() == pytest.approx([40.5, 0.045], abs=1e-12)
    assert found.clipped_N.tolist() == [False, True]
    found.loss_N.sum().backward()
    assert values.grad.tolist() == pytest.approx([-9.0, 0.0], abs=1e-12)


def test_a_value_that_has_not_left_its_range_is_plain_mse_with_its_whole_gradient() -> None:
    values, targets = tensor(0.2, 0.7).requires_grad_(), tensor(1.0, 0.0)
    for old, eps_v in ((values.detach(), 0.0), (tensor(0.3, 0.6), 0.5), (tensor(9.0, -9.0), math.inf)):
        values.grad = None
        found = clipped_mse(values, old, targets, eps_v=eps_v)
        assert not found.clipped_N.any()
        assert torch.equal(found.loss_N, mse_loss(values, targets))
        found.loss_N.sum().backward()
        assert values.grad.tolist() == pytest.approx([-0.8, 0.7], abs=1e-12)


def test_gradient_of_clipped_mse_is_that_of_finite_differences() -> None:
    values = tensor(0.0, 0.9, 0.4, 3.0).requires_grad_()
    old, targets = tensor(1.0, 0.0, 0.5, 1.0), tensor(2.0, 1.0, 0.0, 0.0)
    mask = torch.tensor([True, True, True, False])
    loss = clipped_mse(values, old, targets, action_mask_N=mask)
    assert loss.clipped_N.tolist() == [False, True, False, False]
    assert torch.autograd.gradcheck(lambda v: clipped_mse(v, old, targets, action_mask_N=mask).loss_N, (values,))


def test_fault_11_targets_and_old_values_are_constants_of_the_update() -> None:
    values, old, targets = (tensor(0.5, 0.1).requires_grad_() for _ in range(3))
    clipped_mse(values, old, targets).loss_N.sum().backward()
    assert old.grad is None
    assert targets.grad is None
    logits = torch.zeros(2, 5, dtype=F64, requires_grad=True)
    hl_gauss_loss(logits, targets, low=0.0, high=1.0).sum().backward()
    assert targets.grad is None


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e6])
def test_masked_content_is_not_read(junk: float) -> None:
    mask = torch.tensor([True, False, True])
    columns = tensor(0.1, 0.2, 0.9), tensor(0.7, 0.1, 0.2), tensor(1.0, 0.0, 1.0)

    def run(columns: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        values = columns[0].clone().requires_grad_()
        loss = clipped_mse(values, *columns[1:], action_mask_N=mask)
        token_mean(loss.loss_N, mask, action_tokens=2).backward()
        return loss.loss_N.detach(), loss.clipped_N, values.grad

    for clean, dirty in zip(run(columns), run(tuple(c.masked_fill(~mask, junk) for c in columns)), strict=True):
        assert torch.equal(clean, dirty)
    logits = torch.randn(3, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    clean = hl_gauss_loss(logits, columns[2], low=0.0, high=1.0, action_mask_N=mask)
    dirty = hl_gauss_loss(
        logits.masked_fill(~mask[:, None], junk),
        columns[2].masked_fill(~mask, junk),
        low=0.0,
        high=1.0,
        action_mask_N=mask,
    )
    assert torch.equal(clean, dirty)
    assert clean[1].item() == 0.0


def test_hl_gauss_weights_are_the_normal_masses_of_the_bins() -> None:
    found = hl_gauss(tensor(0.5), low=0.0, high=1.0, atoms=5)[0].tolist()
    sigma = 0.75 * 0.25

    def phi(x: float) -> float:
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    masses = [phi((0.25 * k + 0.125 - 0.5) / sigma) - phi((0.25 * k - 0.125 - 0.5) / sigma) for k in range(5)]
    assert found == pytest.approx([mass / sum(masses) for mass in masses], abs=1e-14)


def test_hl_gauss_keeps_the_target_inside_and_is_one_hot_without_width() -> None:
    atoms = torch.linspace(-1.0, 1.0, 41, dtype=F64)
    support = {"low": -1.0, "high": 1.0, "atoms": 41}
    inside = torch.linspace(-0.85, 0.85, 97, dtype=F64)
    weights = hl_gauss(inside, **support)
    assert torch.allclose(weights.sum(-1), torch.ones(97, dtype=F64), atol=1e-14)
    assert ((weights @ atoms) - inside).abs().max() < 1e-2 * 0.05
    ends = hl_gauss(tensor(-1.0, 1.0), **support) @ atoms
    assert ends.tolist() == pytest.approx([-1.0 + 0.45 * 0.05, 1.0 - 0.45 * 0.05], abs=0.1 * 0.05)
    assert (hl_gauss(torch.linspace(-1, 1, 201, dtype=F64), **support) @ atoms).diff().min() > 0
    narrow = hl_gauss(tensor(0.26, 0.1), low=0.0, high=1.0, atoms=5, sigma_bins=1e-3)
    assert narrow.tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]


def test_hl_gauss_loss_is_least_where_the_distribution_is_the_weights() -> None:
    support = {"low": 0.0, "high": 2.0}
    targets = tensor(0.9, 1.3)
    weights = hl_gauss(targets, atoms=21, **support)
    logits = weights.clamp(min=1e-300).log().requires_grad_()
    loss = hl_gauss_loss(logits, targets, **support)
    assert loss.tolist() == pytest.approx(torch.special.entr(weights).sum(-1).tolist(), abs=1e-12)
    loss.sum().backward()
    assert logits.grad.abs().max() < 1e-12
    assert categorical_value(logits, **support).tolist() == pytest.approx(targets.tolist(), abs=1e-3)
    free = torch.randn(2, 21, dtype=F64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: hl_gauss_loss(x, targets, **support), (free,))
    hl_gauss_loss(free, targets, **support).sum().backward()
    assert torch.allclose(free.grad, free.detach().softmax(-1) - weights, atol=1e-14)


def test_hl_gauss_on_an_atom_without_width_is_categorical() -> None:
    logits = torch.randn(3, 5, dtype=F64, generator=torch.Generator().manual_seed(2))
    targets = tensor(0.0, 0.5, 1.0)
    found = hl_gauss_loss(logits, targets, low=0.0, high=1.0, sigma_bins=1e-3)
    assert torch.allclose(found, categorical_loss(logits, targets, low=0.0, high=1.0), atol=1e-14)
    assert torch.equal(
        two_hot(targets, low=0.0, high=1.0, atoms=5), hl_gauss(targets, low=0.0, high=1.0, atoms=5, sigma_bins=1e-3)
    )


def test_large_logits_give_a_finite_loss() -> None:
    logits = torch.tensor([[100.0, -100.0, 0.0]])
    assert hl_gauss_loss(logits, torch.tensor([1.0]), low=0.0, high=1.0).isfinite().all()


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="outside"):
        hl_gauss(tensor(1.2), low=0.0, high=1.0, atoms=5)
    with pytest.raises(DivergenceError):
        hl_gauss(tensor(math.nan), low=0.0, high=1.0, atoms=5)
    with pytest.raises(ValueError, match="sigma"):
        hl_gauss(tensor(0.5), low=0.0, high=1.0, atoms=5, sigma_bins=0.0)
    with pytest.raises(ValueError, match="eps_v"):
        clipped_mse(tensor(0.5), tensor(0.5), tensor(0.5), eps_v=-1.0)
    with pytest.raises(ValueError, match="old values"):
        clipped_mse(tensor(0.5), tensor(0.5, 0.5), tensor(0.5))
    with pytest.raises(ValueError, match="targets"):
        clipped_mse(tensor(0.5), tensor(0.5), tensor(0.5, 0.5))
