"""Puts saved weights back into a model, and refuses those of another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lecritique.config.adapters import Lora
from lecritique.core.errors import CheckpointError
from lecritique.models.adapters import adapted, frozen_digest, load_own_weights, merged, own_weights
from lecritique.models.ranks import laid_out_like
from lecritique.models.value_model import ValueModel


def restore_weights(model: torch.nn.Module, state: Mapping[str, torch.Tensor], *, role: str) -> None:
    """Load saved weights in place; the model is left as it was when they do not fit.

    Args:
        model: of the same architecture and precision; its weights may be shards.
        state: its own weights (`adapters.own_weights`), whole or in shards.
        role: whose weights they are, for the message.

    Raises:
        CheckpointError: a name, shape or precision differs.
    """
    own = own_weights(model)
    for name in sorted(own.keys() | state.keys()):
        expected, saved = _described(own.get(name)), _described(state.get(name))
        if expected != saved:
            raise CheckpointError(f"the saved weights of the {role} have {saved} for '{name}', this run has {expected}")
    load_own_weights(model, {name: laid_out_like(own[name], tensor) for name, tensor in state.items()})


def restore_trained(model: Any, saved: Mapping[str, Any], lora: Lora | None, *, role: str) -> None:
    """Load what a trainer has saved into a plain model in place, an adapter merged into its weights.

    Args:
        model: a causal language model or a value model, with the weights under the adapter where there is one.
        saved: the trainer's `state()`.
        lora: the adapter that was trained, None when all weights were.
        role: whose weights they are, for the message.

    Raises:
        CheckpointError: a name, shape or precision differs, or the adapter was trained on other weights.
        ConfigurationError: peft is not installed.
    """
    if lora is None:
        restore_weights(model, saved["weights"], role=role)
        return
    tree = model.with_adapter(lora, seed=0) if isinstance(model, ValueModel) else adapted(model, lora, seed=0)
    require_same_base(tree, saved.get("frozen"), role=role)
    restore_weights(tree, saved["weights"], role=role)
    model.load_state_dict(merged(tree).state_dict())


def require_same_base(model: Any, saved: str | None, *, role: str) -> None:
    """Raise CheckpointError unless the weights under a model's adapter are those that a saved one was trained on.

    Args:
        model: with an adapter or without.
        saved: the digest in the checkpoint, None without an adapter.
        role: whose weights they are, for the message.
    """
    own = frozen_digest(model)
    if own != saved:
        raise CheckpointError(
            f"the saved {role} has {_base(saved)}, this run's has {_base(own)}: an adapter means nothing on other "
            "weights than those it was trained on."
        )


def _base(digest: str | None) -> str:
    return "no adapter" if digest is None else f"an adapter on weights with the digest {digest}"


def _described(tensor: torch.Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tuple(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}"
