"""Log-probs and values of given tokens. The only place where a network's position t-1 becomes token t.

Shape letters: B rows, L padded length (of a packed micro-batch B is 1 and L all of its tokens), H hidden width,
V vocabulary, N action tokens of a micro-batch in row-major order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.checkpoint import checkpoint

from lecritique.core.errors import ConfigurationError
from lecritique.core.trajectory import ContextInsertion, Trajectory
from lecritique.models.packed_attention import Segments, reads_packed
from lecritique.models.packing import micro_batches, padded
from lecritique.models.shared_prefix import (
    PrefixBatch,
    packed_prefixes,
    prefix_batches,
    shared_prefixes,
    states_behind_prefixes,
)
from lecritique.models.value_model import ValueModel
from lecritique.numerics.alignment import insert_context, spread_over_context, states_before

# Row lengths to the rows of each micro-batch, as `packing.micro_batches` does it.
Split = Callable[..., list[list[int]]]
# Logits of at most so many numbers exist at once: 64 MiB in float32.
_LOGITS_AT_ONCE = 1 << 24


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """One sequence to score: its ids and a mask of the tokens whose log-prob or value is wanted."""

    token_ids: NDArray[np.int64]
    mask: NDArray[np.bool_]

    @property
    def read_tokens(self) -> int:
        """How many of its tokens a model must read: what stands behind the last wanted token changes nothing."""
        wanted = np.flatnonzero(self.mask)
        return int(wanted[-1]) + 1 if len(wanted) else 1

    @property
    def first_wanted(self) -> int:
        """Index of the first wanted token, 0 when there is none."""
        return int(self.mask.argmax())


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows padded to one width, or end to end in one row, with the indices that they had in the caller's list."""

    indices: tuple[int, ...]
    token_ids_BL: torch.Tensor
    mask_BL: torch.Tensor
    counts: tuple[int, ...]
    """Wanted tokens of each row."""
    segments: Segments | None = None
    """What is read of a packed micro-batch: every row but for its last token, whose state nobody wants."""
    read_N: torch.Tensor | None = None
    """Where in a packed micro-batch the tokens of `segments` stand."""

    @property
    def targets_N(self) -> torch.Tensor:
        """The ids of the wanted tokens."""
        return self.token_ids_BL[self.mask_BL]

    def gathered(self, columns: Sequence[NDArray[Any]], dtype: torch.dtype) -> torch.Tensor:
        """The caller's columns, which hold one entry per wanted token of a row, in the order of N."""
        chosen = np.concatenate([columns[index] for index in self.indices]) if self.indices else np.zeros(0)
        return torch.from_numpy(chosen).to(device=self.mask_BL.device, dtype=dtype)

    def row_index_N(self) -> torch.Tensor:
        """For each wanted token the row of the micro-batch that it belongs to."""
        counts = torch.tensor(self.counts, dtype=torch.long, device=self.mask_BL.device)
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def token_row(trajectory: Trajectory, context: ContextInsertion | None = None) -> TokenRow:
    """A trajectory's action tokens as wanted tokens; inserted context tokens are never wanted."""
    if context is None:
        return TokenRow(token_ids=trajectory.token_ids, mask=trajectory.action_mask)
    at = context.position
    return TokenRow(
        token_ids=insert_context(trajectory.token_ids, at, context.token_ids),
        mask=spread_over_context(trajectory.action_mask, at, len(context)),
    )


def in_micro_batches(
    model: Any, rows: Sequence[TokenRow], *, max_tokens: int, split: Split = micro_batches
) -> Iterator[MicroBatch]:
    """The rows, each up to its last wanted token, as micro-batches for the model, longest first.

    They are packed for a model that was switched to it (`packed_attention.read_packed`), else padded.
    Another `split` may leave rows to other processes, and give micro-batches without rows to keep step with them.
    """
    packed = reads_packed(model)
    lengths = [row.read_tokens for row in rows]
    for indices in split(lengths, max_tokens=max_tokens, packed=packed):
        yield _laid_out([(index, rows[index], 0, lengths[index]) for index in indices], model.device, packed=packed)


def in_paired_micro_batches(
    model: Any,
    rows: Sequence[TokenRow],
    others: Sequence[TokenRow],
    *,
    max_tokens: int,
    split: Split = micro_batches,
) -> Iterator[tuple[MicroBatch, MicroBatch]]:
    """The same rows with the same wanted tokens in two readings, side by side: entry n of N is one token in both.

    The longer reading of each row counts against `max_tokens`; the rest is as in `in_micro_batches`.
    """
    packed = reads_packed(model)
    lengths = [max(row.read_tokens, other.read_tokens) for row, other in zip(rows, others, strict=True)]
    for indices in split(lengths, max_tokens=max_tokens, packed=packed):
        one, two = (
            _laid_out([(i, these[i], 0, these[i].read_tokens) for i in indices], model.device, packed=packed)
            for these in (rows, others)
        )
        if not torch.equal(one.targets_N, two.targets_N):
            raise ValueError("two readings of a row do not want the same tokens")
        yield one, two


def action_states(model: Any, batch: MicroBatch) -> torch.Tensor:
    """The final hidden states from which the wanted tokens were chosen, [N, H]."""
    return states_before(final_states(model.get_decoder(), batch), batch.mask_BL)


def final_states(decoder: Any, batch: MicroBatch) -> torch.Tensor:
    """The final hidden states of everything that a micro-batch reads, [B, L, H]; zeros where nothing is read.

    Nothing is chosen from the state of a row's last token: packed rows are read without, and so are the widest padded.
    """
    ids_BL = batch.token_ids_BL
    if batch.segments is not None and batch.read_N is not None:
        read = decoder(input_ids=ids_BL[:, batch.read_N], use_cache=False, **batch.segments.inputs()).last_hidden_state
        return read.new_zeros((*ids_BL.shape, read.shape[-1])).index_copy(1, batch.read_N, read)  # type: ignore[no-any-return]
    if ids_BL.shape[1] == 1:
        return decoder(input_ids=ids_BL, use_cache=False).last_hidden_state  # type: ignore[no-any-return]
    states_BLH = decoder(input_ids=ids_BL[:, :-1], use_cache=False).last_hidden_state
    return torch.nn.functional.pad(states_BLH, (0, 0, 0, 1))


# (index, row, start, end): tokens start..end - 1 of a row, and the index that it has in the caller's list.
_Piece = tuple[int, TokenRow, int, int]


def _laid_out(pieces: Sequence[_Piece], device: torch.device, *, packed: bool) -> MicroBatch:
    """Side by side where that takes no padding or the model cannot have them packed, else end to end."""
    of_one_length = len({end - start for *_, start, end in pieces}) <= 1
    return _packed_micro_batch(pieces, device) if packed and not of_one_length else _micro_batch(pieces, device)


def _micro_batch(pieces: Sequence[_Piece], device: torch.device) -> MicroBatch:
    """The pieces, padded; of none one token that nobody wants."""
    ids = [row.token_ids[start:end] for _, row, start, end in pieces] or [np.zeros(1, dtype=np.int64)]
    masks = [row.mask[start:end] for _, row, start, end in pieces] or [np.zeros(1, dtype=np.bool_)]
    return MicroBatch(
        indices=tuple(index for index, *_ in pieces),
        token_ids_BL=padded(ids, fill=0, dtype=torch.long, device=device),
        mask_BL=padded(masks, fill=False, dtype=torch.bool, device=device),
        counts=tuple(int(row.mask[start:end].sum()) for _, row, start, end in pieces),
    )


def _packed_micro_batch(pieces: Sequence[_Piece], device: torch.device) -> MicroBatch:
    """The pieces, end to end; a first token that is wanted has no state before it, and the row before it is not its."""
    if any(row.mask[start] for _, row, start, _ in pieces):
        raise ValueError("the first token of a row has no state before it, and is wanted")
    masks = [row.mask[start:end] for _, row, start, end in pieces]
    is_read = np.concatenate([np.arange(len(mask)) < max(1, len(mask) - 1) for mask in masks])
    ids = np.concatenate([row.token_ids[start:end] for _, row, start, end in pieces])
    return MicroBatch(
        indices=tuple(index for index, *_ in pieces),
        token_ids_BL=torch.from_numpy(ids).to(device=device, dtype=torch.long)[None],
        mask_BL=torch.from_numpy(np.concatenate(masks)).to(device=device)[None],
        counts=tuple(int(mask.sum()) for mask in masks),
        segments=Segments.of([max(1, len(mask) - 1) for mask in masks], device),
        read_N=torch.from_numpy(np.flatnonzero(is_read)).to(device),
    )


def action_logprobs(model: Any, batch: MicroBatch, *, temperature: float) -> torch.Tensor:
    """Log p(token t | tokens < t) of the wanted tokens in nats, [N], of softmax(logits / temperature)."""
    states_NH = action_states(model, batch)
    return logprobs_of_states(model.get_output_embeddings(), states_NH, batch.targets_N, temperature=temperature)


def logprobs_of_states(
    head: Any, states_NH: torch.Tensor, targets_N: torch.Tensor, *, temperature: float
) -> torch.Tensor:
    """Log-probs of the targets, the logits made and dropped chunk by chunk (recomputed for the gradient)."""
    chunk = max(1, _LOGITS_AT_ONCE // int(head.weight.shape[0]))
    if len(states_NH) <= chunk:
        return _chunk_logprobs(head, states_NH, targets_N, temperature)
    pieces = [
        checkpoint(_chunk_logprobs, head, states, targets, temperature, use_reentrant=False)
        if torch.is_grad_enabled()
        else _chunk_logprobs(head, states, targets, temperature)
        for states, targets in zip(torch.split(states_NH, chunk), torch.split(targets_N, chunk), strict=True)
    ]
    return torch.cat(pieces)


def _chunk_logprobs(head: Any, states_NH: torch.Tensor, targets_N: torch.Tensor, temperature: float) -> torch.Tensor:
    logits_NV = scaled_logits(head(states_NH), temperature)
    return torch.log_softmax(logits_NV, dim=-1).gather(-1, targets_N[:, None])[:, 0]


def scaled_logits(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Logits / temperature in float32 or wider: the one definition that sampler and trainer share."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if temperature == 1.0 else wide / temperature


def action_value_outputs(model: ValueModel, batch: MicroBatch) -> torch.Tensor:
    """The value head's outputs for the states before the wanted tokens, [N, outputs], float32 or wider."""
    return model.head_outputs(states_before(final_states(model.backbone, batch), batch.mask_BL))


@torch.no_grad()
def values(
    model: ValueModel, rows: Sequence[TokenRow], *, max_tokens: int, share_prefixes: bool = True
) -> list[NDArray[np.float64]]:
    """V(state before token t) of each row's wanted tokens in reward units, in the order of `rows`.

    What siblings begin with is read once (`models/shared_prefix.py`), unless `share_prefixes` is off.
    """
    return _in_order_of_rows(
        model.backbone,
        lambda states_NH, _: model.values_of(model.head_outputs(states_NH)),
        rows,
        max_tokens=max_tokens,
        share_prefixes=share_prefixes,
        device=model.device,
    )


@torch.no_grad()
def logprobs(
    model: Any, rows: Sequence[TokenRow], *, temperature: float, max_tokens: int, share_prefixes: bool = True
) -> list[NDArray[np.float64]]:
    """Log-probs of each row's wanted tokens in nats, in the order of `rows`; prefixes as in `values`."""
    head = model.get_output_embeddings()
    return _in_order_of_rows(
        model.get_decoder(),
        lambda states_NH, targets_N: logprobs_of_states(head, states_NH, targets_N, temperature=temperature),
        rows,
        max_tokens=max_tokens,
        share_prefixes=share_prefixes,
        device=model.device,
    )


def _in_order_of_rows(
    decoder: Any,
    of_states: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    rows: Sequence[TokenRow],
    *,
    max_tokens: int,
    share_prefixes: bool,
    device: torch.device,
) -> list[NDArray[np.float64]]:
    """What `of_states` gives for the states before the wanted tokens, cut into rows in the caller's order."""
    scored: list[NDArray[np.float64]] = [np.zeros(0)] * len(rows)
    for batch, hidden_BLH in _read(decoder, rows, max_tokens=max_tokens, share_prefixes=share_prefixes, device=device):
        flat = of_states(states_before(hidden_BLH, batch.mask_BL), batch.targets_N).double().cpu().numpy()
        for index, piece in zip(batch.indices, np.split(flat, np.cumsum(batch.counts)[:-1]), strict=True):
            scored[index] = piece
    return scored


def _read(
    decoder: Any, rows: Sequence[TokenRow], *, max_tokens: int, share_prefixes: bool, device: torch.device
) -> Iterator[tuple[MicroBatch, torch.Tensor]]:
    """Every row once, with its final hidden states [B, L, H]: rows with a shared prefix from behind it on."""
    ids = [row.token_ids[: row.read_tokens] for row in rows]
    lengths = [len(each) for each in ids]
    groups = shared_prefixes(ids, [row.first_wanted for row in rows]) if share_prefixes else []
    packed = reads_packed(decoder)
    for together in prefix_batches(groups, lengths, max_tokens=max_tokens, packed=packed):
        if packed:
            yield from _read_behind_packed(decoder, together, rows, ids, device)
            continue
        for places, hidden_BLH in states_behind_prefixes(decoder, together, ids, device=device):
            yield _micro_batch([(i, rows[i], start, lengths[i]) for i, start in places], device), hidden_BLH
    grouped = {index for group in groups for index in group.indices}
    alone = [index for index in range(len(rows)) if index not in grouped]
    for plain in in_micro_batches(decoder, [rows[i] for i in alone], max_tokens=max_tokens):
        batch = replace(plain, indices=tuple(alone[index] for index in plain.indices))
        yield batch, final_states(decoder, batch)


def _read_behind_packed(
    decoder: Any,
    together: PrefixBatch,
    rows: Sequence[TokenRow],
    ids: Sequence[NDArray[np.int64]],
    device: torch.device,
) -> Iterator[tuple[MicroBatch, torch.Tensor]]:
    """What follows the prefixes, end to end, with its final hidden states; the prefixes are read here."""
    prefixes = packed_prefixes(decoder, together.groups, ids, device=device)
    for members in together.passes:
        pieces = [(i, rows[i], together.groups[owner].length, len(ids[i])) for owner, i in members]
        batch = _packed_micro_batch(pieces, device)
        assert batch.segments is not None
        batch = replace(batch, segments=batch.segments.following(prefixes, [owner for owner, _ in members]))
        yield batch, final_states(decoder, batch)
    # The last micro-batch still names them, while the next prefixes are read.
    prefixes.forget()


@torch.no_grad()
def require_plain_head(model: Any, name: str) -> None:
    """Raise ConfigurationError unless logits are exactly the output embedding of the last hidden state.

    Models that cap or scale their logits afterwards would be scored wrongly by chunked log-probs.
    """
    ids = torch.arange(8, device=model.device)[None] % int(model.config.get_text_config().vocab_size)
    full = model(input_ids=ids, use_cache=False).logits
    plain = model.get_output_embeddings()(model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state)
    if not torch.allclose(full, plain, atol=1e-4, rtol=1e-3):
        raise ConfigurationError(
            f"model '{name}' changes its logits after the output embedding (soft cap or scale), "
            "which lecritique does not score exactly; use a model without that."
        )
