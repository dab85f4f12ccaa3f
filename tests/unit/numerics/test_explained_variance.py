"""Explained variance: pooling, bias beside it, undefined cases."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.numerics.explained_variance import explained_variance, value_fit

FIRST = torch.tensor([0.8, 0.3]), torch.tensor([1.0, 0.0])
SECOND = torch.tensor([0.6, 0.9, 0.5, 0.6]), torch.tensor([1.0, 1.0, 1.0, 0.0])


def test_fault_13_micro_batches_are_pooled_not_averaged() -> None:
    pooled = value_fit(*FIRST).merge(value_fit(*SECOND))
    assert pooled.value() == pytest.approx(0.32875, abs=1e-7)
    averaged = (explained_variance(*FIRST) + explained_variance(*SECOND)) / 2
    assert abs(averaged - 0.32875) > 0.01
    whole = value_fit(torch.cat([FIRST[0], SECOND[0]]), torch.cat([FIRST[1], SECOND[1]]))
    assert pooled.value() == pytest.approx(whole.value(), abs=1e-12)
    assert pooled.bias == pytest.approx(whole.bias, abs=1e-12)
    assert pooled.mse == pytest.approx(whole.mse, abs=1e-12)


def test_fault_13_a_constant_offset_is_seen_beside_an_ev_of_one() -> None:
    targets = torch.tensor([0.0, 1.0, 1.0])
    fit = value_fit(targets + 5, targets)
    assert fit.value() == pytest.approx(1.0, abs=1e-12)
    assert fit.bias == pytest.approx(5.0)
    assert fit.mse == pytest.approx(25.0)


def test_ev_is_one_for_the_target_zero_for_a_constant_and_negative_below() -> None:
    targets = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(torch.full((4,), 0.3), targets) == pytest.approx(0.0, abs=1e-6)
    assert explained_variance(1 - targets, targets) == pytest.approx(-3.0)


def test_ev_without_target_variance_is_undefined() -> None:
    assert math.isnan(explained_variance(torch.tensor([0.1, 0.7]), torch.ones(2)))
    assert math.isnan(explained_variance(torch.zeros(0), torch.zeros(0)))


@pytest.mark.parametrize("junk", [math.nan, 1e6])
def test_fault_14_masked_content_changes_no_bit(junk: float) -> None:
    values, targets = SECOND[0].clone(), SECOND[1].clone()
    mask = torch.tensor([True, True, False, True])
    clean = value_fit(values, targets, mask)
    values[2], targets[2] = junk, junk
    assert value_fit(values, targets, mask) == clean


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="targets"):
        value_fit(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="boolean"):
        value_fit(torch.zeros(2), torch.zeros(2), torch.ones(2))
