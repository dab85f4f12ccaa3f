"""Group baselines: known faults, identities and bad input."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.numerics.baselines import group_advantages, group_baselines, optimal_constant_baseline

NAN = math.nan


def returns(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_fault_19_leave_one_out_against_mean() -> None:
    group = returns(1, 1, 1, 0, 0, 0, 0, 0)
    _, loo = group_advantages(group, "leave_one_out")
    _, mean = group_advantages(group, "mean")
    assert loo.tolist() == pytest.approx([5 / 7] * 3 + [-3 / 7] * 5, abs=1e-12)
    assert mean.tolist() == [0.625] * 3 + [-0.375] * 5


def test_fault_20_uneven_groups_are_each_their_own() -> None:
    _, three = group_advantages(returns(1, 1, 0))
    _, two = group_advantages(returns(0, 1))
    assert three.tolist() == pytest.approx([1 / 3, 1 / 3, -2 / 3], abs=1e-12)
    assert two.tolist() == [-0.5, 0.5]
    _, padded = group_advantages(torch.stack([returns(1, 1, 0), returns(0, 1, NAN)]))
    assert padded[0].tolist() == three.tolist()
    assert padded[1, :2].tolist() == two.tolist()


def test_fault_20_any_arrival_order_gives_the_same() -> None:
    group = returns(0.3, 1.0, 0.0, 0.7)
    order = torch.tensor([2, 0, 3, 1])
    for kind in ("mean", "leave_one_out"):
        straight = group_baselines(group, kind)
        assert torch.allclose(group_baselines(group[order], kind), straight[order], atol=1e-15)


def test_fault_22_an_invalid_return_is_excluded_not_zero() -> None:
    group = returns(1, 0, 1, NAN)
    baselines, advantages = group_advantages(group, "leave_one_out")
    assert baselines[:3].tolist() == [0.5, 1.0, 0.5]
    assert baselines[3].isnan()
    assert advantages[3].isnan()
    mean, _ = group_advantages(group, "mean")
    assert mean[:3].tolist() == pytest.approx([2 / 3] * 3, abs=1e-15)


@pytest.mark.parametrize("group", [(1.0,), (1.0, NAN), (NAN, NAN, 0.0, NAN), (NAN, NAN), ()])
@pytest.mark.parametrize("kind", ["mean", "leave_one_out"])
def test_fault_18_a_group_of_one_is_an_error(group: tuple[float, ...], kind: str) -> None:
    with pytest.raises(ValueError, match="needs at least 2 rollouts"):
        group_baselines(returns(*group), kind)


def test_one_short_group_in_a_batch_of_groups_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 1"):
        group_baselines(torch.stack([returns(1, 0), returns(1, NAN)]), "leave_one_out")


@pytest.mark.parametrize("size", [2, 3, 8, 17])
def test_leave_one_out_is_the_scaled_mean(size: int) -> None:
    group = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    _, loo = group_advantages(group, "leave_one_out")
    _, mean = group_advantages(group, "mean")
    assert torch.allclose(loo, size / (size - 1) * mean, atol=1e-13)


@pytest.mark.parametrize("own", [1e9, -1e9, 1e-9])
def test_the_own_return_does_not_reach_its_leave_one_out_baseline_even_by_rounding(own: float) -> None:
    quiet = group_baselines(torch.tensor([0.1, 0.2, 0.7]), "leave_one_out")
    loud = group_baselines(torch.tensor([own, 0.2, 0.7]), "leave_one_out")
    assert loud[0].item() == quiet[0].item()


def test_std_scale_is_the_sample_standard_deviation_of_the_valid_returns() -> None:
    _, plain = group_advantages(returns(3, 1, 2, NAN), "mean")
    _, scaled = group_advantages(returns(3, 1, 2, NAN), "mean", "std")
    assert scaled[:3].tolist() == pytest.approx((plain[:3] / (1.0 + 1e-6)).tolist(), abs=1e-14)
    _, flat = group_advantages(returns(1, 1, 1), "mean", "std")
    assert flat.tolist() == [0, 0, 0]


def test_half_precision_returns_are_widened_and_nothing_flows_back() -> None:
    group = torch.tensor([1.0, 0.0, 0.0], dtype=torch.bfloat16, requires_grad=True)
    baselines, advantages = group_advantages(group)
    assert baselines.dtype == torch.float32
    assert baselines[0].item() == pytest.approx(1 / 3, abs=1e-7)
    assert not advantages.requires_grad


def test_unknown_names_and_infinite_returns_are_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        group_baselines(returns(1, 0), "median")
    with pytest.raises(ValueError, match="range"):
        group_advantages(returns(1, 0), "mean", "range")
    with pytest.raises(ValueError, match="infinite"):
        group_baselines(returns(1, math.inf))


def test_optimal_constant_baseline_by_hand_and_where_it_is_the_mean() -> None:
    # Two successes with |s|^2 = 1, two failures with 9.
    returns = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert optimal_constant_baseline(returns, torch.tensor([1.0, 9.0, 1.0, 9.0])) == pytest.approx(0.1)
    assert optimal_constant_baseline(torch.tensor([1.0, 0.0, 0.5]), torch.full((3,), 4.0)) == pytest.approx(0.5)
    assert optimal_constant_baseline(torch.tensor([1.0, 0.0]), torch.zeros(2)) is None


@pytest.mark.parametrize("seed", range(3))
def test_optimal_constant_baseline_leaves_least(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    returns, norms = (torch.rand(30, dtype=torch.float64, generator=generator) for _ in range(2))

    def size(b: float) -> float:
        return float(((returns - b).square() * norms).sum())

    best = optimal_constant_baseline(returns, norms)
    assert best is not None and size(best) < min(size(best - 1e-4), size(best + 1e-4))


def test_optimal_constant_baseline_refuses() -> None:
    with pytest.raises(ValueError, match=r"at least 0, got -0\.5"):
        optimal_constant_baseline(torch.tensor([1.0]), torch.tensor([-0.5]))
    with pytest.raises(ValueError, match="as the returns"):
        optimal_constant_baseline(torch.ones(2), torch.ones(3))
