"""Tether's fit and advantages: known faults, identities and bad input. Its state is tested with credit."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.numerics.baselines import group_baselines
from lecritique.numerics.evpo import evpo_uses_critic
from lecritique.numerics.gae import gae, terminal_rewards
from lecritique.numerics.tether import TetherSums, tether_advantages, tether_ema, tether_fit, tether_pairs, tether_sums

F64 = torch.float64


def group_sums(returns: list[float], values: list[float], dtype: torch.dtype = F64) -> TetherSums:
    """Sums of a group of one-token rollouts."""
    baselines = group_baselines(torch.tensor(returns, dtype=F64), "leave_one_out").tolist()
    sums = TetherSums()
    mask = torch.ones(1, dtype=torch.bool)
    for r, v, b in zip(returns, values, baselines, strict=True):
        stored = torch.tensor([v], dtype=dtype)
        advantages, _ = gae(terminal_rewards(r, mask), stored, mask, gamma=1.0, gae_lambda=1.0, value_target_lambda=1.0)
        sums = sums.merge(tether_sums(*tether_pairs(advantages, stored, b, mask)))
    return sums


def test_fault_25_a_perfect_and_an_inverted_critic() -> None:
    returns = [1.0, 0.0, 1.0, 0.0]
    assert tether_fit(group_sums(returns, returns)) == pytest.approx(1.0, abs=1e-4)
    inverted = tether_fit(group_sums(returns, [1.0 - r for r in returns]))
    assert inverted == pytest.approx(-2.0, abs=1e-4)
    assert tether_ema(0.5, inverted, decay=0.0) == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e-3, 100.0, 1e6])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_fault_25_a_critic_that_repeats_the_baseline_is_undefined(scale: float, dtype: torch.dtype) -> None:
    returns = [scale * r for r in (1.0, 0.0, 1.0, 0.3, 0.0, 0.7, 1.0)]
    loo = group_baselines(torch.tensor(returns, dtype=F64), "leave_one_out").tolist()
    sums = group_sums(returns, loo, dtype)
    assert sums.weight == 7
    assert sums.syy > 0
    assert tether_fit(sums) is None


def test_a_small_but_real_disagreement_is_fitted_at_any_reward_scale() -> None:
    returns = [1.0, 0.0, 1.0, 0.0]
    loo = group_baselines(torch.tensor(returns, dtype=F64), "leave_one_out").tolist()
    for scale in (1.0, 1e4):
        nudged = [scale * (b + 1e-4 * (r - b)) for r, b in zip(returns, loo, strict=True)]
        fit = tether_fit(group_sums([scale * r for r in returns], nudged, torch.float32), ridge=0.0)
        assert fit == pytest.approx(1e4, rel=1e-2)


def test_the_threshold_is_on_the_mean_square() -> None:
    assert tether_fit(TetherSums(weight=10.0, sxx=1e-11, sxy=1e-11, syy=1.0)) is None
    assert tether_fit(TetherSums(weight=10.0, sxx=1.1e-11, sxy=1e-11, syy=1e-11), ridge=0.0) is not None
    assert tether_fit(TetherSums()) is None
    assert tether_fit(TetherSums(weight=2.0, sxx=1.0, sxy=math.nan, syy=1.0)) is None
    assert tether_fit(TetherSums(weight=2.0, sxx=math.nan, sxy=1.0, syy=1.0)) is None


def test_scale_and_duplication_change_no_fit() -> None:
    x, y = torch.randn(2, 30, dtype=F64, generator=torch.Generator().manual_seed(0))
    once = tether_sums(x, y)
    fit = tether_fit(once, ridge=0.2)
    assert tether_fit(once.merge(once), ridge=0.2) == pytest.approx(fit, rel=1e-14)
    assert tether_fit(tether_sums(50 * x, 50 * y), ridge=0.2) == pytest.approx(fit, rel=1e-12)


def test_the_fit_minimises_the_squared_error_it_reports() -> None:
    x, y = torch.randn(2, 30, dtype=F64, generator=torch.Generator().manual_seed(1))
    sums = tether_sums(x, y)
    best = tether_fit(sums, ridge=0.0)
    assert sums.mse(best) == pytest.approx(float((y - best * x).square().mean()), abs=1e-12)
    assert sums.mse(best) < min(sums.mse(best - 0.01), sums.mse(best + 0.01))
    assert sums.mse_group == pytest.approx(float(y.square().mean()), abs=1e-12)
    assert math.isnan(TetherSums().mse(0.5))


def test_sums_merge_in_any_order_and_skip_masked_content() -> None:
    x, y = torch.randn(2, 12, dtype=F64, generator=torch.Generator().manual_seed(2))
    mask = torch.arange(12) % 3 != 0
    whole = tether_sums(x, y, mask)
    dirty = tether_sums(x.masked_fill(~mask, math.nan), y.masked_fill(~mask, 1e30), mask)
    assert dirty == whole
    parts = [tether_sums(x[i : i + 4], y[i : i + 4], mask[i : i + 4]) for i in (8, 0, 4)]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.weight == whole.weight == 8
    assert merged.sxy == pytest.approx(whole.sxy, rel=1e-13)


def test_pairs_are_value_and_return_minus_baseline_on_actions_only() -> None:
    mask = torch.tensor([False, True, False, True])
    values = torch.tensor([math.nan, 0.6, 1e6, 0.8], dtype=F64)
    advantages = torch.tensor([0.0, 0.4, 0.0, 0.2], dtype=F64)
    x, y = tether_pairs(advantages, values, 0.5, mask)
    assert x.tolist() == pytest.approx([0.1, 0.3], abs=1e-15)
    assert y.tolist() == pytest.approx([0.5, 0.5], abs=1e-15)


def test_rho_one_is_the_value_estimator_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    advantages, values = torch.randn(2, 5, 9, generator=generator)
    advantages[0], values[1] = -0.0, torch.inf
    found = tether_advantages(advantages, values, torch.rand(5, generator=generator), 1.0)
    assert torch.equal(found.view(torch.int32), advantages.view(torch.int32))


def test_rho_zero_is_leave_one_out() -> None:
    returns = torch.tensor([1.0, 0.0, 0.25], dtype=F64)
    baselines = group_baselines(returns, "leave_one_out")
    values = torch.rand(3, 6, dtype=F64, generator=torch.Generator().manual_seed(4))
    mask = torch.ones(3, 6, dtype=torch.bool)
    advantages, _ = gae(
        terminal_rewards(returns, mask), values, mask, gamma=1.0, gae_lambda=1.0, value_target_lambda=1.0
    )
    found = tether_advantages(advantages, values, baselines, 0.0)
    assert torch.allclose(found, (returns - baselines)[:, None].expand(3, 6), atol=1e-15)


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_masked_content_is_not_read_and_nothing_flows_back(rho: float) -> None:
    mask = torch.tensor([True, False])
    values = torch.tensor([0.5, math.nan], requires_grad=True)
    advantages = torch.tensor([0.5, 1e6])
    found = tether_advantages(advantages, values, 0.25, rho, action_mask_T=mask)
    assert found.tolist() == pytest.approx([0.5 + (1 - rho) * 0.25, 0.0])
    assert not found.requires_grad


def test_fault_24_returns_reach_siblings_only_through_their_baseline() -> None:
    values, mask = torch.full((3, 2), 0.4, dtype=F64), torch.ones(3, 2, dtype=torch.bool)

    def credited(first: float) -> tuple[torch.Tensor, torch.Tensor]:
        returns = torch.tensor([first, 0.0, 1.0], dtype=F64)
        loo = group_baselines(returns, "leave_one_out")
        advantages, _ = gae(
            terminal_rewards(returns, mask), values, mask, gamma=1.0, gae_lambda=1.0, value_target_lambda=1.0
        )
        return loo, tether_advantages(advantages, values, loo, 0.3)

    (loo_a, a), (loo_b, b) = credited(0.0), credited(1.0)
    shift = -(1 - 0.3) * (loo_b - loo_a)
    assert loo_a[0].item() == loo_b[0].item()
    assert torch.allclose((b - a)[1:], shift[1:, None].expand(2, 2), atol=1e-15)


def test_ema_of_a_constant_and_of_an_undefined_fit() -> None:
    rho = 0.0
    for k in range(1, 51):
        rho = tether_ema(rho, 0.8, decay=0.95)
        assert rho == pytest.approx(0.8 * (1 - 0.95**k), abs=1e-12)
    assert tether_ema(0.3, None, decay=0.95) == 0.3
    assert tether_ema(0.5, 1.7, decay=0.5) == 0.75
    assert tether_ema(0.5, 1.7, decay=0.5, clip=False) == pytest.approx(1.1)


def test_bad_constants_are_refused() -> None:
    with pytest.raises(ValueError, match="ridge"):
        tether_fit(TetherSums(), ridge=-1.0)
    with pytest.raises(ValueError, match="decay"):
        tether_ema(0.0, 0.5, decay=1.0)
    with pytest.raises(ValueError, match="rho"):
        tether_advantages(torch.zeros(2), torch.zeros(2), 0.0, math.nan)
    with pytest.raises(ValueError, match="shape"):
        tether_sums(torch.zeros(2), torch.zeros(3))


@pytest.mark.parametrize(("ev", "critic"), [(0.3, True), (1e-9, True), (0.0, False), (-0.5, False), (math.nan, False)])
def test_evpo_uses_the_critic_only_when_it_explains_something(ev: float, critic: bool) -> None:
    assert evpo_uses_critic(ev) is critic
