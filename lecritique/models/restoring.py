"""Puts saved weights back into a model, and refuses those of another one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lecritique.core.errors import CheckpointError
from lecritique.models.ranks import laid_out_like


def restore_weights(model: torch.nn.Module, state: Mapping[str, torch.Tensor], *, role: str) -> None:
    """Load saved weights in place; the model is left as it was when they do not fit.

    Args:
        model: of the same architecture and precision; its weights may be shards.
        state: a state dict, whole or in shards.
        role: whose weights they are, for the message.

    Raises:
        CheckpointError: a name, shape or precision differs.
    """
    own = model.state_dict()
    for name in sorted(own.keys() | state.keys()):
        expected, saved = _described(own.get(name)), _described(state.get(name))
        if expected != saved:
            raise CheckpointError(f"the saved weights of the {role} have {saved} for '{name}', this run has {expected}")
    model.load_state_dict({name: laid_out_like(own[name], tensor) for name, tensor in state.items()})


def _described(tensor: torch.Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tuple(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}"
