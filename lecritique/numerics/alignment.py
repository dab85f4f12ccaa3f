"""The one place where what a network emits at position t-1 becomes a property of token t.

Also where a critic's context is put into a token sequence and taken out of its values again: values are shifted
first, on the sequence that the critic read, and then projected back to the policy's positions.
Shapes: T trajectory length, C context length, L packed length, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def align_values(state_values_L: Tensor, sequence_lengths: Sequence[int]) -> Tensor:
    """Per-token values of packed sequences, from the values that a network emits at every position.

        V_t = emitted value at position t-1 of the same sequence,   V_0 = 0

    The state before token t is all tokens up to t-1, so it is read there. The first token of a sequence has no
    state before it and is never an action. One sequence: `align_values_padded` of one row.

    Args:
        state_values_L: [L], emitted at each position, reward units.
        sequence_lengths: lengths of the packed sequences, in order, summing to L.

    Returns:
        [L], with gradient.

    Raises:
        ValueError: lengths that are not positive or do not sum to L.

    Source: method sheet section 0; LC section 2.3.
    """
    if any(length < 1 for length in sequence_lengths) or sum(sequence_lengths) != len(state_values_L):
        raise ValueError(
            f"sequence lengths {list(sequence_lengths)} must be positive and sum to {len(state_values_L)} positions"
        )
    return torch.cat([align_values_padded(row) for row in torch.split(state_values_L, list(sequence_lengths))])


def align_values_padded(state_values_BL: Tensor) -> Tensor:
    """Per-token values (or log-probs) of rows that hold one sequence each: everything one position to the right.

        V_t = emitted value at position t-1,   V_0 = 0

    Args:
        state_values_BL: [..., L], emitted at each position; padding may stand anywhere off the action mask.

    Returns:
        [..., L], with gradient.

    Raises:
        ValueError: rows without positions.

    Source: method sheet section 0.
    """
    if state_values_BL.shape[-1] < 1:
        raise ValueError("cannot align rows of length 0")
    return torch.cat([torch.zeros_like(state_values_BL[..., :1]), state_values_BL[..., :-1]], dim=-1)


def states_before(states_BLH: Tensor, mask_BL: Tensor) -> Tensor:
    """The hidden states from which the masked tokens were chosen, one row per token.

        out_n = states at position t-1,   for the n-th (row, t) with mask true, in row-major order

    What a head makes of it is the log-prob or the value of token t: the same shift as `align_values_padded`,
    taken before the head, so that no head is evaluated where nothing is wanted.

    Args:
        states_BLH: [B, L, H], hidden state at each position.
        mask_BL: [B, L] bool, True on the wanted tokens; False at position 0.

    Returns:
        [N, H], with gradient.

    Raises:
        ValueError: a mask that is true at position 0.

    Source: method sheet section 0.
    """
    if bool(mask_BL[:, 0].any()):
        raise ValueError("the first token of a sequence has no state before it")
    return states_BLH[:, :-1][mask_BL[:, 1:]]


def insert_context(token_ids_T: ArrayLike, position: int, context_ids_C: ArrayLike) -> NDArray[Any]:
    """What a critic with a context reads: the context's ids put in before index `position`.

        out = ids[:position] + context + ids[position:]

    The policy's own ids stay as they are; an empty context returns them unchanged.

    Args:
        token_ids_T: [T], the policy's own sequence.
        position: in [0, T]; 1 after a beginning-of-sequence token.
        context_ids_C: [C].

    Returns:
        [T + C].

    Raises:
        ValueError: a position outside the sequence.

    Source: LC section 3; method sheet section 4.
    """
    token_ids = np.asarray(token_ids_T)
    _require_position(position, len(token_ids))
    context = np.asarray(context_ids_C, dtype=token_ids.dtype)
    return np.concatenate([token_ids[:position], context, token_ids[position:]])


def spread_over_context(column_T: ArrayLike, position: int, context_length: int) -> NDArray[Any]:
    """A per-token column (mask, targets) on the sequence with the context in it: 0 or False on inserted tokens.

        out = column[:position] + [0] * context_length + column[position:]

    `project_values` takes it back.

    Args:
        column_T: [T].
        position: in [0, T], of the insertion.
        context_length: C, tokens.

    Returns:
        [T + C].

    Raises:
        ValueError: a position outside the sequence or a negative length.

    Source: method sheet section 4.
    """
    column = np.asarray(column_T)
    if context_length < 0:
        raise ValueError(f"context length {context_length} is negative")
    return insert_context(column, position, np.zeros(context_length, dtype=column.dtype))


def project_values(values_conditioned: ArrayLike, position: int, context_length: int) -> NDArray[Any]:
    """Values of the policy's own tokens, from aligned values of the sequence with the context in it.

        out_t = V_t for t < position,   out_t = V_{t+C} otherwise

    The values must be aligned to tokens already: the first token after the context takes the state that has read
    the whole context.

    Args:
        values_conditioned: [T + C], aligned.
        position: in [0, T], of the insertion.
        context_length: C, tokens.

    Returns:
        [T].

    Raises:
        ValueError: a position outside the sequence or a length that does not fit.

    Source: LC section 3; method sheet section 4.
    """
    values = np.asarray(values_conditioned)
    if not 0 <= context_length <= len(values):
        raise ValueError(f"context length {context_length} does not fit into {len(values)} values")
    _require_position(position, len(values) - context_length)
    return np.concatenate([values[:position], values[position + context_length :]])


def _require_position(position: int, length: int) -> None:
    if not 0 <= position <= length:
        raise ValueError(f"insertion position {position} must be in [0, {length}]")
