"""What a trainer needs of the processes that train one model together, and the one that trains alone.

A batch is known to all of them whole, with its global denominators; each reads its own rows, so the losses and
gradients of all sum up to those of one process. How weights lie on them is no business of the trainers
(`lecritique/distributed/`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.models.packing import micro_batches
from lecritique.models.scoring import TokenRow, logprobs, values
from lecritique.models.value_model import ValueModel

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Ranks(Protocol):
    """Processes that step in time: each calls the same methods in the same order."""

    def micro_batches(self, lengths: Sequence[int], *, max_tokens: int, packed: bool = False) -> list[list[int]]:
        """Row indices of this process's micro-batches; an empty one where it only keeps step with another."""
        ...

    def run(
        self,
        model: Any,
        function: Callable[Concatenate[Any, Given], Answer],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Answer:
        """`function(model, ...)` while all weights that it reads are whole; every forward pass goes through here."""
        ...

    def logprobs(
        self, model: Any, rows: Sequence[TokenRow], *, temperature: float, max_tokens: int
    ) -> list[NDArray[np.float64]]:
        """Log-probs of all rows' wanted tokens in nats, without gradient, on every process."""
        ...

    def values(self, model: ValueModel, rows: Sequence[TokenRow], *, max_tokens: int) -> list[NDArray[np.float64]]:
        """Values of all rows' wanted tokens in reward units, without gradient, on every process."""
        ...

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes."""
        ...

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over the processes."""
        ...


class Alone:
    """One process with whole weights."""

    def micro_batches(self, lengths: Sequence[int], *, max_tokens: int, packed: bool = False) -> list[list[int]]:
        """All rows."""
        return micro_batches(lengths, max_tokens=max_tokens, packed=packed)

    def run(
        self,
        model: Any,
        function: Callable[Concatenate[Any, Given], Answer],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Answer:
        """The function's own answer."""
        return function(model, *args, **kwargs)

    def logprobs(
        self, model: Any, rows: Sequence[TokenRow], *, temperature: float, max_tokens: int
    ) -> list[NDArray[np.float64]]:
        """`scoring.logprobs`."""
        return logprobs(model, rows, temperature=temperature, max_tokens=max_tokens)

    def values(self, model: ValueModel, rows: Sequence[TokenRow], *, max_tokens: int) -> list[NDArray[np.float64]]:
        """`scoring.values`."""
        return values(model, rows, max_tokens=max_tokens)

    def sums(self, values: Sequence[float]) -> list[float]:
        """The values."""
        return list(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The values."""
        return list(values)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or what the shards of all processes make up: all of them have to ask."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


def laid_out_like(own: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """`saved` cut into shards as `own` is, where it is and `saved` is not; each process knows all of `saved`."""
    mesh = getattr(own, "device_mesh", None)
    if mesh is None or getattr(saved, "device_mesh", None) is not None:
        return saved
    from torch.distributed.tensor import distribute_tensor

    # From what each process has read itself: nothing is sent.
    return distribute_tensor(saved.to(own.device), mesh, own.placements, src_data_rank=None)  # type: ignore[attr-defined]
