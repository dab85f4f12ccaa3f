"""Teacher modulation (VASPO, RLSD) and whitening: known faults, bounds, identities and bad input."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.core.moments import Moments
from lecritique.numerics.baselines import group_advantages
from lecritique.numerics.fusion import (
    fused_advantages,
    fusion_gate,
    fusion_weight,
    rlsd_advantages,
    rlsd_mix,
    teacher_gap,
)
from lecritique.numerics.whitening import advantage_moments, whiten

F64 = torch.float64


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int64)


@pytest.mark.parametrize(
    ("advantage", "gap", "expected"),
    [
        (0.5, 0.4, 0.6),
        (0.5, -1.5, 0.4),
        (0.5, -0.005, 0.4975062396),
        (0.5, -0.0003, 0.5),
        (0.5, -0.0005, 0.4997500625),
        (-0.5, 0.4, -0.5),
        (-0.5, -1.5, -0.5),
        (-0.5, 0.0, -0.5),
    ],
)
def test_fault_33_vaspo_by_hand(advantage: float, gap: float, expected: float) -> None:
    assert fused_advantages(tensor(advantage), tensor(gap)).item() == pytest.approx(expected, abs=1e-10)


def test_fault_33_the_gate_opens_just_above_four_ten_thousandths() -> None:
    edge = 0.02 * math.atanh(0.02)
    assert edge == pytest.approx(4.0e-4, abs=1e-6)
    gaps = tensor(edge * 0.999, edge * 1.001, -edge * 0.999, -edge * 1.001)
    assert fusion_gate(torch.ones(4, dtype=F64), gaps).tolist() == [False, True, False, True]
    assert not fusion_gate(tensor(0.0, -1.0), tensor(1.0, 1.0)).any()
    # Strictly: |tanh| equal to delta stays shut.
    assert fusion_gate(tensor(1.0), tensor(0.3), tau=0.3, delta=math.tanh(1.0)).item() is False


def test_the_gap_is_teacher_minus_student_and_nothing_flows_back() -> None:
    teacher, student = tensor(-1.0, -2.0).requires_grad_(), tensor(-1.5, -1.0).requires_grad_()
    gap = teacher_gap(teacher, student)
    assert gap.tolist() == [0.5, -1.0]
    assert not gap.requires_grad
    assert not fused_advantages(student, teacher).requires_grad
    assert teacher_gap(student, student).tolist() == [0.0, 0.0]
    masked = teacher_gap(tensor(math.nan, 0.0), student, action_mask_N=torch.tensor([False, True]))
    assert masked.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("masked", [True, False])
def test_without_width_or_gap_nothing_is_modulated_to_the_last_bit(masked: bool) -> None:
    advantages, gap = normal(50), 0.3 * normal(50, seed=1)
    advantages[3], advantages[4] = 0.0, -0.0
    assert torch.equal(bits(fused_advantages(advantages, gap, eps_w=0.0, masked=masked)), bits(advantages))
    assert torch.equal(bits(fused_advantages(advantages, torch.zeros(50, dtype=F64), masked=masked)), bits(advantages))
    assert torch.equal(bits(rlsd_advantages(advantages, gap, mix=0.0)), bits(advantages))
    assert torch.equal(bits(rlsd_advantages(advantages, gap, mix=0.5, eps_w=0.0)), bits(advantages))
    assert torch.equal(bits(rlsd_advantages(advantages, 0.0 * gap, mix=0.5)), bits(advantages))


def test_without_the_mask_bad_tokens_are_modulated_too() -> None:
    found = fused_advantages(tensor(-0.5, -0.5, 0.5), tensor(0.4, -1.5, 0.0001), masked=False)
    assert found.tolist() == pytest.approx([-0.6, -0.4, 0.5 * math.exp(0.0001)], abs=1e-12)


def test_weights_are_clipped_ratios() -> None:
    found = fusion_weight(tensor(-math.inf, -0.1, 0.0, 0.1, math.inf), eps_w=0.2).tolist()
    assert found == pytest.approx([0.8, math.exp(-0.1), 1.0, math.exp(0.1), 1.2])


def test_whitening_comes_after_the_sign_test() -> None:
    # All positive: whitening first would make half of them negative and shut their gates.
    advantages, gap = tensor(0.1, 0.2, 0.8, 0.9), tensor(0.4, 0.4, 0.4, 0.4)
    found = fused_advantages(advantages, gap, whitened=True)
    expected = whiten(1.2 * advantages, torch.ones(4, dtype=torch.bool))
    assert torch.allclose(found, expected, atol=1e-14)
    mask = torch.tensor([True, True, True, False])
    masked = fused_advantages(advantages, gap, whitened=True, action_mask_N=mask)
    assert torch.allclose(masked[:3], whiten(1.2 * advantages[:3], mask[:3]), atol=1e-14)
    assert masked[3].item() == 0.0


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e6])
def test_masked_content_is_not_read(junk: float) -> None:
    mask = torch.arange(9) % 3 != 0
    advantages, gap = normal(9), 0.3 * normal(9, seed=1)
    for function in (
        lambda a, d: fused_advantages(a, d, action_mask_N=mask),
        lambda a, d: fused_advantages(a, d, masked=False, whitened=True, action_mask_N=mask),
        lambda a, d: rlsd_advantages(a, d, mix=0.4, action_mask_N=mask),
        lambda a, d: whiten(a, mask),
    ):
        clean = function(advantages, gap)
        assert torch.equal(clean, function(advantages.masked_fill(~mask, junk), gap.masked_fill(~mask, junk)))
        assert clean[~mask].eq(0).all()


def test_rlsd_by_hand() -> None:
    found = rlsd_advantages(tensor(1.0, 1.0, -1.0, -1.0), tensor(0.5, -0.1, 0.5, -0.1), mix=0.5)
    expected = [0.5 + 0.5 * 1.2, 0.5 + 0.5 * math.exp(-0.1), -(0.5 + 0.5 * 0.8), -(0.5 + 0.5 * math.exp(0.1))]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_rlsd_without_mix_is_the_scaled_group_advantage() -> None:
    _, advantages_K = group_advantages(tensor(1.0, 0.0, 0.25), "mean", scale="std")
    spread = advantages_K[:, None].expand(3, 4)
    assert torch.equal(rlsd_advantages(spread, normal(3, 4), mix=rlsd_mix(50)), spread)


def test_rlsd_mix_falls_in_a_line_and_stays_at_zero() -> None:
    assert [rlsd_mix(step) for step in (0, 10, 25, 49, 50, 1000)] == pytest.approx([0.5, 0.4, 0.25, 0.01, 0.0, 0.0])
    assert rlsd_mix(3, start=0.8, steps=4) == pytest.approx(0.2)
    for arguments in ((-1,), (0, 1.5), (0, 0.5, 0)):
        with pytest.raises(ValueError, match="step"):
            rlsd_mix(*arguments)


def test_whitening_by_hand() -> None:
    found = whiten(tensor(1.0, 3.0, 9.0), torch.tensor([True, True, False]))
    root = math.sqrt(1.0 + 1e-8)
    assert found.tolist() == pytest.approx([-1 / root, 1 / root, 0.0], abs=1e-15)
    # The floor stands inside the root: with a variance of 1e-8 it halves the square.
    small = whiten(tensor(1e-4, -1e-4), torch.ones(2, dtype=torch.bool))
    assert small.tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], abs=1e-12)


def test_whitened_advantages_have_mean_zero_and_population_variance_one() -> None:
    advantages, mask = 5 + 3 * normal(4, 50), torch.rand(4, 50, generator=torch.Generator().manual_seed(1)) < 0.6
    found = whiten(advantages, mask)[mask]
    assert found.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert found.var(correction=0).item() == pytest.approx(1.0, abs=1e-7)
    again = whiten(whiten(advantages, mask), mask)[mask]
    assert torch.allclose(again, found, atol=1e-7)


def test_a_batch_split_into_parts_is_whitened_as_a_whole() -> None:
    advantages, mask = normal(30), torch.arange(30) % 4 != 0
    parts = [slice(0, 11), slice(11, 12), slice(12, 12), slice(12, 30)]
    whole = Moments()
    for part in parts:
        whole = whole.merge(advantage_moments(advantages[part], mask[part]))
    found = torch.cat([whiten(advantages[part], mask[part], whole) for part in parts])
    assert torch.allclose(found, whiten(advantages, mask), atol=1e-13)
    alone = torch.cat([whiten(advantages[part], mask[part]) for part in parts])
    assert (alone - found).abs().max() > 0.1


def test_whitening_nothing_or_one_value_gives_zeros() -> None:
    assert whiten(tensor(math.nan, 1.0), torch.zeros(2, dtype=torch.bool)).tolist() == [0.0, 0.0]
    assert whiten(tensor(0.25, 0.25, 0.25), torch.ones(3, dtype=torch.bool)).tolist() == [0.0, 0.0, 0.0]


def test_half_precision_input_is_widened() -> None:
    half = torch.tensor([0.5, -0.5], dtype=torch.bfloat16)
    mask = torch.ones(2, dtype=torch.bool)
    for found in (
        teacher_gap(half, half),
        fused_advantages(half, half),
        rlsd_advantages(half, half, mix=0.5),
        whiten(half, mask),
    ):
        assert found.dtype == torch.float32
    # d = 0.0005 as a difference of numbers near -2 does not exist in bfloat16.
    gap = teacher_gap(torch.tensor([-2.0005]), torch.tensor([-2.0]))
    assert fused_advantages(torch.tensor([0.5]), gap).item() == pytest.approx(0.49975, abs=1e-6)


def test_bad_input_is_refused() -> None:
    a = tensor(1.0, 2.0)
    for constants, match in (
        ({"eps_w": -0.1}, "eps_w"),
        ({"eps_w": 1.1}, "eps_w"),
        ({"tau": 0.0}, "tau"),
        ({"delta": 1.0}, "delta"),
    ):
        with pytest.raises(ValueError, match=match):
            fused_advantages(a, a, **constants)
    with pytest.raises(ValueError, match="gaps"):
        fused_advantages(a, tensor(1.0))
    with pytest.raises(ValueError, match="gaps"):
        rlsd_advantages(a, tensor(1.0), mix=0.5)
    with pytest.raises(ValueError, match="mix"):
        rlsd_advantages(a, a, mix=1.5)
    with pytest.raises(ValueError, match="student"):
        teacher_gap(a, tensor(1.0))
    with pytest.raises(ValueError, match="boolean"):
        whiten(a, a)
    with pytest.raises(ValueError, match="boolean"):
        fused_advantages(a, a, whitened=True, action_mask_N=a)
