"""The size of a decoder, as an estimate of its arithmetic needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lecritique.models.value_model import ValueModel
from lecritique.numerics.flops import forward_flops, training_flops


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Weights that multiply, and heads times their width summed over the layers."""

    parameters: int
    attention_width: int

    def forward(self, tokens: int, pairs: int) -> int:
        """FLOPs of reading."""
        return forward_flops(tokens, pairs, parameters=self.parameters, attention_width=self.attention_width)

    def training(self, tokens: int, pairs: int) -> int:
        """FLOPs of reading and taking gradients."""
        return training_flops(tokens, pairs, parameters=self.parameters, attention_width=self.attention_width)


def policy_size(model: Any) -> ModelSize:
    """Of a causal language model. A table that is embedding and output layer at once counts as the output layer."""
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    looked_up = 0 if output is embedding else embedding.numel()
    return ModelSize(
        parameters=_parameters(model) - looked_up, attention_width=_attention_width(model.config.get_text_config())
    )


def value_size(model: ValueModel) -> ModelSize:
    """Of a critic, its head included."""
    backbone: Any = model.backbone
    return ModelSize(
        parameters=_parameters(model) - backbone.get_input_embeddings().weight.numel(),
        attention_width=_attention_width(backbone.config.get_text_config()),
    )


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _attention_width(config: Any) -> int:
    heads = int(config.num_attention_heads)
    own = getattr(config, "head_dim", None)
    return int(config.num_hidden_layers) * heads * (int(own) if own else int(config.hidden_size) // heads)
