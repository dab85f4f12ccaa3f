"""Lambdas per row, the length-adaptive one, and the recursion in blocks."""

from __future__ import annotations

import math

import pytest
import torch

import lecritique.numerics.gae as module
from lecritique.numerics.gae import gae, lambda_for_lengths, terminal_rewards

F64 = torch.float64


def batch(rows: int, length: int, dtype: torch.dtype = F64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    rewards, values = torch.randn(2, rows, length, dtype=dtype, generator=generator)
    return rewards, values, torch.rand(rows, length, generator=generator) < 0.8


def test_length_adaptive_lambda_by_hand() -> None:
    found = lambda_for_lengths([0, 1, 19, 20, 40, 200, 8192])
    assert found.tolist() == pytest.approx([0, 0, 0, 0, 0.5, 0.9, 1 - 1 / 409.6], abs=1e-15)
    assert lambda_for_lengths(torch.tensor([10]), alpha=1.0).item() == pytest.approx(0.9)
    # How far credit reaches is the share alpha of the response.
    assert (1 / (1 - lambda_for_lengths([1000, 3000], alpha=0.1))).tolist() == pytest.approx([100.0, 300.0])
    for arguments, match in ((([-1],), "lengths"), (([1], 0.0), "alpha"), (([1], math.nan), "alpha")):
        with pytest.raises(ValueError, match=match):
            lambda_for_lengths(*arguments)


@pytest.mark.parametrize("length", [1, 5, 64, 65, 200])
def test_a_constant_lambda_per_row_is_the_number_bit_for_bit(length: int) -> None:
    inputs = batch(6, length)
    scalar = gae(*inputs, gamma=0.99, gae_lambda=0.9, value_target_lambda=0.3)
    row = torch.full((6,), 0.9), torch.full((6,), 0.3, dtype=F64)
    per_row = gae(*inputs, gamma=0.99, gae_lambda=row[0].double().fill_(0.9), value_target_lambda=row[1])
    for expected, found in zip(scalar, per_row, strict=True):
        assert torch.equal(expected, found)


def test_each_row_is_credited_with_its_own_lambda() -> None:
    rewards, values, mask = batch(4, 100)
    lambdas = lambda_for_lengths(mask.sum(-1) * torch.tensor([0, 1, 5, 40]))
    targets = torch.tensor([1.0, 0.5, 0.0, 0.25], dtype=F64)
    together = gae(rewards, values, mask, gamma=0.98, gae_lambda=lambdas, value_target_lambda=targets)
    for i in range(4):
        factors = {"gae_lambda": lambdas[i].item(), "value_target_lambda": targets[i].item()}
        alone = gae(rewards[i], values[i], mask[i], gamma=0.98, **factors)
        assert torch.equal(together[0][i], alone[0])
        assert torch.equal(together[1][i], alone[1])


def test_lambdas_of_another_shape_or_range_are_refused() -> None:
    inputs = batch(4, 3)
    for name in ("gae_lambda", "value_target_lambda"):
        for bad, match in ((torch.ones(3), "shape"), (torch.tensor([0.5, 0.5, 1.5, 0.5]), "in \\[0, 1\\]")):
            with pytest.raises(ValueError, match=f"{name} .*{match}"):
                gae(*inputs, **{"gamma": 1.0, "gae_lambda": 1.0, "value_target_lambda": 1.0} | {name: bad})


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 500, 4096, 4097, 9000])
@pytest.mark.parametrize("lam", [1.0, 0.9998881543592094, 0.95, 0.0])
def test_blocks_equal_one_long_recursion(length: int, lam: float, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = batch(3, length)
    factors = {"gamma": 0.999, "gae_lambda": lam, "value_target_lambda": 1.0, "bootstrap_value": 0.7}
    blocks = gae(*inputs, **factors)
    monkeypatch.setattr(module, "_BLOCK_TOKENS", 10**9)
    for expected, found in zip(gae(*inputs, **factors), blocks, strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_the_number_of_rows_at_once_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = batch(7, 150)
    factors = {"gamma": 0.99, "gae_lambda": torch.rand(7, dtype=F64), "value_target_lambda": 0.7}
    bootstrap = torch.rand(7, dtype=F64)
    whole = gae(*inputs, bootstrap_value=bootstrap, **factors)
    for tokens in (1, 150, 450):
        monkeypatch.setattr(module, "_CACHED_TOKENS", tokens)
        for expected, found in zip(whole, gae(*inputs, bootstrap_value=bootstrap, **factors), strict=True):
            assert torch.equal(expected, found)


@pytest.mark.parametrize("front", [1, 100, 4000, 9000])
def test_padding_in_front_changes_no_bit_of_a_long_row(front: int) -> None:
    rewards, values, _ = batch(2, 300)
    mask = torch.ones(2, 300, dtype=torch.bool)
    factors = {"gamma": 0.999, "gae_lambda": 0.97, "value_target_lambda": 1.0, "bootstrap_value": 0.3}
    alone = gae(rewards, values, mask, **factors)
    junk = torch.full((2, front), math.nan, dtype=F64)
    longer = [
        torch.cat([junk.to(c.dtype) if c.dtype == F64 else junk.isfinite(), c], -1) for c in (rewards, values, mask)
    ]
    for expected, found in zip(alone, gae(*longer, **factors), strict=True):
        assert torch.equal(found[:, front:], expected)
    # Action tokens in front change nothing behind them either.
    ahead = [torch.cat([c[:, :1].expand(2, front), c], -1) for c in (rewards, values, mask)]
    for expected, found in zip(alone, gae(*ahead, **factors), strict=True):
        assert torch.equal(found[:, front:], expected)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_long_monte_carlo_is_return_minus_value_to_the_last_bit(dtype: torch.dtype) -> None:
    _, values, mask = batch(4, 3000, dtype)
    returns = torch.tensor([1.0, 0.1, -0.3, 0.0], dtype=dtype)
    factors = {"gamma": 1.0, "gae_lambda": 1.0, "value_target_lambda": 1.0}
    advantages, targets = gae(terminal_rewards(returns, mask), values, mask, **factors)
    assert torch.equal(advantages, torch.where(mask, returns[:, None] - values, 0))
    assert torch.equal(targets, torch.where(mask, returns[:, None].expand_as(values), 0))


def test_a_nan_reaches_the_tokens_before_it_and_none_behind() -> None:
    rewards, values, _ = batch(1, 200)
    values[0, 100] = math.nan
    mask = torch.ones(1, 200, dtype=torch.bool)
    advantages, _ = gae(rewards, values, mask, gamma=1.0, gae_lambda=0.9, value_target_lambda=0.9)
    assert advantages[0, :101].isnan().all()
    assert advantages[0, 101:].isfinite().all()
