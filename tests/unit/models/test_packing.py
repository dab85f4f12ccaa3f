"""Micro-batches hold every row once, within their size, and padding leaves rows as they are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lecritique.models.packing import FREE_PADDING_TOKENS, MOST_PADDING, micro_batches, padded


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 120))
def test_every_row_once_within_the_size_and_longest_first(lengths: list[int], max_tokens: int) -> None:
    batches = micro_batches(lengths, max_tokens=max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        width = max(lengths[index] for index in batch)
        assert width == lengths[batch[0]]
        assert len(batch) == 1 or len(batch) * width <= max_tokens
    flat = [lengths[index] for batch in batches for index in batch]
    assert flat == sorted(lengths, reverse=True)


@given(st.lists(st.integers(1, 300), min_size=2, max_size=30), st.integers(1, 3000))
def test_a_batch_ends_where_it_is_full_or_the_next_row_would_be_padded_too_much(lengths, max_tokens) -> None:
    batches = micro_batches(lengths, max_tokens=max_tokens)
    for batch, following in pairwise(batches):
        width, next_one = lengths[batch[0]], lengths[following[0]]
        padding = sum(width - lengths[index] for index in [*batch, following[0]])
        full = (len(batch) + 1) * width > max_tokens
        assert full or (width - next_one > MOST_PADDING * width and padding > FREE_PADDING_TOKENS)
    for batch in batches:
        read = len(batch) * lengths[batch[0]]
        padding = read - sum(lengths[index] for index in batch)
        assert padding <= max(FREE_PADDING_TOKENS, MOST_PADDING * read)


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 120))
def test_packed_batches_are_as_full_as_their_tokens_allow(lengths: list[int], max_tokens: int) -> None:
    batches = micro_batches(lengths, max_tokens=max_tokens, packed=True)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch, following in pairwise(batches):
        assert sum(lengths[index] for index in batch) + lengths[following[0]] > max_tokens
    assert all(len(batch) == 1 or sum(lengths[i] for i in batch) <= max_tokens for batch in batches)


def test_rows_of_equal_length_keep_their_order() -> None:
    assert micro_batches([4, 7, 4, 4], max_tokens=8) == [[1], [0, 2], [3]]
    assert micro_batches([], max_tokens=8) == []


def test_padding_is_on_the_right_with_the_fill() -> None:
    block = padded([np.array([1, 2, 3]), np.array([9])], fill=0, dtype=torch.long, device=torch.device("cpu"))
    assert block.tolist() == [[1, 2, 3], [9, 0, 0]]
    mask = padded([np.array([True]), np.array([False, True])], fill=False, dtype=torch.bool, device=torch.device("cpu"))
    assert mask.tolist() == [[True, False], [False, True]]
