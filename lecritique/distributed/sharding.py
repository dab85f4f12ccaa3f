"""Cuts a model into shards, one on each process: torch's FSDP2, layer by layer.

Every process keeps its part of each weight, of its gradient and of its moments. A layer's weights are brought together
right before they are read and dropped after; gradients are summed and cut as they arise. What is kept and summed is in
the model's own precision, what is computed may be in bfloat16.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from lecritique.models.recomputation import decoder_layers, recompute_activations
from lecritique.models.value_model import ValueModel

# The method under which a sharded model runs any function of itself.
APPLIED = "applied_to_whole_weights"


def shard(model: Any, mesh: DeviceMesh, *, compute_dtype: torch.dtype | None = None, recompute: bool = False) -> None:
    """Shard a policy or a value model in place, before its optimizer is made.

    Args:
        model: with the same weights on every process.
        mesh: one dimension, all processes.
        compute_dtype: precision of forward and backward passes; None is that of the weights. Weights, gradient sums
            and moments keep their own, and so does a value head altogether.
        recompute: keep only what goes into each layer, and compute the rest again for the gradient.

    Raises:
        ConfigurationError: the model does not say what its layers are.
    """
    master = next(model.parameters()).dtype
    policy = (
        MixedPrecisionPolicy()
        if compute_dtype is None
        else MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=master)
    )
    if recompute:
        recompute_activations(model)
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if isinstance(model, ValueModel):
        fully_shard(model.head, mesh=mesh)
    root = fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # The denominators of the losses are global: gradients are summed, where FSDP would average them.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    setattr(root, APPLIED, types.MethodType(_applied, root))
    register_fsdp_forward_method(root, APPLIED)


def _applied(model: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    answer = function(model, *args, **kwargs)
    # A view would let an operation in place slip past FSDP, which warns of every one.
    return answer.clone() if isinstance(answer, torch.Tensor) else answer
