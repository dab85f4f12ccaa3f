"""The t-1 shift, and contexts put into and taken out of a sequence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lecritique.numerics.alignment import (
    align_values,
    align_values_padded,
    insert_context,
    project_values,
    spread_over_context,
    states_before,
)
from lecritique.numerics.gae import gae, terminal_rewards

MONTE_CARLO = {"gamma": 1.0, "gae_lambda": 1.0, "value_target_lambda": 1.0}


def emitted(token_ids: list[int]) -> torch.Tensor:
    """A causal network: at each position a number that depends on every token up to there."""
    return torch.tensor([sum((i + 1) * x for i, x in enumerate(token_ids[: t + 1])) for t in range(len(token_ids))])


def test_fault_1_values_are_read_from_the_state_before_the_token() -> None:
    values = align_values_padded(torch.tensor([0.2, 0.4, 0.6, 0.9]))
    mask = torch.tensor([False, True, True, True])
    advantages, _ = gae(terminal_rewards(1.0, mask), values, mask, **MONTE_CARLO)
    assert advantages.tolist() == pytest.approx([0.0, 0.8, 0.6, 0.4])


def test_fault_1_changing_token_t_leaves_the_values_up_to_t() -> None:
    ids = [3, 1, 4, 1, 5]
    before = align_values_padded(emitted(ids))
    for t in range(5):
        changed = [*ids[:t], 9, *ids[t + 1 :]]
        after = align_values_padded(emitted(changed))
        assert torch.equal(after[: t + 1], before[: t + 1])
        assert not torch.equal(after[t + 1 :], before[t + 1 :]) or t == 4


def test_packed_sequences_equal_their_own_rows() -> None:
    sequences = [[3, 1, 4], [1, 5], [9]]
    packed = torch.cat([emitted(ids) for ids in sequences])
    found = align_values(packed, [3, 2, 1])
    assert torch.equal(found, torch.cat([align_values_padded(emitted(ids)) for ids in sequences]))
    rows = torch.zeros(3, 3, dtype=packed.dtype)
    for i, ids in enumerate(sequences):
        rows[i, : len(ids)] = emitted(ids)
    padded = align_values_padded(rows)
    assert torch.equal(torch.cat([padded[i, : len(ids)] for i, ids in enumerate(sequences)]), found)


def test_states_before_is_the_same_shift_before_the_head() -> None:
    states = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[False, True, False, True, True], [False, False, False, False, True]])
    head = torch.tensor([1.0, -2.0, 0.5])
    found = (states_before(states, mask) * head).sum(-1)
    assert torch.equal(found, align_values_padded((states * head).sum(-1))[mask])
    with pytest.raises(ValueError, match="first token"):
        states_before(states, ~mask)


def test_fault_29_a_context_changes_no_id_and_no_length() -> None:
    ids, context = [1, 20, 21, 22], [90, 91, 92]
    for position in range(5):
        conditioned = insert_context(ids, position, context)
        assert conditioned.tolist() == ids[:position] + context + ids[position:]
        values = align_values_padded(emitted(conditioned.tolist())).numpy()
        projected = project_values(values, position, 3)
        assert len(projected) == len(ids)
        assert projected.tolist() == values[:position].tolist() + values[position + 3 :].tolist()
        assert project_values(conditioned, position, 3).tolist() == ids


def test_fault_29_an_empty_context_is_no_context() -> None:
    ids = np.array([1, 20, 21])
    assert insert_context(ids, 1, []).tolist() == [1, 20, 21]
    assert insert_context(ids, 1, []).dtype == ids.dtype
    assert project_values([0.1, 0.2, 0.3], 1, 0).tolist() == [0.1, 0.2, 0.3]


def test_the_first_token_after_a_context_has_read_all_of_it() -> None:
    ids, position = [1, 20, 21], 2
    first = project_values(align_values_padded(emitted(insert_context(ids, position, [90, 91]).tolist())), position, 2)
    other = project_values(align_values_padded(emitted(insert_context(ids, position, [90, 99]).tolist())), position, 2)
    assert first[:2].tolist() == other[:2].tolist()
    assert first[2] != other[2]


def test_spreading_masks_the_context_and_projection_takes_it_back() -> None:
    for position, length in itertools.product(range(4), range(3)):
        mask = spread_over_context([True, True, True], position, length)
        assert mask.dtype == np.bool_
        assert mask.sum() == 3
        assert not mask[position : position + length].any()
        targets = [0.5, -1.0, 2.0]
        assert project_values(spread_over_context(targets, position, length), position, length).tolist() == targets


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sum to 3 positions"):
        align_values(torch.zeros(3), [2, 2])
    with pytest.raises(ValueError, match="positive"):
        align_values(torch.zeros(3), [3, 0])
    with pytest.raises(ValueError, match="length 0"):
        align_values_padded(torch.zeros(2, 0))
    with pytest.raises(ValueError, match=r"position 3 must be in \[0, 2\]"):
        insert_context([1, 2], 3, [9])
    with pytest.raises(ValueError, match="position -1"):
        insert_context([1, 2], -1, [9])
    with pytest.raises(ValueError, match="context length 4"):
        project_values([1.0, 2.0], 0, 4)
    with pytest.raises(ValueError, match="negative"):
        spread_over_context([1.0], 0, -1)
