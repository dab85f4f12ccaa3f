"""Activation checkpointing: a layer keeps what goes into it, and computes the rest again for the gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from lecritique.core.errors import ConfigurationError


def recompute_activations(model: Any) -> None:
    """Let every layer of a transformer compute its activations again, in place; once is enough.

    Raises:
        ConfigurationError: the model does not say what its layers are.
    """
    for layer in decoder_layers(model):
        if "forward" not in vars(layer):
            # A plain attribute: a wrapping module would rename every weight.
            layer.forward = partial(_recomputed, layer.forward)


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The layers of a transformer, by what it says must not be split between devices.

    Raises:
        ConfigurationError: it says nothing.
    """
    names = {name for module in model.modules() for name in (getattr(module, "_no_split_modules", None) or ())}
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ConfigurationError(
            f"a model of the class {type(model).__name__} does not name its layers, so they cannot be told apart: "
            "'runtime.ranks' must be 1 and 'runtime.recompute_activations' false."
        )
    return layers


def _recomputed(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
