"""Surrogate, fusion, distillation and histogram numerics equal literal loops on random float64 input, to 1e-12."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal_loops import cross_entropy_loop, gae_loop
from literal_modulation import (
    bucket_fit_loop,
    clipped_mse_loop,
    divergence_loop,
    hl_gauss_loop,
    ppo_loop,
    rlsd_loop,
    vaspo_loop,
    whiten_loop,
)

from lecritique.numerics.distillation import opsd_divergence
from lecritique.numerics.fusion import fused_advantages, rlsd_advantages, teacher_gap
from lecritique.numerics.gae import gae, lambda_for_lengths
from lecritique.numerics.policy_losses import ppo_loss, rollout_weight
from lecritique.numerics.tether import tether_bucket_sums, tether_fit
from lecritique.numerics.value_losses import clipped_mse, hl_gauss, hl_gauss_loss
from lecritique.numerics.whitening import whiten


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("low", "high", "cap"), [(0.2, 0.2, 2.0), (0.2, 0.28, 1.1)])
def test_the_surrogate_is_the_loop(seed: int, low: float, high: float, cap: float) -> None:
    rng = np.random.default_rng(seed)
    old = -rng.exponential(size=60)
    lp, lq = old + rng.normal(size=60) * 0.3, old + rng.normal(size=60) * 0.5
    advantages = rng.normal(size=60).round(1)
    columns = [torch.tensor(c) for c in (lp, old, lq, advantages)]
    weight = rollout_weight(columns[1], columns[2], cap)
    found = ppo_loss(columns[0], columns[1], columns[3], eps_low=low, eps_high=high, rollout_weight_N=weight)
    expected = [ppo_loop(*row, low, high, cap) for row in zip(lp, old, lq, advantages, strict=True)]
    assert found.loss_N.tolist() == pytest.approx(expected, abs=1e-12)
    assert 0 < (~found.kept_N).sum() < 40


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("masked", [True, False])
def test_modulation_is_the_loop(seed: int, masked: bool) -> None:
    rng = np.random.default_rng(seed)
    advantages = rng.normal(size=80)
    student = -rng.exponential(size=80)
    teacher = student + rng.normal(size=80) * 10.0 ** rng.integers(-5, 1, size=80)
    gap = teacher_gap(torch.tensor(teacher), torch.tensor(student))
    gaps = (teacher - student).tolist()
    constants = {"eps_w": 0.3, "tau": 0.05, "delta": 0.1, "masked": masked}
    found = fused_advantages(torch.tensor(advantages), gap, **constants)
    expected = [vaspo_loop(a, d, **constants) for a, d in zip(advantages.tolist(), gaps, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    white = fused_advantages(torch.tensor(advantages), gap, whitened=True, **constants)
    assert white.tolist() == pytest.approx(whiten_loop(expected), abs=1e-11)
    found = rlsd_advantages(torch.tensor(advantages), gap, mix=0.35, eps_w=0.25)
    expected = [rlsd_loop(a, d, 0.25, 0.35) for a, d in zip(advantages.tolist(), gaps, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    keep = rng.random(80) < 0.5
    found = whiten(torch.tensor(advantages), torch.tensor(keep))[torch.tensor(keep)]
    assert found.tolist() == pytest.approx(whiten_loop(advantages[keep].tolist()), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_value_losses_are_the_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, old, targets = rng.normal(size=(3, 60))
    found = clipped_mse(*(torch.tensor(c) for c in (values, old, targets)), eps_v=0.4)
    expected = [clipped_mse_loop(*row, 0.4) for row in zip(values, old, targets, strict=True)]
    assert found.loss_N.tolist() == pytest.approx([loss for loss, _ in expected], abs=1e-12)
    assert found.clipped_N.tolist() == [clipped for _, clipped in expected]
    assert 0 < found.clipped_N.sum() < 60

    low, high, atoms = -1.5, 2.5, int(rng.integers(2, 30))
    inside, logits = rng.uniform(low, high, size=20), rng.normal(size=(20, atoms))
    weights = [hl_gauss_loop(g, low, high, atoms, 0.75) for g in inside]
    assert np.allclose(hl_gauss(torch.tensor(inside), low=low, high=high, atoms=atoms).numpy(), weights, atol=1e-12)
    losses = hl_gauss_loss(torch.tensor(logits), torch.tensor(inside), low=low, high=high)
    expected_losses = [cross_entropy_loop(row, w) for row, w in zip(logits.tolist(), weights, strict=True)]
    assert losses.tolist() == pytest.approx(expected_losses, abs=1e-11)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
@pytest.mark.parametrize("seed", range(3))
def test_divergences_are_the_loop(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    student, teacher = rng.normal(size=(2, 9, 5))
    student_head, teacher_head = rng.normal(size=(2, 17, 5))
    settings = {"kind": kind, "beta": 0.3}
    tensors = [torch.tensor(x) for x in (student, student_head, teacher, teacher_head)]
    found = opsd_divergence(*tensors, temperature=1.3, chunk_tokens=4, **settings)
    logits = [((s @ h.T) / 1.3).tolist() for s, h in ((student, student_head), (teacher, teacher_head))]
    expected = [divergence_loop(a, b, **settings) for a, b in zip(*logits, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_bucketed_fits_are_the_loop() -> None:
    rng = np.random.default_rng(0)
    rollouts = [rng.normal(size=(int(n), 2)) for n in (10, 1500, 2600, 4000)]
    for buckets in (1, 2, 3):
        for bucket in range(buckets):
            merged = None
            for pairs in rollouts:
                sums = tether_bucket_sums(torch.tensor(pairs[:, 0]), torch.tensor(pairs[:, 1]), buckets)[bucket]
                merged = sums if merged is None else merged.merge(sums)
            expected = bucket_fit_loop([p.tolist() for p in rollouts], bucket, buckets, 1e-3)
            assert tether_fit(merged, ridge=1e-3) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_long_gae_with_length_adaptive_lambdas_is_the_loop(gamma: float) -> None:
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=(2, 4, 700))
    mask = rng.random((4, 700)) < np.array([[0.9], [0.5], [0.05], [1.0]])
    lambdas = lambda_for_lengths(mask.sum(-1).tolist())
    found, _ = gae(
        torch.tensor(rewards),
        torch.tensor(values),
        torch.tensor(mask),
        gamma=gamma,
        gae_lambda=lambdas,
        value_target_lambda=1.0,
    )
    for i in range(4):
        lam = max(0.0, 1.0 - 1.0 / (0.05 * mask[i].sum()))
        expected = gae_loop(rewards[i].tolist(), values[i].tolist(), mask[i].tolist(), gamma, lam)
        assert found[i].tolist() == pytest.approx(expected, abs=1e-12)
