"""AdamW by hand, linear warm-up, clipping, and a norm that must be finite."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.config.estimators import OptimizerConfig
from lecritique.core.errors import CheckpointError, DivergenceError
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


def stepped(optimizer: Optimizer, parameters: list[torch.nn.Parameter], gradients: list[float]) -> None:
    """One step a number; the second parameter is reached by every second one only."""
    for number, gradient in enumerate(gradients):
        optimizer.zero_grad()
        for index, parameter in enumerate(parameters):
            if parameter.requires_grad and (index == 0 or number % 2):
                parameter.grad = torch.full_like(parameter, gradient + index)
        optimizer.step("policy")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_resumed_at_any_step_it_equals_the_uninterrupted_one_to_the_bit(stop: int, dtype: torch.dtype) -> None:
    config = OptimizerConfig(learning_rate=0.1, warmup_steps=3, weight_decay=0.1)
    gradients = [0.3, -1.7, 0.4, 2.5, -0.1]

    def fresh() -> tuple[list[torch.nn.Parameter], Optimizer]:
        made = [torch.nn.Parameter(torch.tensor([1.0, -3.0]).to(dtype)) for _ in range(3)]
        made[1].requires_grad_(False)
        return made, Optimizer(made, config)

    (straight, one), (first, two), (resumed, three) = fresh(), fresh(), fresh()
    stepped(one, straight, gradients[:stop])
    stepped(two, first, gradients[:stop])
    state = two.state()
    with torch.no_grad():
        for target, source in zip(resumed, first, strict=True):
            target.copy_(source)
    three.restore(state)
    assert three.state()["updates"] == state["updates"]
    assert (three.steps, three.learning_rate) == (stop, two.learning_rate)
    stepped(one, straight, gradients[stop:])
    stepped(three, resumed, gradients[stop:])
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))
    assert three.steps == 5 and three.learning_rate == one.learning_rate


def test_a_restored_state_shares_no_memory_with_what_it_came_from() -> None:
    config = OptimizerConfig(learning_rate=0.1)
    first, second = weight(), weight()
    one, two = Optimizer([first], config), Optimizer([second], config)
    stepped(one, [first], [1.0])
    two.restore(one.state())
    before = one.state()["first_moments"]["0"].clone()
    stepped(two, [second], [5.0])
    assert torch.equal(one.state()["first_moments"]["0"], before)


def test_the_state_of_other_parameters_is_refused() -> None:
    config = OptimizerConfig(learning_rate=0.1)
    first = weight()
    one = Optimizer([first], config)
    stepped(one, [first], [1.0])
    with pytest.raises(CheckpointError, match="of 1 parameters, this run trains 2"):
        Optimizer([weight(), weight()], config).restore(one.state())
    for other in (torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)), torch.nn.Parameter(torch.zeros(2))):
        with pytest.raises(CheckpointError, match="parameter 0"):
            Optimizer([other], config).restore(one.state())
    with pytest.raises(CheckpointError, match="holds nothing for parameter 0"):
        Optimizer([weight()], config).restore(one.state() | {"first_moments": {}})
