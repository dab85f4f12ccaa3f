"""Edges that no other test stands on; each was found by a planted fault that survived."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.numerics.alignment import project_values
from lecritique.numerics.baselines import group_baselines
from lecritique.numerics.explained_variance import value_fit
from lecritique.numerics.gae import terminal_rewards

F64 = torch.float64


def test_a_terminal_reward_that_requires_grad_passes_none_on() -> None:
    reward = torch.tensor([1.0], requires_grad=True)
    assert not terminal_rewards(reward, torch.ones(1, 3, dtype=torch.bool)).requires_grad


@pytest.mark.parametrize("infinite", [math.inf, -math.inf])
def test_infinite_returns_of_either_sign_are_refused(infinite: float) -> None:
    with pytest.raises(ValueError, match="infinite"):
        group_baselines(torch.tensor([infinite, 0.0, 1.0], dtype=F64))


def test_a_fit_of_half_precision_values_is_that_of_the_same_numbers_in_double() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(50, generator=generator).bfloat16()
    values = (targets + 0.3 * torch.rand(50, generator=generator)).bfloat16()
    found, exact = value_fit(values, targets), value_fit(values.double(), targets.double())
    assert found.error.mean == exact.error.mean
    assert found.value() == exact.value()


@pytest.mark.parametrize("position", [-1, 4, 5])
def test_a_projection_from_behind_the_policys_own_tokens_is_refused(position: int) -> None:
    assert project_values([1, 2, 3, 4, 5], 3, 2).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"\[0, 3\]"):
        project_values([1, 2, 3, 4, 5], position, 2)
