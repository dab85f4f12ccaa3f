"""Processes that train one model together (`models/ranks.py`), over torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.fsdp import FSDPModule

from lecritique.distributed.sharding import APPLIED
from lecritique.models.packing import micro_batches
from lecritique.models.ranks import Answer, Given
from lecritique.models.scoring import MicroBatch, TokenRow, action_logprobs, action_value_outputs, in_micro_batches
from lecritique.models.value_model import ValueModel


class Together:
    """This process among all of the group that `groups.process_group` opened.

    Args:
        device: what this process computes on.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = device

    def micro_batches(self, lengths: Sequence[int], *, max_tokens: int, packed: bool = False) -> list[list[int]]:
        """This process's own, as many as every other has: a forward pass brings all of them together."""
        return micro_batches_of(lengths, max_tokens=max_tokens, ranks=self.size, packed=packed)[self.rank]

    def run(
        self,
        model: Any,
        function: Callable[Concatenate[Any, Given], Answer],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Answer:
        """`function(model, ...)`, the weights outside of layers brought together before it."""
        if not isinstance(model, FSDPModule):
            return function(model, *args, **kwargs)
        return getattr(model, APPLIED)(function, *args, **kwargs)  # type: ignore[no-any-return]

    def logprobs(
        self, model: Any, rows: Sequence[TokenRow], *, temperature: float, max_tokens: int
    ) -> list[NDArray[np.float64]]:
        """Each process reads its own rows, whole; then all know all."""
        return self._shared(model, partial(action_logprobs, temperature=temperature), rows, max_tokens=max_tokens)

    def values(self, model: ValueModel, rows: Sequence[TokenRow], *, max_tokens: int) -> list[NDArray[np.float64]]:
        """Likewise."""
        return self._shared(model, _action_values, rows, max_tokens=max_tokens)

    @torch.no_grad()
    def _shared(
        self, model: Any, function: Callable[..., torch.Tensor], rows: Sequence[TokenRow], *, max_tokens: int
    ) -> list[NDArray[np.float64]]:
        """`function(model, micro-batch)` of each process's own rows, put together in the order of `rows`."""
        counts = [int(row.mask.sum()) for row in rows]
        ends = np.cumsum(counts)
        flat = torch.zeros(int(ends[-1]) if counts else 0, dtype=torch.float64)
        for batch in in_micro_batches(model, rows, max_tokens=max_tokens, split=self.micro_batches):
            read_N = self.run(model, function, batch).double().cpu()
            pieces = torch.split(read_N, [counts[index] for index in batch.indices])
            for index, piece in zip(batch.indices, pieces, strict=True):
                flat[ends[index] - counts[index] : ends[index]] = piece
        # All others have zeros where one has its own: the sum is exact.
        return np.split(self._reduced(flat, dist.ReduceOp.SUM).numpy(), ends[:-1])

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed, in float64."""
        return self._reduced(torch.tensor(list(values), dtype=torch.float64), dist.ReduceOp.SUM).tolist()

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each, in float64."""
        return self._reduced(torch.tensor(list(values), dtype=torch.float64), dist.ReduceOp.MAX).tolist()

    def told(self, text: str | None) -> str:
        """Rank 0's text on every process; the others say None."""
        if (text is None) != bool(self.rank):
            raise ValueError("rank 0 tells and the other ranks listen")
        data = torch.tensor(list((text or "").encode()), dtype=torch.uint8)
        size = torch.tensor([len(data)], device=self.device)
        dist.broadcast(size, src=0)
        there = torch.empty(int(size), dtype=torch.uint8, device=self.device) if self.rank else data.to(self.device)
        dist.broadcast(there, src=0)
        return bytes(there.cpu().tolist()).decode()

    def _reduced(self, column: torch.Tensor, how: Any) -> torch.Tensor:
        there = column.to(self.device)
        dist.all_reduce(there, op=how)
        return there.cpu()


def _action_values(model: ValueModel, batch: MicroBatch) -> torch.Tensor:
    """Values before the wanted tokens, [N]."""
    return model.values_of(action_value_outputs(model, batch))


def shared_out(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Row indices of each process; all read about the same number of tokens: longest first, to who has least."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        to = loads.index(min(loads))
        shares[to].append(index)
        loads[to] += lengths[index]
    return shares


def micro_batches_of(
    lengths: Sequence[int], *, max_tokens: int, ranks: int, packed: bool = False
) -> list[list[list[int]]]:
    """Micro-batches of each process; those of the shorter lists are filled up with empty ones."""
    every = [
        [
            [share[place] for place in batch]
            for batch in micro_batches([lengths[i] for i in share], max_tokens=max_tokens, packed=packed)
        ]
        for share in shared_out(lengths, ranks)
    ]
    most = max(len(batches) for batches in every)
    return [batches + [[]] * (most - len(batches)) for batches in every]
