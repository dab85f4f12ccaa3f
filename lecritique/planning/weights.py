"""How many numbers of a run's models train and how many lie frozen, and the bytes of each.

A process that trains alone holds what trains with its gradient and AdamW's two moments in `runtime.dtype`. Several
that train together hold these in shards that are float32 or wider, frozen weights too, and compute in `runtime.dtype`
(`distributed/sharding.py`). Adapters are float32 or wider everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from lecritique.config.adapters import CopyBackbone, LoraAdapter, SharedBackbone
from lecritique.config.engines import Embedded
from lecritique.config.resolve import uses_critic
from lecritique.config.schema import RunConfig
from lecritique.planning.adapters import adapter_parameters
from lecritique.planning.shapes import ModelShape

WIDTH = {"float32": 4, "bfloat16": 2, "float64": 8}
# Gradient and AdamW's two moments, each as wide as what trains.
_STATES = 3
# rollout/joined_decoder.py: of which models the embedded engine joins projections, and up to how many numbers.
JOINED_FAMILY = ("llama", "qwen2", "qwen3")
JOINED_MOST_PARAMETERS = 1 << 28


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Policy or critic: numbers that train, and that lie frozen under an adapter.

    `width` are the bytes of a number in `runtime.dtype`. `sharded` says that several processes train it.
    """

    trained: int
    frozen: int
    adapter: bool
    width: int
    sharded: bool

    @property
    def served(self) -> int:
        """Bytes of what trains, as it is published and as whoever only reads holds it."""
        return self.trained * (max(self.width, 4) if self.adapter else self.width)

    @property
    def served_frozen(self) -> int:
        """Bytes of the frozen weights where they are only read."""
        return self.frozen * self.width

    @property
    def held(self) -> int:
        """Bytes of what trains, in its trainer and over all processes of it."""
        return self.trained * (max(self.width, 4) if self.adapter or self.sharded else self.width)

    @property
    def held_frozen(self) -> int:
        """Bytes of the frozen weights in the trainer, over all its processes."""
        return self.frozen * (max(self.width, 4) if self.sharded else self.width)

    @property
    def states(self) -> int:
        """Bytes of gradients and moments, over all processes."""
        return _STATES * self.held

    @property
    def trains_narrow(self) -> bool:
        """Whether an optimizer step is made on weights of half precision."""
        return bool(self.trained) and self.held < 4 * self.trained


def policy_weights(config: RunConfig, shape: ModelShape, *, sharded: bool) -> ModelWeights:
    """Of the policy.

    Args:
        config: resolved.
        shape: of the policy.
        sharded: several processes train it.
    """
    adapter = config.model.adapter
    if not isinstance(adapter, LoraAdapter):
        return _all_trained(config, shape.parameters, sharded=sharded)
    return ModelWeights(
        trained=adapter_parameters(adapter, shape),
        frozen=shape.parameters,
        adapter=True,
        width=WIDTH[config.runtime.dtype],
        sharded=sharded,
    )


def critic_weights(config: RunConfig, shape: ModelShape, *, sharded: bool, beside_policy: bool = True) -> ModelWeights:
    """Of the critic but its head; with `shared` the frozen weights are the policy's, and counted there.

    Args:
        config: resolved, of a run with a critic.
        shape: of the policy.
        sharded: several processes train it.
        beside_policy: the policy's weights are in the same memory; elsewhere `shared` has a copy too.
    """
    backbone = config.critic.backbone
    if isinstance(backbone, CopyBackbone):
        return _all_trained(config, shape.backbone_parameters, sharded=sharded)
    return ModelWeights(
        trained=adapter_parameters(backbone, shape),
        frozen=0 if isinstance(backbone, SharedBackbone) and beside_policy else shape.backbone_parameters,
        adapter=True,
        width=WIDTH[config.runtime.dtype],
        sharded=sharded,
    )


def published_bytes(config: RunConfig, shape: ModelShape) -> dict[str, int]:
    """Bytes of a version of policy and critic on its way to its readers; for vLLM an adapted policy is merged."""
    policy = policy_weights(config, shape, sharded=False)
    merged = policy.adapter and not isinstance(config.runtime.engine, Embedded)
    found = {"policy": shape.parameters * policy.width if merged else policy.served}
    return found | ({"critic": critic_weights(config, shape, sharded=False).served} if uses_critic(config) else {})


def joined_numbers(config: RunConfig, shape: ModelShape) -> int:
    """Numbers of the embedded engine's second copy of projections that read the same state; 0 where it has none.

    Biases are counted as if there were none.
    """
    plain = isinstance(config.runtime.engine, Embedded) and not isinstance(config.model.adapter, LoraAdapter)
    known = shape.family in JOINED_FAMILY and shape.backbone_parameters <= JOINED_MOST_PARAMETERS
    if not plain or not known:
        return 0
    heads, keys = shape.heads * shape.head_width, shape.key_value_heads * shape.head_width
    layer = shape.hidden * (heads + 2 * keys) + 2 * shape.hidden * shape.intermediate
    norms = heads + keys if shape.family == "qwen3" else 0
    return shape.layers * (layer + norms)


def _all_trained(config: RunConfig, parameters: int, *, sharded: bool) -> ModelWeights:
    return ModelWeights(trained=parameters, frozen=0, adapter=False, width=WIDTH[config.runtime.dtype], sharded=sharded)
