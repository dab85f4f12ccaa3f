"""What is measured: a model's shape with random weights, and a batch of rollouts in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lecritique.config.load import Recipe, compose
from lecritique.config.schema import RunConfig
from lecritique.planning.facts import resolved_without_loading
from lecritique.planning.shapes import KNOWN, ModelShape, shape_from

TINY = {
    **KNOWN["Qwen/Qwen3-0.6B"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512,
    "max_position_embeddings": 1024,
}  # fmt: skip
GROUP = 4


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch: `rows` rollouts in groups of 4, each of a prompt and as many sampled tokens as are asked for."""

    name: str
    sizes: Any
    dtype: str
    rows: int
    prompt_tokens: int
    new_tokens: int
    micro_batch_tokens: int

    @property
    def length(self) -> int:
        """Tokens of a row."""
        return self.prompt_tokens + self.new_tokens

    @property
    def shape(self) -> ModelShape:
        """Sizes as the planner reads them."""
        return shape_from(self.sizes, name=self.name, source="tests/gpu")

    def config(self, device: str) -> RunConfig:
        """The configuration that the roles are built from and memory is estimated for."""
        tree = {
            "task": {"type": "sudoku", "size": 4},
            "estimator": {"type": "value"},
            "sampling": {"max_turn_tokens": self.new_tokens, "max_total_tokens": self.length},
            "rollout": {"batch_size": self.rows, "group_size": GROUP},
            "critic": {"context": {"type": "none"}},
            "runtime": {
                "loop": "synchronous", "dtype": self.dtype, "device": device, "decode_rows": self.rows,
                "micro_batch_tokens": self.micro_batch_tokens,
            },
        }  # fmt: skip
        recipe = Recipe(name="gpu", text="", tree=tree, arms={}, default_arm=None)
        return resolved_without_loading(compose(recipe), self.shape, device=device)

    def model(self, device: str, *, dtype: str | None = None, seed: int = 0) -> Any:
        """Random weights, made where they stay."""
        torch.manual_seed(seed)
        sizes = {key: value for key, value in self.sizes.items() if key != "model_type"}
        config = AutoConfig.for_model(self.sizes["model_type"], **sizes)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, dtype or self.dtype), attn_implementation="sdpa"
            )
        return model.eval()


# On a GPU: about half a minute for the smaller one and two minutes for the larger one.
FULL = (
    Workload(
        name="0.6B", sizes=KNOWN["Qwen/Qwen3-0.6B"], dtype="bfloat16", rows=128, prompt_tokens=256, new_tokens=512,
        micro_batch_tokens=16384,
    ),
    Workload(
        name="4B", sizes=KNOWN["Qwen/Qwen3-4B"], dtype="bfloat16", rows=128, prompt_tokens=256, new_tokens=256,
        micro_batch_tokens=4096,
    ),
)  # fmt: skip
SMALL = (
    Workload(
        name="tiny", sizes=TINY, dtype="bfloat16", rows=8, prompt_tokens=12, new_tokens=12, micro_batch_tokens=128
    ),
)
