"""GAE: hand examples, known faults, identities, invariances and bad input."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch

from lecritique.numerics.gae import gae, gae_segments, lambda_from_length, terminal_rewards, terminal_rewards_segments

MONTE_CARLO = {"gamma": 1.0, "gae_lambda": 1.0, "value_target_lambda": 1.0}
F64 = torch.float64


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def mask_of(bits: str) -> torch.Tensor:
    return torch.tensor([bit == "1" for bit in bits])


def credit(reward: float, values: torch.Tensor, bits: str, **factors: float) -> list[float]:
    mask = mask_of(bits)
    return gae(terminal_rewards(reward, mask), values, mask, **{**MONTE_CARLO, **factors})[0].tolist()


def test_fault_2_nothing_comes_after_the_last_action() -> None:
    values = tensor(0.5, 0.5, 0.5, 0.7, 0.7)
    assert credit(1.0, values, "11100", gae_lambda=0.95) == pytest.approx([0.45125, 0.475, 0.5, 0, 0], abs=1e-12)


@pytest.mark.parametrize("junk", [1e6, -1e30, math.nan, math.inf])
def test_fault_2_masked_content_changes_no_bit(junk: float) -> None:
    mask = mask_of("0110100")
    rewards, values = torch.rand(2, 7, dtype=F64, generator=torch.Generator().manual_seed(3))
    factors = {"gamma": 0.9, "gae_lambda": 0.8, "value_target_lambda": 0.4, "bootstrap_value": 0.3}
    clean = gae(rewards, values, mask, **factors)
    dirty = gae(rewards.masked_fill(~mask, junk), values.masked_fill(~mask, junk), mask, **factors)
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


@pytest.mark.parametrize(
    ("lam", "on_actions"), [(0.95, [0.751, 0.58, 0.4]), (0.5, [0.4, 0.4, 0.4]), (0.0, [0.2, 0.2, 0.4])]
)
def test_fault_4_tool_tokens_are_no_steps(lam: float, on_actions: list[float]) -> None:
    found = credit(1.0, tensor(0.2, 0.4, 9, -9, 0.6), "11001", gae_lambda=lam)
    assert found == pytest.approx([*on_actions[:2], 0, 0, on_actions[2]], abs=1e-12)


def test_fault_4_inserting_observations_anywhere_changes_no_bit() -> None:
    values = tensor(0.2, 0.4, 0.6)
    factors = {"gamma": 0.9, "gae_lambda": 0.95}
    plain = credit(1.0, values, "111", **factors)
    for gaps in itertools.product(range(3), repeat=4):
        bits = "".join("0" * gap + "1" for gap in gaps[:3]) + "0" * gaps[3]
        mask = mask_of(bits)
        spread = torch.full((len(bits),), 77.0, dtype=F64).masked_scatter(mask, values)
        found = torch.tensor(credit(1.0, spread, bits, **factors), dtype=F64)
        assert found[mask].tolist() == plain


def test_fault_5_the_reward_survives_an_episode_that_ends_on_an_environment_message() -> None:
    found = credit(1.0, tensor(0.2, 0.4, 0, 0), "1100", gamma=0.5, gae_lambda=0.5)
    assert found == pytest.approx([0.15, 0.6, 0, 0], abs=1e-12)


def test_fault_6_truncation_is_terminal_unless_bootstrapped() -> None:
    rewards, values, mask = tensor(0, 0), tensor(0.3, 0.5), mask_of("11")
    terminal, _ = gae(rewards, values, mask, **MONTE_CARLO)
    assert terminal.tolist() == pytest.approx([-0.3, -0.5], abs=1e-12)
    bootstrapped, targets = gae(rewards, values, mask, bootstrap_value=0.5, **MONTE_CARLO)
    assert bootstrapped.tolist() == pytest.approx([0.2, 0.0], abs=1e-12)
    assert targets.tolist() == [0.5, 0.5]


def test_a_reward_is_added_to_a_bootstrap_value() -> None:
    found, _ = gae(tensor(0, 1), tensor(0.3, 0.5), mask_of("11"), **MONTE_CARLO | {"gamma": 0.5}, bootstrap_value=0.8)
    assert found.tolist() == pytest.approx([0.5 * 1.4 - 0.3, 1.4 - 0.5], abs=1e-12)


def test_fault_7_sequences_that_share_a_row_do_not_leak() -> None:
    rewards = torch.stack([tensor(0, 0), tensor(0, 1)])
    values = torch.stack([tensor(0.1, 0.2), tensor(0.7, 0.6)])
    advantages, _ = gae(rewards, values, torch.ones(2, 2, dtype=torch.bool), **MONTE_CARLO)
    assert advantages[0].tolist() == pytest.approx([-0.1, -0.2], abs=1e-12)
    assert advantages[1].tolist() == pytest.approx([0.3, 0.4], abs=1e-12)


def test_fault_11_targets_are_constants_of_later_updates() -> None:
    values = tensor(0.5, 0.2, 0.9).requires_grad_()
    mask = mask_of("111")
    advantages, targets = gae(terminal_rewards(1.0, mask), values, mask, **MONTE_CARLO | {"value_target_lambda": 0.5})
    assert not advantages.requires_grad
    assert not targets.requires_grad
    before = advantages.clone(), targets.clone()
    with torch.no_grad():
        values.add_(1.0)
    assert torch.equal(advantages, before[0])
    assert torch.equal(targets, before[1])


def test_fault_17_a_length_calibrated_lambda_survives_half_precision_input() -> None:
    lam = lambda_from_length(8192, 0.4)
    mask = torch.ones(8192, dtype=torch.bool)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, F64):
        rewards = terminal_rewards(torch.tensor(1.0, dtype=dtype), mask)
        advantages, _ = gae(rewards, torch.zeros(8192, dtype=dtype), mask, **MONTE_CARLO | {"gae_lambda": lam})
        assert advantages[0].item() == pytest.approx(0.4, abs=1e-3)
        assert advantages.dtype == (F64 if dtype == F64 else torch.float32)


def test_fault_21_an_episode_in_three_segments_is_one_episode() -> None:
    values = [tensor(0.2, 9, 0.4), tensor(0.6), tensor(0.8, 9)]
    masks = [mask_of("101"), mask_of("1"), mask_of("10")]
    rewards = terminal_rewards_segments(1.0, masks)
    assert [r.tolist() for r in rewards] == [[0, 0, 0], [0], [1, 0]]
    found, _ = gae_segments(rewards, values, masks, **MONTE_CARLO | {"gae_lambda": 0.5})
    # The same four actions in one piece: deltas .2 .2 .2 .2, so A = .375 .35 .3 .2.
    assert [a.tolist() for a in found] == [
        pytest.approx([0.375, 0, 0.35], abs=1e-12),
        pytest.approx([0.3], abs=1e-12),
        pytest.approx([0.2, 0], abs=1e-12),
    ]


def test_the_reward_moves_to_an_earlier_segment_when_the_last_has_no_action() -> None:
    rewards = terminal_rewards_segments(2.0, [mask_of("011"), mask_of("000")])
    assert [r.tolist() for r in rewards] == [[0, 0, 2], [0, 0, 0]]


def test_independent_segments_each_end_with_the_episode_return() -> None:
    values = [tensor(0.2, 0.4), tensor(0.6)]
    masks = [mask_of("11"), mask_of("1")]
    rewards = [tensor(0.25, 0.0), tensor(0.5)]
    found, targets = gae_segments(rewards, values, masks, **MONTE_CARLO, semantics="independent")
    assert [a.tolist() for a in found] == [pytest.approx([0.55, 0.35]), pytest.approx([0.15])]
    assert [t.tolist() for t in targets] == [[0.75, 0.75], [0.75]]
    _, targets = gae_segments(rewards, values, masks, **MONTE_CARLO, semantics="independent", bootstrap_value=2.0)
    assert [t.tolist() for t in targets] == [[0.75, 0.75], [2.75]]
    _, targets = gae_segments(rewards, values, masks, **MONTE_CARLO, bootstrap_value=2.0)
    assert [t.tolist() for t in targets] == [[2.75, 2.5], [2.5]]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_monte_carlo_is_return_minus_value_to_the_last_bit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(5, 400, dtype=dtype, generator=generator) * 3
    mask = torch.rand(5, 400, generator=generator) < 0.7
    returns = torch.rand(5, dtype=dtype, generator=generator)
    advantages, targets = gae(terminal_rewards(returns, mask), values, mask, **MONTE_CARLO)
    spread = returns[:, None].expand_as(values)
    assert torch.equal(advantages, torch.where(mask, spread - values, 0))
    assert torch.equal(targets, torch.where(mask, spread, 0))


def test_lambda_zero_is_the_one_step_error_and_targets_have_their_own_lambda() -> None:
    generator = torch.Generator().manual_seed(1)
    rewards, values = torch.rand(2, 6, dtype=F64, generator=generator)
    mask = torch.ones(6, dtype=torch.bool)
    advantages, targets = gae(rewards, values, mask, gamma=0.9, gae_lambda=0.0, value_target_lambda=1.0)
    following = torch.cat([values[1:], tensor(0.0)])
    assert torch.allclose(advantages, rewards + 0.9 * following - values, atol=1e-14)
    discounted = sum(0.9**k * rewards[k] for k in range(6))
    assert targets[0].item() == pytest.approx(discounted.item(), abs=1e-12)


def test_without_action_tokens_all_is_zero() -> None:
    mask = mask_of("0000")
    for values in (tensor(1, 2, 3, 4), torch.full((4,), math.nan)):
        advantages, targets = gae(terminal_rewards(1.0, mask), values, mask, bootstrap_value=5.0, **MONTE_CARLO)
        assert advantages.tolist() == [0, 0, 0, 0]
        assert targets.tolist() == [0, 0, 0, 0]
    empty = torch.zeros(2, 0)
    assert gae(empty, empty, empty.bool(), **MONTE_CARLO)[0].shape == (2, 0)


def test_padding_batching_and_order_change_no_bit() -> None:
    generator = torch.Generator().manual_seed(2)
    values = torch.rand(6, 30, generator=generator)
    mask = torch.rand(6, 30, generator=generator) < 0.6
    mask[:, 20:] = False
    rewards = terminal_rewards(torch.rand(6, generator=generator), mask)
    factors = {"gamma": 0.99, "gae_lambda": 0.95, "value_target_lambda": 0.9}
    together, _ = gae(rewards, values, mask, **factors)
    shuffled, _ = gae(rewards.flip(0), values.flip(0), mask.flip(0), **factors)
    assert torch.equal(shuffled.flip(0), together)
    for i in range(6):
        alone, _ = gae(rewards[i, :20], values[i, :20], mask[i, :20], **factors)
        assert torch.equal(alone, together[i, :20])
    deeper, _ = gae(rewards.reshape(2, 3, 30), values.reshape(2, 3, 30), mask.reshape(2, 3, 30), **factors)
    assert torch.equal(deeper.reshape(6, 30), together)


def test_a_nan_value_on_an_action_token_is_not_hidden() -> None:
    advantages, _ = gae(tensor(0, 1), tensor(0.5, math.nan), mask_of("11"), **MONTE_CARLO)
    assert advantages.isnan().any()


def test_a_policy_batch_is_credited_within_50_milliseconds() -> None:
    values, mask = torch.rand(128, 1024), torch.ones(128, 1024, dtype=torch.bool)
    rewards = terminal_rewards(torch.ones(128), mask)
    timings = []
    for _ in range(5):
        start = time.thread_time()
        gae(rewards, values, mask, **MONTE_CARLO)
        timings.append(time.thread_time() - start)
    assert min(timings) < 0.05


@pytest.mark.parametrize("name", ["gamma", "gae_lambda", "value_target_lambda"])
@pytest.mark.parametrize("factor", [-0.1, 1.1, math.nan])
def test_factors_outside_the_unit_interval_are_refused(name: str, factor: float) -> None:
    with pytest.raises(ValueError, match=name):
        gae(tensor(0, 1), tensor(0, 1), mask_of("11"), **MONTE_CARLO | {name: factor})


def test_shapes_and_masks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="boolean"):
        gae(tensor(0, 1), tensor(0, 1), tensor(1, 1), **MONTE_CARLO)
    with pytest.raises(ValueError, match=r"mask has shape \(3,\), expected \(2,\)"):
        gae(tensor(0, 1), tensor(0, 1), mask_of("111"), **MONTE_CARLO)
    with pytest.raises(ValueError, match="rewards"):
        gae(tensor(1), tensor(0, 1), mask_of("11"), **MONTE_CARLO)
    with pytest.raises(ValueError, match="rewards"):
        terminal_rewards(tensor(1, 2), torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="same number"):
        gae_segments([], [], [], **MONTE_CARLO)
    with pytest.raises(ValueError, match="seq"):
        gae_segments([tensor(1)], [tensor(1)], [mask_of("1")], semantics="parallel", **MONTE_CARLO)


def test_lambda_from_length_keeps_what_it_says() -> None:
    assert lambda_from_length(8192, 0.4) == pytest.approx(0.9998881543592094, abs=1e-15)
    assert lambda_from_length(5, 1.0) == 1.0
    for length, retained in ((0, 0.4), (10, 0.0), (10, 1.5)):
        with pytest.raises(ValueError, match="must be"):
            lambda_from_length(length, retained)
