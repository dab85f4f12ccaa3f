"""How many numbers an adapter has, from the sizes of the model alone."""

from __future__ import annotations

from lecritique.config.adapters import Lora
from lecritique.planning.shapes import ModelShape


def adapter_parameters(lora: Lora, shape: ModelShape) -> int:
    """Numbers of A and B over all layers: rank times the width of each map's input and output.

    A map that goes by another name than in the Llama and Qwen families counts as one from width to width. Layers
    without full attention count as if they had it.
    """
    queries, keys = shape.heads * shape.head_width, shape.key_value_heads * shape.head_width
    hidden, inner = shape.hidden, shape.intermediate
    widths = {
        "q_proj": hidden + queries,
        "k_proj": hidden + keys,
        "v_proj": hidden + keys,
        "o_proj": queries + hidden,
        "gate_proj": hidden + inner,
        "up_proj": hidden + inner,
        "down_proj": inner + hidden,
    }
    return shape.layers * lora.rank * sum(widths.get(name, 2 * hidden) for name in lora.target_modules)
