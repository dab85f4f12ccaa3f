"""Tensors in shards made whole on one process, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from lecritique.models.ranks import whole


def gathered(tree: Any, *, keep: bool) -> Any:
    """The tree with every tensor whole and on the CPU; tensors that share their memory still do.

    All processes call it at the same time with trees of one form. A single weight is whole at a time on its device.

    Args:
        tree: of mappings, lists and tuples; what is no tensor is left as it is.
        keep: whether this process wants the tensors; where it does not, None stands for each.
    """
    tied: dict[tuple[Any, ...], torch.Tensor] = {}

    def walked(node: Any) -> Any:
        if isinstance(node, torch.Tensor):
            full = whole(node.detach())  # on every process, also of tied tensors: who holds what differs
            return tied.setdefault(memory_of(node), full.cpu()) if keep else None
        if isinstance(node, Mapping):
            return {key: walked(below) for key, below in node.items()}
        if isinstance(node, list | tuple):
            return [walked(below) for below in node]
        return node

    return walked(tree)


def memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The same of tensors that share their memory and of no others."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if not local.numel():
        return (id(tensor),)
    return (local.data_ptr(), local.dtype, tuple(tensor.shape), local.stride())
