"""AdamW by hand, linear warm-up, clipping, and a norm that must be finite."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.config.estimators import OptimizerConfig
from lecritique.core.errors import DivergenceError
from lecritique.models.optimizer import Optimizer


def weight(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([value, -value], dtype=torch.float64))


def test_two_steps_equal_adamw_written_out() -> None:
    config = OptimizerConfig(learning_rate=0.1, betas=(0.8, 0.9), weight_decay=0.2, max_grad_norm=100.0)
    parameter = weight()
    optimizer = Optimizer([parameter], config)
    w, m, v = 1.0, 0.0, 0.0
    for step, gradient in enumerate((0.5, -2.0), start=1):
        optimizer.zero_grad()
        parameter.grad = torch.tensor([gradient, -gradient], dtype=torch.float64)
        assert optimizer.step("policy") == pytest.approx(math.sqrt(2) * abs(gradient))
        m, v = 0.8 * m + 0.2 * gradient, 0.9 * v + 0.1 * gradient**2
        w -= 0.1 * 0.2 * w
        w -= 0.1 * (m / (1 - 0.8**step)) / (math.sqrt(v / (1 - 0.9**step)) + 1e-8)
        assert parameter.tolist() == pytest.approx([w, -w], abs=1e-14)
    assert optimizer.steps == 2


def test_warm_up_is_linear_and_then_constant() -> None:
    parameter = weight()
    optimizer = Optimizer([parameter], OptimizerConfig(learning_rate=0.8, warmup_steps=4))
    rates = []
    for _ in range(6):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step("policy")
        rates.append(optimizer.learning_rate)
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_gradients_are_scaled_down_to_the_norm_and_never_up() -> None:
    for gradient, expected in ((30.0, 0.5), (0.1, 0.1 * math.sqrt(2))):
        parameter = weight()
        optimizer = Optimizer([parameter], OptimizerConfig(learning_rate=0.1, max_grad_norm=0.5))
        parameter.grad = torch.full_like(parameter, gradient)
        assert optimizer.step("policy") == pytest.approx(gradient * math.sqrt(2))
        assert parameter.grad.norm().item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_leaves_weights_and_count(bad: float) -> None:
    parameter = weight()
    optimizer = Optimizer([parameter], OptimizerConfig(learning_rate=0.1))
    parameter.grad = torch.tensor([bad, 1.0], dtype=torch.float64)
    with pytest.raises(DivergenceError, match="critic step 1"):
        optimizer.step("critic")
    assert parameter.tolist() == [1.0, -1.0] and optimizer.steps == 0
    optimizer.zero_grad()
    parameter.grad = torch.ones_like(parameter)
    optimizer.step("critic")
    assert torch.isfinite(parameter).all() and optimizer.steps == 1


def test_frozen_parameters_are_left_alone() -> None:
    frozen, free = weight().requires_grad_(False), weight()
    optimizer = Optimizer([frozen, free], OptimizerConfig(learning_rate=0.1))
    free.grad = torch.ones_like(free)
    optimizer.step("policy")
    assert frozen.tolist() == [1.0, -1.0] and free.tolist() != [1.0, -1.0]
