"""Micro-batches of similar length, padded on the right.

With causal attention a real token never sees what stands to its right, so right padding needs no
attention mask and changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def micro_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Row indices split into micro-batches of at most `max_tokens` padded tokens, longest rows first.

    A row longer than `max_tokens` gets a micro-batch of its own. The split depends on the lengths
    alone, so it is the same in every run.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    for index in order:
        # The first row of a batch is its longest, so it sets the padded width.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def padded(rows: Sequence[NDArray[Any]], *, fill: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows of different length as one tensor [B, L], filled on the right."""
    width = max(len(row) for row in rows)
    block = np.full((len(rows), width), fill, dtype=np.result_type(*(row.dtype for row in rows)))
    for index, row in enumerate(rows):
        block[index, : len(row)] = row
    return torch.from_numpy(block).to(device=device, dtype=dtype)
