"""Properties of surrogate, fusion, whitening, distillation and the adaptive lambda on generated input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lecritique.core.moments import Moments
from lecritique.numerics.adaptive_lambda import adaptive_lambda, critic_error_share, within_group_variance
from lecritique.numerics.dapo import overlong_penalty, zero_variance
from lecritique.numerics.distillation import divergence_of_logits
from lecritique.numerics.fusion import fused_advantages, rlsd_advantages
from lecritique.numerics.gae import lambda_for_lengths
from lecritique.numerics.policy_losses import ppo_loss, rollout_weight
from lecritique.numerics.tether import score_norm_optimum, tether_bucket, tether_buckets
from lecritique.numerics.value_losses import clipped_mse, hl_gauss, mse_loss
from lecritique.numerics.whitening import advantage_moments, whiten

F64 = torch.float64
unit = st.floats(0.0, 1.0)
number = st.floats(-10.0, 10.0)
positive = st.floats(1e-3, 1e3)
fast = settings(max_examples=80, deadline=None)


def columns(count: int, elements: st.SearchStrategy[float] = number) -> st.SearchStrategy[torch.Tensor]:
    """[count, N] with N from 1 to 9."""
    return st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(elements, min_size=n, max_size=n), min_size=count, max_size=count).map(
            lambda rows: torch.tensor(rows, dtype=F64)
        )
    )


@fast
@given(columns(2), unit, st.floats(1e-3, 1.0), st.floats(0.0, 0.9), st.booleans())
def test_fusion_stays_within_its_bound_and_keeps_signs(
    rows: torch.Tensor, eps_w: float, tau: float, delta: float, masked: bool
) -> None:
    advantages, gap = rows
    fused = fused_advantages(advantages, gap, eps_w=eps_w, tau=tau, delta=delta, masked=masked)
    size = advantages.abs()
    assert (fused.abs() <= size * (1 + eps_w) * (1 + 1e-15)).all()
    assert (fused.abs() >= size * (1 - eps_w) * (1 - 1e-15)).all()
    assert (fused * advantages >= 0).all()
    if masked:
        assert torch.equal(fused[advantages <= 0], advantages[advantages <= 0])


@fast
@given(columns(2), unit, unit)
def test_rlsd_stays_within_its_bound_and_is_odd(rows: torch.Tensor, mix: float, eps_w: float) -> None:
    advantages, gap = rows
    found = rlsd_advantages(advantages, gap, mix=mix, eps_w=eps_w)
    size = advantages.abs()
    assert (found.abs() <= size * (1 + mix * eps_w) * (1 + 1e-14)).all()
    assert (found.abs() >= size * (1 - mix * eps_w) * (1 - 1e-14) - 1e-300).all()
    assert torch.equal(rlsd_advantages(-advantages, -gap, mix=mix, eps_w=eps_w), -found)


@fast
@given(columns(3), unit, st.floats(0.0, 3.0), positive)
def test_the_surrogate_is_a_lower_bound_and_odd_gradients_vanish_where_clipped(
    rows: torch.Tensor, low: float, high: float, factor: float
) -> None:
    lp, old, advantages = rows[0] / 5, rows[1] / 5, rows[2]
    leaf = lp.clone().requires_grad_()
    found = ppo_loss(leaf, old, advantages, eps_low=low, eps_high=high)
    assert (found.loss_N >= -(lp - old).exp() * advantages - 1e-9).all()
    found.loss_N.sum().backward()
    assert leaf.grad[~found.kept_N].eq(0).all()
    scaled = ppo_loss(lp, old, factor * advantages, eps_low=low, eps_high=high)
    assert torch.allclose(scaled.loss_N, factor * found.loss_N.detach(), rtol=1e-12)
    wider = ppo_loss(lp, old, advantages, eps_low=1.0, eps_high=high + 1.0)
    assert (wider.kept_N | ~found.kept_N).all()
    assert (wider.loss_N <= found.loss_N.detach() + 1e-12).all()


@fast
@given(columns(2), positive)
def test_the_rollout_weight_lies_between_zero_and_its_cap(rows: torch.Tensor, cap: float) -> None:
    weight = rollout_weight(*rows, cap)
    assert (weight >= 0).all()
    assert (weight <= cap).all()
    below = rows[0] <= rows[1] + math.log(cap) - 1e-9
    assert torch.allclose(weight[below], (rows[0] - rows[1]).exp()[below])


@fast
@given(columns(1), number, positive, st.integers(0, 9))
def test_whitening_forgets_shift_and_scale_and_merges(rows: torch.Tensor, shift: float, scale: float, cut: int) -> None:
    advantages = rows[0]
    mask = torch.ones_like(advantages, dtype=torch.bool)
    assume(float(advantages.var(correction=0)) > 1e-3)
    found = whiten(advantages, mask)
    # A scale changes nothing but the weight of the floor inside the root.
    variance = advantages.var(correction=0)
    floor = ((variance + 1e-8) / (variance + 1e-8 / scale**2)).sqrt()
    assert torch.allclose(whiten(scale * advantages + shift, mask), floor * found, atol=1e-6)
    whole = Moments()
    for part in (slice(0, cut), slice(cut, None)):
        whole = whole.merge(advantage_moments(advantages[part], mask[part]))
    assert torch.allclose(whiten(advantages, mask, whole), found, atol=1e-9)
    assert (found[advantages.argsort()].diff() >= 0).all()


@fast
@given(columns(3), st.floats(0.0, 5.0))
def test_clipped_mse_is_never_below_mse(rows: torch.Tensor, eps_v: float) -> None:
    values, old, targets = rows
    found, plain = clipped_mse(values, old, targets, eps_v=eps_v), mse_loss(values, targets)
    assert (found.loss_N >= plain).all()
    assert torch.equal(found.loss_N > plain, found.clipped_N)
    assert torch.equal(clipped_mse(values, values, targets, eps_v=eps_v).loss_N, plain)


@fast
@given(columns(1, unit), st.integers(2, 40), st.floats(0.05, 3.0))
def test_hl_gauss_is_a_distribution_that_follows_its_target_and_mirrors(
    rows: torch.Tensor, atoms: int, sigma: float
) -> None:
    targets = rows[0].sort().values
    weights = hl_gauss(targets, low=0.0, high=1.0, atoms=atoms, sigma_bins=sigma)
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones_like(targets), atol=1e-12)
    means = weights @ torch.linspace(0, 1, atoms, dtype=F64)
    assert (means.diff() >= -1e-12).all()
    mirrored = hl_gauss(1 - targets, low=0.0, high=1.0, atoms=atoms, sigma_bins=sigma)
    assert torch.allclose(mirrored.flip(-1), weights, atol=1e-9)


@fast
@given(columns(2), number, number, st.sampled_from(["forward_kl", "reverse_kl", "jsd"]))
def test_divergences_are_not_negative_and_forget_shifts_of_logits(
    rows: torch.Tensor, one: float, other: float, kind: str
) -> None:
    found = divergence_of_logits(*rows, kind=kind)
    assert found.item() >= -1e-12
    shifted = divergence_of_logits(rows[0] + one, rows[1] + other, kind=kind)
    assert shifted.item() == pytest.approx(found.item(), abs=1e-10)
    if kind == "jsd":
        assert found.item() <= math.log(2) + 1e-12


@fast
@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_every_position_has_a_bucket_and_buckets_ascend(horizon: int, position: int) -> None:
    buckets = tether_buckets(horizon)
    here, there = tether_bucket(torch.tensor([position, position + 1]), buckets).tolist()
    assert 0 <= here <= there <= min(here + 1, buckets - 1)


@fast
@given(columns(3), positive)
def test_the_score_norm_optimum_scales_with_y_and_not_with_reward_units(rows: torch.Tensor, factor: float) -> None:
    x, y, norms = rows[0], rows[1], rows[2].abs()
    best = score_norm_optimum(x, y, norms)
    assume(best is not None and float((norms * x * x).sum() / norms.sum()) > 1e-4)
    assert score_norm_optimum(factor * x, factor * y, norms) == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert score_norm_optimum(x, factor * y, norms) == pytest.approx(factor * best, rel=1e-9, abs=1e-12)


@fast
@given(st.integers(0, 10**5), st.floats(0.01, 1.0))
def test_length_adaptive_lambda_rises_with_length(length: int, alpha: float) -> None:
    here, longer = lambda_for_lengths([length, length + 1], alpha).tolist()
    assert 0.0 <= here <= longer < 1.0


@fast
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 500))
def test_the_overlong_penalty_falls_with_length(cache: int, room: int, length: int) -> None:
    limit = cache + room
    here, longer = overlong_penalty([length, length + 1], limit, cache).tolist()
    assert -1.0 <= longer <= here <= 0.0
    assert (here == 0.0) == (length <= limit - cache)
    assert (here == -1.0) == (length >= limit)


@fast
@given(columns(1))
def test_a_group_of_zero_variance_has_no_variance_within(rows: torch.Tensor) -> None:
    same = bool(zero_variance(rows[0]))
    assert same == (len(set(rows[0].tolist())) == 1)
    if same:
        spread = within_group_variance(rows).value()
        assert math.isnan(spread) if rows.shape[1] == 1 else spread == pytest.approx(0.0, abs=1e-20)


@fast
@given(unit, unit, st.floats(1.0, 1e5), st.floats(0.1, 10.0))
def test_adaptive_lambda_rises_with_the_critics_error_with_length_and_with_the_weight_of_bias(
    one: float, other: float, length: float, weight: float
) -> None:
    low, high = sorted((one, other))
    lam = adaptive_lambda(low, length, bias_weight=weight)
    assert 0.0 <= lam <= 1.0
    rounding = 1e-15
    assert lam <= adaptive_lambda(high, length, bias_weight=weight) + rounding
    assert lam <= adaptive_lambda(low, 2 * length, bias_weight=weight) + rounding
    assert lam <= adaptive_lambda(low, length, bias_weight=2 * weight) + rounding
    assert adaptive_lambda(1.0, length, bias_weight=weight) == 1.0
    assert adaptive_lambda(0.0, length) == 0.0
    assert adaptive_lambda(1.0, length) == 1.0


@fast
@given(positive, positive, positive)
def test_the_error_share_rises_with_the_error_and_falls_with_the_noise(mse: float, more: float, noise: float) -> None:
    share = critic_error_share(mse, noise)
    assert 0.0 <= share <= critic_error_share(mse + more, noise) <= 1.0
    assert critic_error_share(mse, noise + more) <= share
    assert critic_error_share(mse, 0.0) == 1.0
