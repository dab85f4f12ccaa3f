"""Sequences laid end to end in one row, [1, N]: every layer but attention reads no padding.

A model is switched to `PACKED` once (`read_packed`); it then takes a `Segments` with each packed pass, and without
one attends as before. What the segments attend to is up to the device: on GPUs in half precision torch's kernel for
sequences of different length; elsewhere attention alone pads, bucket by bucket.

Shape letters: N packed tokens, S segments, W width of a bucket, h heads, d width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lecritique.core.errors import ConfigurationError
from lecritique.models.packing import buckets

PACKED = "lecritique_packed"


@dataclass(frozen=True, kw_only=True, eq=False)
class Bucket:
    """Segments of similar length; token n of them stands at `places`[n] of their padded block [rows, width]."""

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

    def inputs(self) -> dict[str, Any]:
        """What a model that was switched to `PACKED` is given beside the ids."""
        return {
            "position_ids": self.positions,
            "segments": self,
            # Nobody reads it; without one transformers would make a mask of [N, N].
            "attention_mask": self.positions.new_zeros((1, 1, 1, 1)),
        }


def _bucket(rows: Sequence[int], lengths: Sequence[int], bounds: np.ndarray, device: torch.device) -> Bucket:
    width = max(lengths[row] for row in rows)
    tokens = np.concatenate([np.arange(bounds[row], bounds[row + 1]) for row in rows])
    places = np.concatenate([place * width + np.arange(lengths[row]) for place, row in enumerate(rows)])
    return Bucket(
        tokens=torch.from_numpy(tokens).to(device),
        places=torch.from_numpy(places).to(device),
        rows=len(rows),
        width=width,
    )


def read_packed(model: Any) -> None:
    """Let a causal language model, and copies made of it from now on, take packed rows.

    Raises:
        ConfigurationError: its attention cannot be replaced.
    """
    model.set_attn_implementation(PACKED)
    if not reads_packed(model):
        raise ConfigurationError(
            f"'runtime.layout' = 'packed' needs a model whose attention transformers can replace, and "
            f"{type(model).__name__} is none; set it to 'padded'"
        )


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
    """Causal attention of each segment to itself, [1, h, N, d] to [1, N, h, d]; plain attention without segments."""
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    scale = kwargs.get("scaling")
    columns = [each[0].transpose(0, 1) for each in (query, key, value)]
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _by_kernel(columns, segments, scale)[None], None
    attended = torch.zeros_like(columns[0])
    for bucket in segments.buckets:
        attended = attended.index_copy(0, bucket.tokens, _in_bucket(columns, bucket, scale))
    return attended[None], None


def _in_bucket(columns: Sequence[torch.Tensor], bucket: Bucket, scale: float | None) -> torch.Tensor:
    """Attention of a bucket's tokens [n, h, d]: padded on the right, where a causal query never looks."""
    query, key, value = (_padded(column, bucket) for column in columns)
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return found.transpose(1, 2).flatten(0, 1).index_select(0, bucket.places)


def _padded(column: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """A bucket's tokens of [N, h, d] as [rows, h, W, d]."""
    block = column.new_zeros((bucket.rows * bucket.width, *column.shape[1:]))
    block = block.index_copy(0, bucket.places, column.index_select(0, bucket.tokens))
    return block.unflatten(0, (bucket.rows, bucket.width)).transpose(1, 2)


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
