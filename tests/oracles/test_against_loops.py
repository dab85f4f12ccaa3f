"""Vectorised numerics equal literal loops on random ragged float64 input, to 1e-12."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from literal_loops import (
    baselines_loop,
    cross_entropy_loop,
    dppo_loop,
    explained_variance_loop,
    gae_loop,
    tether_fit_loop,
    two_hot_loop,
)

from lecritique.numerics.baselines import group_baselines
from lecritique.numerics.explained_variance import explained_variance
from lecritique.numerics.gae import gae, gae_segments
from lecritique.numerics.policy_losses import dppo_loss, reinforce_loss, response_mean, token_mean
from lecritique.numerics.tether import TetherSums, tether_advantages, tether_fit, tether_sums
from lecritique.numerics.value_losses import categorical_loss, categorical_value, two_hot


def ragged(rng: np.random.Generator, rows: int = 7, longest: int = 23) -> list[tuple[torch.Tensor, ...]]:
    """(rewards, values, mask) of random lengths and masks; per-token rewards everywhere."""
    out = []
    for _ in range(rows):
        length = int(rng.integers(1, longest))
        mask = torch.tensor(rng.random(length) < rng.choice([0.3, 0.7, 1.0]))
        out.append((torch.tensor(rng.normal(size=length)), torch.tensor(rng.normal(size=length)), mask))
    return out


def padded(rows: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    """Right-padded with NaN off the mask."""
    width = max(len(mask) for *_, mask in rows)
    rewards = torch.full((len(rows), width), math.nan, dtype=torch.float64)
    values, mask = rewards.clone(), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (r, v, m) in enumerate(rows):
        rewards[i, : len(m)], values[i, : len(m)], mask[i, : len(m)] = r, v, m
    return rewards, values, mask


@pytest.mark.parametrize("gamma", [1.0, 0.97, 0.5, 0.0])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.4, 0.0])
def test_gae_of_a_padded_batch_is_the_loop_over_each_row(gamma: float, lam: float) -> None:
    rng = np.random.default_rng(int(1000 * gamma + 10 * lam))
    rows = ragged(rng)
    bootstrap = torch.tensor(rng.normal(size=len(rows)))
    target_lam = float(rng.choice([0.0, 0.6, 1.0]))
    advantages, targets = gae(
        *padded(rows), gamma=gamma, gae_lambda=lam, value_target_lambda=target_lam, bootstrap_value=bootstrap
    )
    for i, (r, v, m) in enumerate(rows):
        lists = r.tolist(), v.tolist(), m.tolist()
        expected = gae_loop(*lists, gamma, lam, bootstrap[i].item())
        to_target = gae_loop(*lists, gamma, target_lam, bootstrap[i].item())
        assert advantages[i, : len(m)].tolist() == pytest.approx(expected, abs=1e-12)
        wanted = [a + v_t if m_t else 0.0 for a, v_t, m_t in zip(to_target, v.tolist(), m.tolist(), strict=True)]
        assert targets[i, : len(m)].tolist() == pytest.approx(wanted, abs=1e-12)
        assert advantages[i, len(m) :].eq(0).all()


@pytest.mark.parametrize("seed", range(5))
def test_gae_of_segments_is_the_loop_over_their_concatenation_or_over_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = ragged(rng, rows=4)
    rewards, values, masks = (list(column) for column in zip(*rows, strict=True))
    factors = {"gamma": 0.9, "gae_lambda": 0.8, "value_target_lambda": 0.3}
    found, _ = gae_segments(rewards, values, masks, **factors)
    flat = [[x for row in column for x in row.tolist()] for column in (rewards, values, masks)]
    assert torch.cat(found).tolist() == pytest.approx(gae_loop(*flat, 0.9, 0.8), abs=1e-12)

    found, _ = gae_segments(rewards, values, masks, semantics="independent", **factors)
    total = sum(x for x, kept in zip(flat[0], flat[2], strict=True) if kept)
    for advantages, v, m in zip(found, values, masks, strict=True):
        placed = [0.0] * len(m)
        if m.any():
            placed[int(m.nonzero().max())] = total
        assert advantages.tolist() == pytest.approx(gae_loop(placed, v.tolist(), m.tolist(), 0.9, 0.8), abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["mean", "leave_one_out"])
def test_baselines_are_the_loop(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    returns = rng.normal(size=rng.integers(4, 9)) * 10.0 ** rng.integers(-3, 4)
    returns[rng.integers(0, 2, len(returns)) * np.arange(len(returns)) > 2] = np.nan
    found = group_baselines(torch.tensor(returns), kind).tolist()
    assert found == pytest.approx(baselines_loop(returns.tolist(), kind == "leave_one_out"), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("seed", range(5))
def test_tether_fit_and_advantages_are_the_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [[tuple(pair) for pair in rng.normal(size=(rng.integers(0, 9), 2)).tolist()] for _ in range(6)]
    rows.append([(0.5, 0.25)])
    sums = TetherSums()
    for row in rows:
        pairs = torch.tensor(row, dtype=torch.float64).reshape(-1, 2)
        sums = sums.merge(tether_sums(pairs[:, 0], pairs[:, 1]))
    assert sums.weight == sum(len(row) for row in rows)
    for ridge in (0.0, 1e-6, 0.3):
        assert tether_fit(sums, ridge=ridge) == pytest.approx(tether_fit_loop(rows, ridge), rel=1e-12)

    advantages, values = torch.tensor(rng.normal(size=(3, 5))), torch.tensor(rng.normal(size=(3, 5)))
    baseline, rho = torch.tensor(rng.normal(size=3)), float(rng.random())
    found = tether_advantages(advantages, values, baseline, rho)
    for i in range(3):
        for t in range(5):
            a, v, b = advantages[i, t].item(), values[i, t].item(), baseline[i].item()
            assert found[i, t].item() == pytest.approx((v + a) - ((1 - rho) * b + rho * v), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_policy_losses_are_the_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lp, lq = torch.tensor(-rng.exponential(size=(2, 40)))
    advantages = torch.tensor(rng.normal(size=40).round(1))
    found = dppo_loss(lp, lq, advantages, mask_low=0.1, mask_high=0.15, kl_coef=0.02).loss_N.tolist()
    triples = list(zip(lp.tolist(), lq.tolist(), advantages.tolist(), strict=True))
    assert found == pytest.approx([dppo_loop(*triple, 0.1, 0.15, 0.02) for triple in triples], abs=1e-12)
    plain = reinforce_loss(lp, lq, advantages, on_policy=False).loss_N.tolist()
    assert plain == pytest.approx([-a * math.exp(p) / math.exp(q) for p, q, a in triples], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_reductions_are_the_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, size=5)
    width = int(lengths.max()) + 2
    loss = torch.full((5, width), math.nan, dtype=torch.float64)
    mask = torch.zeros(5, width, dtype=torch.bool)
    losses = [rng.normal(size=n).tolist() for n in lengths]
    for i, row in enumerate(losses):
        loss[i, 1 : 1 + len(row)], mask[i, 1 : 1 + len(row)] = torch.tensor(row, dtype=torch.float64), True
    everything = [x for row in losses for x in row]
    by_token = sum(everything) / len(everything)
    by_response = sum(sum(row) / len(row) for row in losses) / len(losses)
    counts = torch.tensor(lengths)[:, None].expand(5, width)
    assert token_mean(loss, mask, action_tokens=len(everything)).item() == pytest.approx(by_token, abs=1e-12)
    found = response_mean(loss, mask, response_tokens_N=counts, responses=5)
    assert found.item() == pytest.approx(by_response, abs=1e-12)


@pytest.mark.parametrize(("low", "high", "atoms"), [(0.0, 1.0, 2), (-1.0, 1.0, 5), (-3.0, 7.0, 51)])
def test_value_distribution_is_the_loop(low: float, high: float, atoms: int) -> None:
    rng = np.random.default_rng(atoms)
    targets = rng.uniform(low, high, size=30)
    targets[:2] = low, high
    logits = rng.normal(size=(30, atoms)) * 3
    weights = [two_hot_loop(g, low, high, atoms) for g in targets.tolist()]
    found = two_hot(torch.tensor(targets), low=low, high=high, atoms=atoms)
    assert np.allclose(found.numpy(), weights, atol=1e-12)
    losses = categorical_loss(torch.tensor(logits), torch.tensor(targets), low=low, high=high)
    expected = [cross_entropy_loop(row, w) for row, w in zip(logits.tolist(), weights, strict=True)]
    assert losses.tolist() == pytest.approx(expected, abs=1e-11)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    values = [sum(p * (low + k * (high - low) / (atoms - 1)) for k, p in enumerate(row)) for row in shares.tolist()]
    assert categorical_value(torch.tensor(logits), low=low, high=high).tolist() == pytest.approx(values, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_explained_variance_is_the_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, targets = rng.normal(size=(2, 50))
    mask = rng.random(50) < 0.6
    found = explained_variance(torch.tensor(values), torch.tensor(targets), torch.tensor(mask))
    assert found == pytest.approx(explained_variance_loop(values[mask].tolist(), targets[mask].tolist()), abs=1e-12)
