"""One token of many rows through a decoder of the Llama family, in a third of transformers' operations.

Small models spend a decoding step between operations, not in them. Here projections that read the same state are one
matrix, queries and keys are normalised and rotated together, and a query looks at its keys in two products. The
states are transformers' up to rounding. It is for one new token a row; prompts are read by transformers, and so is
everything of models that this file does not know or for which the copy of the projections would be large.

Shape letters: B rows, H hidden width, h query heads, g key-value heads, d width of a head, C keys.
"""

from __future__ import annotations

from typing import Any

import torch

from lecritique.rollout.cache import ForwardView

FAMILY = ("llama", "qwen2", "qwen3")
# Above so many weights an operation takes longer than what is around it, and the copy of the projections costs memory.
MOST_PARAMETERS = 1 << 28


def joined_decoder(decoder: Any) -> JoinedDecoder | None:
    """The decoder with its projections joined, as its weights are now; None where that is not for this decoder.

    Args:
        decoder: what `get_decoder` of a causal language model gives; all its layers attend to the whole sequence.
    """
    known = getattr(decoder.config, "model_type", None) in FAMILY
    if not known or sum(parameter.numel() for parameter in decoder.parameters()) > MOST_PARAMETERS:
        return None
    # An adapter, or whatever else stands in the place of a projection, would be passed over.
    plain = all(type(module) is torch.nn.Linear for name, module in decoder.named_modules() if name.endswith("_proj"))
    return JoinedDecoder(decoder) if plain else None


class JoinedDecoder:
    """A copy of a decoder's projections beside the decoder itself, whose embeddings and norms it reads."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._layers = [_Layer(layer, index) for index, layer in enumerate(decoder.layers)]

    def __call__(self, ids_B: torch.Tensor, positions_Bq: torch.Tensor, view: ForwardView) -> torch.Tensor:
        """Final hidden states [B, H] of one new token a row, whose keys and values go into the cache.

        Args:
            ids_B: the new tokens.
            positions_Bq: where they stand, [B, 1], or [1, 1] for all of them.
            view: of the cache, for one token a row.
        """
        states_BH = self._decoder.embed_tokens(ids_B)
        cos, sin = self._decoder.rotary_emb(states_BH, positions_Bq)  # [B, 1, d] or [1, 1, d]
        half = cos.shape[-1] // 2
        # x turned is x cos + (-second half, first half) sin; the minus goes into sin, and what is left is a rotation.
        signed_sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        mask = view.attention_mask(ids_B.device)
        for layer in self._layers:
            states_BH = layer(states_BH, cos, signed_sin, mask, view)
        return self._decoder.norm(states_BH)  # type: ignore[no-any-return]


class _Layer:
    """One layer: attention over the cache, then the gated MLP."""

    def __init__(self, layer: Any, index: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._index = index
        self._width = attention.head_dim
        self._scale = attention.scaling
        self._groups = attention.num_key_value_groups
        self._query_heads = attention.q_proj.out_features // self._width
        self._key_heads = attention.k_proj.out_features // self._width
        self._before_attention, self._before_mlp = layer.input_layernorm, layer.post_attention_layernorm
        self._qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self._gate_up = _joined(mlp.gate_proj, mlp.up_proj)
        self._o, self._down, self._activation = attention.o_proj, mlp.down_proj, mlp.act_fn
        self._head_weights, self._epsilon = None, 0.0
        if hasattr(attention, "q_norm"):
            self._head_weights = torch.cat(
                [
                    attention.q_norm.weight.detach().expand(self._query_heads, -1),
                    attention.k_norm.weight.detach().expand(self._key_heads, -1),
                ]
            )
            self._epsilon = attention.q_norm.variance_epsilon

    def __call__(
        self,
        states_BH: torch.Tensor,
        cos: torch.Tensor,
        signed_sin: torch.Tensor,
        mask: torch.Tensor | None,
        view: ForwardView,
    ) -> torch.Tensor:
        attended_BH = self._attended(self._before_attention(states_BH), cos, signed_sin, mask, view)
        states_BH = states_BH + self._o(attended_BH)
        gate, up = torch.nn.functional.linear(self._before_mlp(states_BH), *self._gate_up).chunk(2, dim=-1)
        return states_BH + self._down(self._activation(gate) * up)  # type: ignore[no-any-return]

    def _attended(
        self,
        states_BH: torch.Tensor,
        cos: torch.Tensor,
        signed_sin: torch.Tensor,
        mask: torch.Tensor | None,
        view: ForwardView,
    ) -> torch.Tensor:
        rows, turned = len(states_BH), self._query_heads + self._key_heads
        qkv = torch.nn.functional.linear(states_BH, *self._qkv).view(rows, -1, self._width)
        heads = qkv[:, :turned]
        if self._head_weights is not None:
            heads = self._normalised(heads)
        heads = heads * cos + heads.roll(self._width // 2, dims=-1) * signed_sin
        keys_BgCd, values_BgCd = view.update(heads[:, self._query_heads :, None], qkv[:, turned:, None], self._index)
        queries = heads[:, : self._query_heads].reshape(rows, self._key_heads, self._groups, self._width)
        scores = torch.matmul(queries, keys_BgCd.transpose(2, 3)) * self._scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        wide = torch.promote_types(scores.dtype, torch.float32)
        shares = torch.softmax(scores, dim=-1, dtype=wide).to(scores.dtype)
        return torch.matmul(shares, values_BgCd).reshape(rows, -1)

    def _normalised(self, heads: torch.Tensor) -> torch.Tensor:
        """RMS norm of each query and key, in float32 as transformers' own."""
        wide = heads.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return self._head_weights * wide.to(heads.dtype)


def _joined(*projections: torch.nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of several linear maps as one."""
    weight = torch.cat([each.weight.detach() for each in projections])
    if all(each.bias is None for each in projections):
        return weight, None
    biases = [each.weight.new_zeros(each.out_features) if each.bias is None else each.bias for each in projections]
    return weight, torch.cat([bias.detach() for bias in biases])
