"""Packed rows of any lengths: no padding, each row once, and the numbers of the other layout."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import VOCABULARY, small_policy

from lecritique.models.packed_attention import read_packed
from lecritique.models.scoring import MicroBatch, TokenRow, action_logprobs, in_micro_batches, logprobs

PADDED, PACKED = small_policy(), small_policy()
read_packed(PACKED)

lengths_of_rows = st.one_of(
    st.lists(st.integers(1, 60), min_size=1, max_size=24),
    # All alike but for an outlier, and all different: what buckets of similar length handle best and worst.
    st.builds(lambda length, count: [length] * count + [90], st.integers(2, 40), st.integers(1, 12)),
    st.integers(1, 24).map(lambda count: list(range(2, 2 + 3 * count, 3))),
)


def rows_of(lengths: list[int], seed: int = 0) -> list[TokenRow]:
    """Random ids; the last token of each row is wanted, and others behind its first third."""
    rng = np.random.default_rng(seed)
    return [
        TokenRow(token_ids=rng.integers(0, VOCABULARY, length), mask=np.arange(length) >= max(1, length // 3))
        for length in lengths
    ]


def tokens_read(batch: MicroBatch) -> int:
    """What the model is given, padding included: the last column of rows side by side is not."""
    if batch.read_N is not None:
        return len(batch.read_N)
    rows, width = batch.token_ids_BL.shape
    return rows * max(1, width - 1)


@given(lengths_of_rows, st.integers(1, 400))
def test_no_padding_within_the_limit_every_row_once_and_the_same_again(lengths: list[int], max_tokens: int) -> None:
    rows = rows_of(lengths)
    batches = list(in_micro_batches(PACKED, rows, max_tokens=max_tokens))
    assert sorted(index for batch in batches for index in batch.indices) == list(range(len(rows)))
    # A state is wanted of every token but each row's last one; a row of one token is read for want of a shorter one.
    assert sum(map(tokens_read, batches)) == sum(max(1, length - 1) for length in lengths)
    for batch in batches:
        assert len(batch.indices) == 1 or sum(lengths[index] for index in batch.indices) <= max_tokens
    again = in_micro_batches(PACKED, rows, max_tokens=max_tokens)
    assert [batch.indices for batch in again] == [batch.indices for batch in batches]


@settings(max_examples=25, deadline=None)
@given(lengths_of_rows, st.integers(1, 400), st.booleans())
def test_numbers_are_those_of_the_other_layout(lengths: list[int], max_tokens: int, siblings: bool) -> None:
    rows = rows_of(lengths)
    if siblings:
        prompt = np.random.default_rng(1).integers(0, VOCABULARY, 40)
        rows = [
            TokenRow(
                token_ids=np.concatenate([prompt, row.token_ids]), mask=np.concatenate([np.zeros(40, bool), row.mask])
            )
            for row in rows
        ]
    one, other = (logprobs(model, rows, temperature=1.0, max_tokens=max_tokens) for model in (PADDED, PACKED))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=0, atol=1e-11)
    totals = []
    for model in (PADDED, PACKED):
        model.zero_grad()
        for batch in in_micro_batches(model, rows, max_tokens=max_tokens):
            action_logprobs(model, batch, temperature=1.0).sum().backward()
        totals.append([weight.grad for weight in model.parameters()])
    for mine, theirs in zip(*totals, strict=True):
        if mine is None or theirs is None:
            assert mine is theirs
            continue
        # transformers' norms are float32 inside, forwards and backwards.
        torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-5)
