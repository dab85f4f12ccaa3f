"""Which rows are read in one forward pass, and how: padded on the right, or laid end to end.

With causal attention a real token never sees what stands to its right, so right padding needs no
attention mask and changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# Of padded passes, and of what attention pads in packed ones (benchmarks/fast_path.py has the sums). No bound for every
# batch: holding padding under 5% by more passes cost small batches an eighth to a half more seconds than it saved.
# A row joins longer ones if so little of it is padding, half of that on average,
MOST_PADDING = 0.08
# or if they hold so little padding together that a forward pass more would cost a CPU as much.
FREE_PADDING_TOKENS = 32


def micro_batches(lengths: Sequence[int], *, max_tokens: int, packed: bool = False) -> list[list[int]]:
    """Row indices split into micro-batches of at most `max_tokens` tokens, longest rows first.

    A row longer than `max_tokens` gets a micro-batch of its own. The split depends on the lengths
    alone, so it is the same in every run.

    Args:
        lengths: tokens of each row.
        max_tokens: padding included.
        packed: rows are laid end to end, without padding; otherwise those of a micro-batch are of similar length.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    used = padding = 0
    for index in order:
        # The first row of a batch is its longest, so it sets the padded width.
        width = lengths[index] if packed or not batches else lengths[batches[-1][0]]
        joins = bool(batches) and used + width <= max_tokens
        if joins and (packed or similar(lengths[index], width, padding)):
            batches[-1].append(index)
            used, padding = used + width, padding + width - lengths[index]
        else:
            batches.append([index])
            used, padding = lengths[index], 0
    return batches


def similar(length: int, width: int, padding: int) -> bool:
    """Whether a row may be padded to `width` beside rows that already hold so much padding."""
    return width - length <= MOST_PADDING * width or padding + width - length <= FREE_PADDING_TOKENS


def buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of similar length together, without a limit on how many."""
    return micro_batches(lengths, max_tokens=sum(lengths) * len(lengths) + 1)


def padded(rows: Sequence[NDArray[Any]], *, fill: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows of different length as one tensor [B, L], filled on the right."""
    width = max(len(row) for row in rows)
    block = np.full((len(rows), width), fill, dtype=np.result_type(*(row.dtype for row in rows)))
    for index, row in enumerate(rows):
        block[index, : len(row)] = row
    return torch.from_numpy(block).to(device=device, dtype=dtype)
