"""Bytes that each role of a run holds: weights, optimizer states, activations, caches.

What a trainer holds is what the trainers of this package hold today: weights, a gradient and AdamW's two moments, all
in `runtime.dtype`. `MASTER` is what it takes to keep float32 weights, gradients and moments beside bfloat16 ones.
Under an adapter weights are frozen: no gradient and no moments, and in one process engine, teacher and evaluator read
those of the trainer. Adapters are float32 or wider.
"""

from __future__ import annotations

from dataclasses import dataclass

from lecritique.config.adapters import CopyBackbone, LoraAdapter, LoraBackbone
from lecritique.config.engines import Embedded
from lecritique.config.resolve import uses_critic, uses_teacher
from lecritique.config.schema import RunConfig
from lecritique.config.teachers import EmaTeacher
from lecritique.planning.adapters import adapter_parameters
from lecritique.planning.shapes import ModelShape

WIDTH = {"float32": 4, "bfloat16": 2, "float64": 8}
# Bytes a parameter of a trainer with float32 master weights: weight 2, master 4, gradient 4, moments 8.
MASTER = 18
# Logits of one chunk (models/scoring.py); in float32, with their softmax and their gradient.
_LOGITS_AT_ONCE = 1 << 24
_LOGIT_BYTES = 3 * 4


@dataclass(frozen=True, kw_only=True)
class RoleMemory:
    """Bytes of one role over all its devices. `states` are gradients and moments, `passing` activations or caches."""

    role: str
    what: str
    weights: int
    states: int = 0
    passing: int = 0

    @property
    def total(self) -> int:
        """Everything."""
        return self.weights + self.states + self.passing


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """Of one model: how many train, of how many bytes each, and how many of its own lie frozen under an adapter."""

    trained: int
    width: int
    frozen: int = 0
    adapter: bool = False

    @property
    def trained_bytes(self) -> int:
        """Of what trains, once."""
        return self.trained * self.width


def trained_parameters(config: RunConfig, shape: ModelShape) -> dict[str, int]:
    """How many numbers training changes, of the policy and of the critic where there is one; heads apart."""
    found = {"policy": _policy_numbers(config, shape).trained}
    return found | ({"critic": _critic_numbers(config, shape).trained} if uses_critic(config) else {})


def role_memory(config: RunConfig, shape: ModelShape, *, master_weights: bool = False) -> list[RoleMemory]:
    """What each role of a run holds on its devices, in bytes.

    Args:
        config: resolved.
        shape: of the policy, and so of critic and teacher.
        master_weights: count float32 master weights, gradients and moments in trainers.
    """
    width = WIDTH[config.runtime.dtype]
    length, rows = longest_row(config), cached_rows(config)
    policy = _policy_numbers(config, shape)
    roles = [
        RoleMemory(
            role="engine",
            what=f"weights, and keys and values of {rows} rows of {length:,} tokens",
            weights=policy.trained_bytes if policy.adapter and _engine_shares(config) else shape.parameters * width,
            passing=rows * shape.cache_numbers(length) * width,
        ),
        _trainer(
            "policy trainer",
            policy,
            width,
            passing=activation_bytes(config, shape, checkpointing=config.runtime.recompute_activations)
            + logit_bytes(config, shape),
            master_weights=master_weights,
        ),
    ]
    if uses_teacher(config):
        roles.append(_teacher(config, policy, width))
    if uses_critic(config):
        critic = _critic_numbers(config, shape)
        copies = evaluator_copies(config)
        if copies:
            what = "two copies, one of which is loaded while the other serves" if copies == 2 else "a copy"
            frozen = 0 if _in_one_process(config) else critic.frozen * width
            weights = copies * critic.trained_bytes + frozen
            roles.append(RoleMemory(role="evaluator", what=what, weights=weights))
        passing = activation_bytes(config, shape, checkpointing=config.runtime.recompute_activations)
        roles.append(_trainer("value trainer", critic, width, passing=passing, master_weights=master_weights))
    return roles


def stored_weights(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of the latest published version of each role, which the weight store keeps; for vLLM it is merged."""
    policy = _policy_numbers(config, shape).trained_bytes
    if not isinstance(config.runtime.engine, Embedded):
        policy = shape.parameters * WIDTH[config.runtime.dtype]
    return policy + (_critic_numbers(config, shape).trained_bytes if uses_critic(config) else 0)


def longest_row(config: RunConfig) -> int:
    """Most tokens of a rollout, prompts included."""
    assert config.sampling.max_total_tokens is not None
    return config.sampling.max_total_tokens


def cached_rows(config: RunConfig) -> int:
    """Rows that the engine decodes at once."""
    assert config.rollout.in_flight is not None
    open_rows = config.rollout.in_flight if config.runtime.loop == "asynchronous" else config.rollout.batch_size
    return min(config.runtime.decode_rows, open_rows)


def evaluator_copies(config: RunConfig) -> int:
    """Copies of the critic beside the trainer's: none when it shares the trainer's weights."""
    if config.runtime.placement == "colocated":
        return 0
    return 1 if config.runtime.loop == "synchronous" else 2


def micro_batch_tokens(config: RunConfig) -> int:
    """Tokens of a forward pass: at least one row, at most the whole batch at full length."""
    longest = longest_row(config)
    return min(max(config.runtime.micro_batch_tokens, longest), config.rollout.batch_size * longest)


def logit_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of the logits that exist at once."""
    return _LOGIT_BYTES * min(_LOGITS_AT_ONCE, micro_batch_tokens(config) * shape.vocabulary)


def activation_numbers(shape: ModelShape) -> int:
    """Numbers that a layer's operations save of one token.

    Inputs of two norms and of two residual sums (6 widths), queries, keys and values before and after rotation and the
    attention's output, and gate, up, their activation and their product. Attention itself keeps no square of the
    length.
    """
    queries = shape.heads * shape.head_width
    keys = 2 * shape.key_value_heads * shape.head_width
    return 6 * shape.hidden + 2 * (queries + keys) + queries + 4 * shape.intermediate


def activation_bytes(config: RunConfig, shape: ModelShape, *, checkpointing: bool = False) -> int:
    """Bytes kept for the backward pass of one micro-batch, estimated from what each layer's operations save.

    With `checkpointing` each layer's input is kept, and one layer is there in full.
    """
    layer = activation_numbers(shape)
    kept = shape.layers * shape.hidden + layer if checkpointing else shape.layers * layer
    return micro_batch_tokens(config) * kept * WIDTH[config.runtime.dtype]


def _policy_numbers(config: RunConfig, shape: ModelShape) -> _Numbers:
    width = WIDTH[config.runtime.dtype]
    adapter = config.model.adapter
    if not isinstance(adapter, LoraAdapter):
        return _Numbers(trained=shape.parameters, width=width)
    trained = adapter_parameters(adapter, shape)
    return _Numbers(trained=trained, width=max(width, 4), frozen=shape.parameters, adapter=True)


def _critic_numbers(config: RunConfig, shape: ModelShape) -> _Numbers:
    """What lies frozen is the critic's only where it is not the policy's."""
    width = WIDTH[config.runtime.dtype]
    backbone = config.critic.backbone
    if isinstance(backbone, CopyBackbone):
        return _Numbers(trained=shape.backbone_parameters, width=width)
    own = shape.backbone_parameters if isinstance(backbone, LoraBackbone) else 0
    return _Numbers(trained=adapter_parameters(backbone, shape), width=max(width, 4), frozen=own, adapter=True)


def _in_one_process(config: RunConfig) -> bool:
    """Whether all roles are in one process, and so on the same tensors where these are frozen; shards are others."""
    return config.runtime.ranks == 1 and config.runtime.type == "local"


def _engine_shares(config: RunConfig) -> bool:
    return _in_one_process(config) and isinstance(config.runtime.engine, Embedded)


def _trainer(role: str, numbers: _Numbers, width: int, *, passing: int, master_weights: bool) -> RoleMemory:
    states = MASTER - width if master_weights and not numbers.adapter else 3 * numbers.width
    what = "weights, gradient, two moments"
    if numbers.adapter:
        under = "frozen weights" if numbers.frozen else "the policy's frozen weights"
        what = f"{under}, and an adapter with gradient and two moments"
    return RoleMemory(
        role=role,
        what=f"{what}; activations of a micro-batch",
        weights=numbers.trained_bytes + numbers.frozen * width,
        states=numbers.trained * states,
        passing=passing,
    )


def _teacher(config: RunConfig, policy: _Numbers, width: int) -> RoleMemory:
    """A copy of what trains; a running mean of narrow weights is kept in float32 beside it."""
    mean = isinstance(config.policy.teacher, EmaTeacher) and policy.width < 4
    frozen = 0 if config.runtime.ranks == 1 else policy.frozen * width
    return RoleMemory(
        role="teacher",
        what="a copy and its running mean in float32" if mean else "a copy",
        weights=policy.trained_bytes + frozen,
        states=policy.trained * 4 if mean else 0,
    )
