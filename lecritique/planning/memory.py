"""Bytes that each role of a run holds: weights, optimizer states, activations, caches.

What a trainer holds is what the trainers of this package hold today: weights, a gradient and AdamW's two moments, all
in `runtime.dtype`. `MASTER` is what it takes to keep float32 weights, gradients and moments beside bfloat16 ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from lecritique.config.resolve import uses_critic, uses_teacher
from lecritique.config.schema import RunConfig
from lecritique.config.teachers import EmaTeacher
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


def role_memory(config: RunConfig, shape: ModelShape, *, master_weights: bool = False) -> list[RoleMemory]:
    """What each role of a run holds on its devices, in bytes.

    Args:
        config: resolved.
        shape: of the policy, and so of critic and teacher.
        master_weights: count float32 master weights, gradients and moments in trainers.
    """
    width = WIDTH[config.runtime.dtype]
    length = longest_row(config)
    rows = cached_rows(config)
    policy, critic = shape.parameters, shape.backbone_parameters
    states = (MASTER - width) if master_weights else 3 * width
    roles = [
        RoleMemory(
            role="engine",
            what=f"weights, and keys and values of {rows} rows of {length:,} tokens",
            weights=policy * width,
            passing=rows * shape.cache_numbers(length) * width,
        ),
        RoleMemory(
            role="policy trainer",
            what="weights, gradient, two moments; activations of a micro-batch",
            weights=policy * width,
            states=policy * states,
            passing=activation_bytes(config, shape) + logit_bytes(config, shape),
        ),
    ]
    if uses_teacher(config):
        roles.append(_teacher(config, policy, width))
    if uses_critic(config):
        copies = evaluator_copies(config)
        if copies:
            what = "two copies, one of which is loaded while the other serves" if copies == 2 else "a copy"
            roles.append(RoleMemory(role="evaluator", what=what, weights=copies * critic * width))
        roles.append(
            RoleMemory(
                role="value trainer",
                what="weights, gradient, two moments; activations of a micro-batch",
                weights=critic * width,
                states=critic * states,
                passing=activation_bytes(config, shape),
            )
        )
    return roles


def stored_weights(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of the latest published version of each role, which the weight store keeps."""
    critic = shape.backbone_parameters if uses_critic(config) else 0
    return (shape.parameters + critic) * WIDTH[config.runtime.dtype]


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
    if config.runtime.loop == "synchronous":
        return 1
    return 0 if config.runtime.placement == "colocated" else 2


def micro_batch_tokens(config: RunConfig) -> int:
    """Tokens of a forward pass: at least one row, at most the whole batch at full length."""
    longest = longest_row(config)
    return min(max(config.runtime.micro_batch_tokens, longest), config.rollout.batch_size * longest)


def logit_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of the logits that exist at once."""
    return _LOGIT_BYTES * min(_LOGITS_AT_ONCE, micro_batch_tokens(config) * shape.vocabulary)


def activation_bytes(config: RunConfig, shape: ModelShape, *, checkpointing: bool = False) -> int:
    """Bytes kept for the backward pass of one micro-batch, estimated from what each layer's operations save.

    Kept of a token in a layer: inputs of two norms and of two residual sums (6 widths), queries, keys and values before
    and after rotation and the attention's output, and gate, up, their activation and their product. Attention itself
    keeps no square of the length. With `checkpointing` each layer's input is kept, and one layer is there in full.
    """
    width = WIDTH[config.runtime.dtype]
    tokens = micro_batch_tokens(config)
    queries = shape.heads * shape.head_width
    keys = 2 * shape.key_value_heads * shape.head_width
    layer = 6 * shape.hidden + 2 * (queries + keys) + queries + 4 * shape.intermediate
    kept = shape.layers * shape.hidden + layer if checkpointing else shape.layers * layer
    return tokens * kept * width


def _teacher(config: RunConfig, parameters: int, width: int) -> RoleMemory:
    """A copy of the policy; a running mean of narrow weights is kept in float32 beside it."""
    mean = isinstance(config.policy.teacher, EmaTeacher) and width < 4
    return RoleMemory(
        role="teacher",
        what="a copy and its running mean in float32" if mean else "a copy",
        weights=parameters * width,
        states=parameters * 4 if mean else 0,
    )
