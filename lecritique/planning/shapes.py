"""The sizes of a model, from its config.json where that is on this machine, else from a table of known models.

Nothing is downloaded and no weight is read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lecritique.core.errors import ConfigurationError

_BUNDLED = Path(__file__).parents[1] / "models"
_QWEN3 = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True}
# What the published config.json of each says, as far as sizes go. The embeddings of OLMo 3 are in its tokenizer's size.
KNOWN: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen3-0.6B": {
        **_QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "max_position_embeddings": 40960,
    },
    "Qwen/Qwen3-4B": {
        **_QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 40960,
    },
    "Qwen/Qwen3-4B-Instruct-2507": {
        **_QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 262144,
    },
    "Qwen/Qwen3.5-4B": {
        "model_type": "qwen3_5_text", "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
        "tie_word_embeddings": True, "max_position_embeddings": 262144,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8, "linear_num_key_heads": 16,
        "linear_key_head_dim": 128, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
    "allenai/Olmo-3-7B-Instruct-DPO": {
        "model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100278, "tie_word_embeddings": False,
        "max_position_embeddings": 65536, "sliding_window": 4096,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    },
}  # fmt: skip
# A size above this, or a number of layers above the second, is no size of a model.
_MOST = (1 << 31, 10_000)
_SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a dense decoder. `layer_types` has one entry a layer; `window` is in tokens, 0 without one."""

    name: str
    source: str
    parameters: int
    embedding_parameters: int
    hidden: int
    intermediate: int
    layer_types: tuple[str, ...]
    heads: int
    key_value_heads: int
    head_width: int
    vocabulary: int
    context_length: int
    window: int = 0
    tied: bool = True
    family: str = ""
    """`model_type` of config.json, as far as it is known."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.layer_types)

    @property
    def backbone_parameters(self) -> int:
        """Parameters of what a critic is made from: without an output layer of its own."""
        return self.parameters - (0 if self.tied else self.embedding_parameters)

    @property
    def trunk_parameters(self) -> int:
        """Parameters of the layers alone, without embeddings and output layer."""
        return self.parameters - self.embedding_parameters * (1 if self.tied else 2)

    @property
    def partial_layers(self) -> tuple[str, ...]:
        """Kinds of layers that do not attend to the whole sequence."""
        return tuple(sorted(set(self.layer_types) - {"full_attention"}))

    def cache_numbers(self, length: int) -> int:
        """Numbers that the keys and values of one row of `length` tokens hold, over all layers."""
        return int(self.attended_in_all_layers(length)) * 2 * self.key_value_heads * self.head_width

    def attended_in_all_layers(self, context: float) -> float:
        """Tokens that one behind `context` others looks at, summed over layers; linear attention keeps none."""
        kinds = self._layers_of_a_kind
        windowed = min(context, self.window or context)
        return kinds["full_attention"] * context + kinds["sliding_attention"] * windowed

    @cached_property
    def _layers_of_a_kind(self) -> Counter[str]:
        return Counter(self.layer_types)


def shape_of(name: str) -> ModelShape:
    """The sizes of a model by name.

    Args:
        name: as `model.name`.

    Raises:
        ConfigurationError: neither here nor known, or not a dense decoder with the usual keys.
    """
    path = _local_config(name) if name.strip() else None
    if path is not None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"'{path}' cannot be read as JSON: {error}.") from error
        if not isinstance(found, dict):
            raise ConfigurationError(f"'{path}' holds {type(found).__name__}, expected a JSON object.")
        nested = found.get("text_config")
        if isinstance(nested, dict):
            found = {**found, **nested}
        return shape_from(found, name=name, source=f"{path.name} of '{path.parent}'")
    if name in KNOWN:
        return shape_from(KNOWN[name], name=name, source="the table of known models")
    raise ConfigurationError(
        f"the sizes of model '{name}' are not known here: give a folder with its config.json, or one of "
        f"{', '.join(KNOWN)}."
    )


def is_here(name: str) -> bool:
    """Whether a model's configuration, and so in all likelihood the model, is on this machine."""
    return bool(name.strip()) and _local_config(name) is not None


def shape_from(config: Mapping[str, Any], *, name: str, source: str) -> ModelShape:
    """The sizes that a config.json says.

    Raises:
        ConfigurationError: a size is missing or no whole number above 0, or the model is a mixture of experts.
    """
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(key):
            raise ConfigurationError(f"model '{name}' is a mixture of experts ('{key}'); only dense ones are planned.")
    sizes = {key: _size(config, key, name) for key in _SIZES}
    hidden, heads, layers = sizes["hidden_size"], sizes["num_attention_heads"], sizes["num_hidden_layers"]
    kv_heads = _size(config, "num_key_value_heads", name) if config.get("num_key_value_heads") else heads
    width = _size(config, "head_dim", name) if config.get("head_dim") else hidden // heads
    kinds = _kinds(config, layers, name)
    tied, vocabulary = bool(config.get("tie_word_embeddings", False)), sizes["vocab_size"]
    embedding = vocabulary * hidden
    total = embedding * (1 if tied else 2) + hidden + _mlp_parameters(layers, hidden, sizes["intermediate_size"])
    kind = str(config.get("model_type", ""))
    for layer in kinds:
        total += 2 * hidden  # norms
        total += (
            _linear_attention_parameters(config, hidden, name)
            if layer == "linear_attention"
            else _attention_parameters(kind, bool(config.get("attention_bias")), hidden, heads, kv_heads, width)
        )
    window = int(config.get("sliding_window") or 0) if "sliding_attention" in kinds else 0
    return ModelShape(
        name=name,
        source=source,
        parameters=total,
        embedding_parameters=embedding,
        hidden=hidden,
        intermediate=sizes["intermediate_size"],
        layer_types=kinds,
        heads=heads,
        key_value_heads=kv_heads,
        head_width=width,
        vocabulary=vocabulary,
        context_length=sizes["max_position_embeddings"],
        window=window,
        tied=tied,
        family=kind,
    )


def _local_config(name: str) -> Path | None:
    """Where the model's config.json lies on this machine; None when it does not."""
    bundled = _BUNDLED / name.replace("-", "_") / "config.json"  # found by its place: models/ loads torch
    if re.fullmatch(r"[\w-]+", name) and bundled.is_file():
        return bundled
    path = Path(name).expanduser() / "config.json"
    if path.is_file():
        return path
    from huggingface_hub import try_to_load_from_cache  # comes with transformers; asks the disk alone
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None


def _size(config: Mapping[str, Any], key: str, name: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST[key == "num_hidden_layers"]:
        raise ConfigurationError(
            f"model '{name}': config.json has '{key}' = {value!r:.100}, expected a whole number of a model's size."
        )
    return value


def _kinds(config: Mapping[str, Any], layers: int, name: str) -> tuple[str, ...]:
    kinds = config.get("layer_types") or ["full_attention"] * layers
    if not isinstance(kinds, Sequence) or isinstance(kinds, str) or len(kinds) != layers:
        raise ConfigurationError(f"model '{name}': 'layer_types' of config.json must have {layers} entries.")
    return tuple(str(kind) for kind in kinds)


def _mlp_parameters(layers: int, hidden: int, intermediate: int) -> int:
    return layers * 3 * hidden * intermediate


def _attention_parameters(kind: str, bias: bool, hidden: int, heads: int, kv_heads: int, width: int) -> int:
    """Projections of queries, keys, values and output, with what the architecture adds to them."""
    queries, keys = heads * width, kv_heads * width
    total = 2 * hidden * queries + 2 * hidden * keys
    if bias or kind == "qwen2":
        total += queries + 2 * keys + (0 if kind == "qwen2" else hidden)
    if kind.startswith("qwen3"):
        total += 2 * width  # norms of queries and keys, one for all heads
    elif kind.startswith("olmo"):
        total += queries + keys
    if kind.startswith("qwen3_5"):
        total += hidden * queries  # the gate of the output
    return total


def _linear_attention_parameters(config: Mapping[str, Any], hidden: int, name: str) -> int:
    """A gated delta layer as in Qwen3.5."""
    keys = _size(config, "linear_num_key_heads", name) * _size(config, "linear_key_head_dim", name)
    value_heads, value_width = (_size(config, f"linear_{key}", name) for key in ("num_value_heads", "value_head_dim"))
    values, mixed = value_heads * value_width, 2 * keys + value_heads * value_width
    projections = hidden * (mixed + values + 2 * value_heads) + values * hidden
    return projections + mixed * _size(config, "linear_conv_kernel_dim", name) + 2 * value_heads + value_width
