"""The size of a decoder, as an estimate of its arithmetic needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lecritique.models.value_model import ValueModel
from lecritique.numerics.flops import forward_flops, training_flops


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Weights that multiply, and heads times their width summed over the layers.

    `frozen` of the parameters take no gradient.
    """

    parameters: int
    attention_width: int
    frozen: int = 0

    def forward(self, tokens: int, pairs: int) -> int:
        """FLOPs of reading."""
        return forward_flops(tokens, pairs, parameters=self.parameters, attention_width=self.attention_width)

    def training(self, tokens: int, pairs: int) -> int:
        """FLOPs of reading and taking gradients: through frozen weights, but not with respect to them."""
        everything = training_flops(tokens, pairs, parameters=self.parameters, attention_width=self.attention_width)
        return everything - forward_flops(tokens, 0, parameters=self.frozen, attention_width=self.attention_width)


def policy_size(model: Any) -> ModelSize:
    """Of a causal language model. A table that is embedding and output layer at once counts as the output layer."""
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    looked_up = None if output is embedding else embedding
    return _size(model, looked_up, model.config)


def value_size(model: ValueModel) -> ModelSize:
    """Of a critic, its head included."""
    backbone: Any = model.backbone
    return _size(model, backbone.get_input_embeddings().weight, backbone.config)


def _size(model: Any, looked_up: Any, config: Any) -> ModelSize:
    """Of all parameters but a table that is only looked up."""
    multiply = [weight for weight in model.parameters() if weight is not looked_up]
    return ModelSize(
        parameters=sum(weight.numel() for weight in multiply),
        attention_width=_attention_width(config.get_text_config()),
        frozen=sum(weight.numel() for weight in multiply if not weight.requires_grad),
    )


def _attention_width(config: Any) -> int:
    heads = int(config.num_attention_heads)
    own = getattr(config, "head_dim", None)
    return int(config.num_hidden_layers) * heads * (int(own) if own else int(config.hidden_size) // heads)
