"""Sequences laid end to end in one row, [1, N]: every layer but attention reads no padding.

A model is switched to `PACKED` once (`read_packed`); it then takes a `Segments` with each packed pass, and without
one attends as before. What the segments attend to is up to the device: on GPUs in half precision torch's kernel for
sequences of different length; elsewhere attention alone pads, bucket by bucket.

Shape letters: N packed tokens, S segments, W width of a bucket, h heads, d width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lecritique.core.errors import ConfigurationError
from lecritique.models.packing import buckets

PACKED = "lecritique_packed"


# Keys and values [N, h, d] by attention layer.
Kept = dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Before:
    """Of each segment of a bucket the tokens that it follows, as places among kept keys."""

    kept: Kept
    tokens_BP: torch.Tensor
    there_BP: torch.Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Bucket:
    """Segments of similar length; token n of them stands at `places`[n] of their padded block [rows, width]."""

    segments: tuple[int, ...]
    tokens: torch.Tensor
    places: torch.Tensor
    rows: int
    width: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """Where the sequences of a packed row begin and end."""

    lengths: tuple[int, ...]
    positions: torch.Tensor
    """Of each token in its own sequence, [1, N]."""
    bounds: torch.Tensor
    """First token of each segment, and N, [S + 1]."""
    buckets: tuple[Bucket, ...]
    kept: Kept | None = None
    """Where each attention layer's keys and values are put, for segments that follow these."""
    behind: tuple[Before, ...] | None = None
    """What the segments of each bucket follow, where they follow anything."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Segments:
        """Segments of these lengths, in this order."""
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
        return cls(
            lengths=tuple(lengths),
            positions=torch.from_numpy(positions)[None].to(device),
            bounds=torch.from_numpy(bounds).to(device=device, dtype=torch.int32),
            buckets=tuple(_bucket(rows, lengths, bounds, device) for rows in buckets(lengths)),
        )

    def following(self, prefixes: Segments, owners: Sequence[int]) -> Segments:
        """The same segments, segment n behind prefix owners[n], which the same model has read.

        Raises:
            ValueError: prefixes whose keys are not kept.
        """
        if not prefixes.kept:
            raise ValueError("nothing can follow prefixes whose keys are not kept")
        device, lengths = self.positions.device, np.asarray(prefixes.lengths)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        moved = np.repeat(lengths[list(owners)], self.lengths)
        before = []
        for bucket in self.buckets:
            of_rows = np.asarray(owners)[list(bucket.segments)]
            index_P = np.arange(lengths[of_rows].max())
            there_BP = index_P < lengths[of_rows, None]
            tokens_BP = np.where(there_BP, starts[of_rows, None] + index_P, 0)
            before.append(
                Before(
                    kept=prefixes.kept,
                    tokens_BP=torch.from_numpy(tokens_BP).to(device),
                    there_BP=torch.from_numpy(there_BP).to(device),
                )
            )
        return replace(self, positions=self.positions + torch.from_numpy(moved).to(device), behind=tuple(before))

    def forget(self) -> None:
        """Lets go of the kept keys and values: nothing can follow these segments any more."""
        if self.kept is not None:
            self.kept.clear()

    def inputs(self) -> dict[str, Any]:
        """What a model that was switched to `PACKED` is given beside the ids."""
        return {
            "position_ids": self.positions,
            "segments": self,
            # Nobody reads it; without one transformers would make a mask of [N, N].
            "attention_mask": torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.positions.device),
        }


def _bucket(rows: Sequence[int], lengths: Sequence[int], bounds: np.ndarray, device: torch.device) -> Bucket:
    width = max(lengths[row] for row in rows)
    tokens = np.concatenate([np.arange(bounds[row], bounds[row + 1]) for row in rows])
    places = np.concatenate([place * width + np.arange(lengths[row]) for place, row in enumerate(rows)])
    return Bucket(
        segments=tuple(rows),
        tokens=torch.from_numpy(tokens).to(device),
        places=torch.from_numpy(places).to(device),
        rows=len(rows),
        width=width,
    )


def read_packed(model: Any) -> None:
    """Let a causal language model, and copies made of it from now on, take packed rows.

    Raises:
        ConfigurationError: its attention cannot be replaced, or packed rows change its numbers; the model is left as
            it was.
    """
    if not packed_if_possible(model):
        raise ConfigurationError(
            "'runtime.layout' = 'packed' needs a model that reads rows end to end, and behind a shared prefix, as it "
            f"reads each of them whole, and {type(model).__name__} is none; set it to 'padded'"
        )


def packed_if_possible(model: Any) -> bool:
    """`read_packed` where the model's attention can be replaced, and whether it could; otherwise nothing changes."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(PACKED)
        possible = reads_packed(model) and _reads_alike(model)
    except Exception:  # models are of many hands, and each fails in its own way at what it does not know
        possible = False
    if not possible:
        model.set_attn_implementation(before)
    return possible


@torch.no_grad()
def _reads_alike(model: Any) -> bool:
    """Whether a packed row is read as it is alone, and the end of a row behind its kept beginning as in the whole row.

    Some models drop what they do not know on the way to their layers, others attend twice in a layer.
    """
    ids = torch.arange(1, 9, device=model.device)[None] % int(model.config.get_text_config().vocab_size)
    beginning, end = ids[:, :3], ids[:, 3:]
    decoder = model.get_decoder()

    def states(ids: torch.Tensor, segments: Segments | None = None) -> torch.Tensor:
        inputs = {} if segments is None else segments.inputs()
        return decoder(input_ids=ids, use_cache=False, **inputs).last_hidden_state  # type: ignore[no-any-return]

    alone, whole = states(end), states(ids)[:, 3:]
    packed = states(ids, Segments.of([3, 5], model.device))[:, 3:]
    prefix = replace(Segments.of([3], model.device), kept={})
    states(beginning, prefix)
    behind = states(end, Segments.of([5], model.device).following(prefix, [0]))
    # Whatever the precision, rounding is far less than what the tokens before it do to a row.
    most = 0.1 * (whole - alone).norm()
    return bool((packed - alone).norm() < most and (behind - whole).norm() < most)


def reads_packed(model: Any) -> bool:
    """Whether the model, its decoder or its backbone was switched to packed rows."""
    config = getattr(getattr(model, "backbone", model), "config", None)
    return getattr(config, "_attn_implementation", None) == PACKED


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    segments: Segments | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of each segment to itself, [1, h, N, d] to [1, N, h, d]; plain attention without segments.

    Values, and so what is returned, may be narrower than queries and keys, as in multi-head latent attention.

    Raises:
        ConfigurationError: a module attends a second time in a pass whose keys are kept.
    """
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    scale = kwargs.get("scaling")
    columns = [each[0].transpose(0, 1) for each in (query, key, value)]
    if segments.kept is not None:
        _keep(segments.kept, module, columns[1], columns[2])
    if _fits_kernel(columns) and segments.behind is None:
        return _by_kernel(columns, segments, scale)[None], None
    attended = columns[0].new_zeros((*columns[0].shape[:2], columns[2].shape[2]))
    for bucket, before in zip(segments.buckets, segments.behind or (None,) * len(segments.buckets), strict=True):
        query, key, value = (_padded(column, bucket) for column in columns)
        mask: torch.Tensor | None = None
        if before is not None:
            key, value, mask = _with_before(module, key, value, before)
        found = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        attended = attended.index_copy(0, bucket.tokens, _unpadded(found, bucket))
    return attended[None], None


def _keep(kept: Kept, module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor) -> None:
    if module in kept:
        raise ConfigurationError(
            f"{type(module).__name__} attends twice in a pass, expected once for rows that share a prefix under "
            "'runtime.layout' = 'packed'; set it to 'padded'"
        )
    kept[module] = key, value


def _with_before(
    module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, before: Before
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A bucket's keys and values behind what it follows, [rows, h, P + W, d]; who sees which, [rows, 1, W, P + W]."""
    key, value = (
        torch.cat([kept[before.tokens_BP].transpose(1, 2), own], dim=2)
        for kept, own in zip(before.kept[module], (key, value), strict=True)
    )
    width = key.shape[2] - before.there_BP.shape[1]
    causal_WW = torch.ones((width, width), dtype=torch.bool, device=key.device).tril()
    before_BWP = before.there_BP[:, None, None].expand(-1, 1, width, -1)
    return key, value, torch.cat([before_BWP, causal_WW.expand(len(key), 1, -1, -1)], dim=-1)


def _unpadded(block: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """A bucket's tokens [n, h, d] of [rows, h, W, d]: a causal query never looks at the padding on the right."""
    return block.transpose(1, 2).flatten(0, 1).index_select(0, bucket.places)


def _padded(column: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """A bucket's tokens of [N, h, d] as [rows, h, W, d]."""
    block = column.new_zeros((bucket.rows * bucket.width, *column.shape[1:]))
    block = block.index_copy(0, bucket.places, column.index_select(0, bucket.tokens))
    return block.unflatten(0, (bucket.rows, bucket.width)).transpose(1, 2)


def _fits_kernel(columns: Sequence[torch.Tensor]) -> bool:
    """On a GPU, in half precision, with values as wide as keys."""
    query, key, value = columns
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and key.shape[2] == value.shape[2]


def _by_kernel(columns: Sequence[torch.Tensor], segments: Segments, scale: float | None) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = columns
    longest = max(segments.lengths)
    return varlen_attn(  # type: ignore[return-value]
        query.contiguous(), key.contiguous(), value.contiguous(), segments.bounds, segments.bounds, longest, longest,
        scale=scale, window_size=(-1, 0), enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
