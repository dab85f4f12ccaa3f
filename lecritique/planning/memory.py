"""Bytes that each role of a run holds: weights, optimizer states, activations, caches.

What of the models trains, and how wide it is held, is in `weights.py`. In one process engine, teacher and evaluator
read the trainer's own frozen weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from lecritique.config.engines import Embedded
from lecritique.config.resolve import uses_critic, uses_teacher
from lecritique.config.schema import RunConfig
from lecritique.config.teachers import EmaTeacher
from lecritique.planning.shapes import ModelShape
from lecritique.planning.weights import (
    WIDTH,
    ModelWeights,
    critic_weights,
    joined_numbers,
    policy_weights,
    published_bytes,
)

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


def models_weights(config: RunConfig, shape: ModelShape) -> dict[str, ModelWeights]:
    """What trains and what lies frozen of the policy, and of the critic where there is one."""
    policy = policy_weights(config, shape, sharded=trainer_processes(config, "policy") > 1)
    if not uses_critic(config):
        return {"policy": policy}
    return {
        "policy": policy,
        "critic": critic_weights(config, shape, sharded=trainer_processes(config, "critic") > 1),
    }


def role_memory(config: RunConfig, shape: ModelShape) -> list[RoleMemory]:
    """What each role of a run holds on its devices, in bytes.

    Args:
        config: resolved.
        shape: of the policy, and so of critic and teacher.
    """
    models = models_weights(config, shape)
    policy = models["policy"]
    roles = [_engine(config, shape, policy), _trainer("policy trainer", config, shape, policy)]
    if uses_teacher(config):
        roles.append(_teacher(config, policy))
    if uses_critic(config):
        critic = models["critic"]
        copies = evaluator_copies(config)
        if copies:
            what = "two copies, one of which is loaded while the other serves" if copies == 2 else "a copy"
            weights = copies * critic.served + (0 if in_one_process(config) else critic.served_frozen)
            roles.append(RoleMemory(role="evaluator", what=what, weights=weights))
        roles.append(_trainer("value trainer", config, shape, critic))
    return roles


def stored_weights(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of the latest published version of each role, which the weight store keeps where somebody opens it."""
    published = published_bytes(config, shape)
    unopened = config.runtime.type == "local" and not evaluator_copies(config)
    return sum(size for role, size in published.items() if role != "critic" or not unopened)


def trainer_processes(config: RunConfig, role: str) -> int:
    """Processes that train `policy` or `critic` together, each with a shard of it."""
    if config.runtime.type == "local":
        return config.runtime.ranks
    actors = config.runtime.actors
    return actors.policy.ranks if role == "policy" else actors.critic.ranks


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


def micro_batch_tokens(config: RunConfig, processes: int = 1) -> int:
    """Tokens of a forward pass on each process, together: at least one row, at most the whole batch at full length."""
    longest = longest_row(config)
    return min(processes * max(config.runtime.micro_batch_tokens, longest), config.rollout.batch_size * longest)


def logit_bytes(config: RunConfig, shape: ModelShape, processes: int = 1) -> int:
    """Bytes of the logits that exist at once, on all processes together."""
    return _LOGIT_BYTES * min(processes * _LOGITS_AT_ONCE, micro_batch_tokens(config, processes) * shape.vocabulary)


def gathered_bytes(shape: ModelShape, model: ModelWeights, *, output: bool) -> int:
    """Bytes on one process of weights that it has brought together from shards to read them, and of their gradients.

    The tables of embeddings and output, and two layers: one is read while the next one comes. Nothing in one process.
    """
    if not model.sharded:
        return 0
    tables = shape.embedding_parameters * (1 if shape.tied or not output else 2)
    whole = tables + 2 * shape.trunk_parameters // shape.layers
    return whole * model.width * (1 if model.adapter else 2)


def activation_numbers(shape: ModelShape) -> int:
    """Numbers that a layer's operations save of one token.

    Inputs of two norms and of two residual sums (6 widths), queries, keys and values before and after rotation and the
    attention's output, and gate, up, their activation and their product. Attention itself keeps no square of the
    length.
    """
    queries = shape.heads * shape.head_width
    keys = 2 * shape.key_value_heads * shape.head_width
    return 6 * shape.hidden + 2 * (queries + keys) + queries + 4 * shape.intermediate


def activation_bytes(config: RunConfig, shape: ModelShape, *, checkpointing: bool = False, processes: int = 1) -> int:
    """Bytes kept for the backward pass of one micro-batch on each process, estimated from what each layer saves.

    With `checkpointing` each layer's input is kept, and one layer is there in full.
    """
    layer = activation_numbers(shape)
    kept = shape.layers * shape.hidden + layer if checkpointing else shape.layers * layer
    return micro_batch_tokens(config, processes) * kept * WIDTH[config.runtime.dtype]


def in_one_process(config: RunConfig) -> bool:
    """Whether all roles are in one process, and so on the same tensors where these are frozen; shards are others."""
    return config.runtime.ranks == 1 and config.runtime.type == "local"


def _engine(config: RunConfig, shape: ModelShape, policy: ModelWeights) -> RoleMemory:
    length, rows = longest_row(config), cached_rows(config)
    width, joined = WIDTH[config.runtime.dtype], joined_numbers(config, shape)
    copy = ", a second copy of projections that it joins" if joined else ""
    return RoleMemory(
        role="engine",
        what=f"weights{copy}, and keys and values of {rows} rows of {length:,} tokens",
        weights=in_process_engine_weights(config, shape) if in_one_process(config) else engine_weights(config, shape),
        passing=rows * shape.cache_numbers(length) * width,
    )


def engine_weights(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of the policy in an engine that shares nothing with its trainer; vLLM has an adapter merged."""
    policy, width = policy_weights(config, shape, sharded=False), WIDTH[config.runtime.dtype]
    adapter = policy.served if policy.adapter and isinstance(config.runtime.engine, Embedded) else 0
    return (shape.parameters + joined_numbers(config, shape)) * width + adapter


def in_process_engine_weights(config: RunConfig, shape: ModelShape) -> int:
    """Bytes that an engine adds to the process of its trainer: an adapted one reads the trainer's frozen weights."""
    policy = policy_weights(config, shape, sharded=False)
    shares = policy.adapter and isinstance(config.runtime.engine, Embedded)
    return policy.served if shares else engine_weights(config, shape)


def _trainer(role: str, config: RunConfig, shape: ModelShape, model: ModelWeights) -> RoleMemory:
    policy = role == "policy trainer"
    ranks = trainer_processes(config, "policy" if policy else "critic")
    what = "weights, gradient, two moments"
    if model.adapter:
        under = "frozen weights" if model.frozen else "the policy's frozen weights"
        what = f"{under}, and an adapter with gradient and two moments"
    # The first process of a run keeps the whole model that shards were cut from, and saves it in the end.
    keeps_whole = model.sharded and config.runtime.type == "local"
    if model.sharded:
        narrow = "float32 " if model.width < 4 else ""
        what += f", in {ranks} {narrow}shards{' beside a whole copy' if keeps_whole else ''}; layers brought together"
    passing = activation_bytes(config, shape, checkpointing=config.runtime.recompute_activations, processes=ranks)
    if policy:
        passing += logit_bytes(config, shape, ranks)
    return RoleMemory(
        role=role,
        what=f"{what}; activations of a micro-batch",
        weights=model.held + model.held_frozen + (model.served if keeps_whole else 0),
        states=model.states,
        passing=passing + ranks * gathered_bytes(shape, model, output=policy),
    )


def teacher_bytes(config: RunConfig, policy: ModelWeights, *, shares: bool) -> tuple[int, int]:
    """Bytes of a teacher on one process of the policy trainer: its weights, and their running mean in float32.

    The mean is kept beside narrow weights alone.

    Args:
        config: resolved, of a run with a teacher.
        policy: whose copy it is.
        shares: it reads the trainer's own frozen weights.
    """
    mean = isinstance(config.policy.teacher, EmaTeacher) and policy.served < 4 * policy.trained
    return policy.served + (0 if shares else policy.served_frozen), 4 * policy.trained if mean else 0


def _teacher(config: RunConfig, policy: ModelWeights) -> RoleMemory:
    ranks = trainer_processes(config, "policy")
    weights, mean = teacher_bytes(config, policy, shares=ranks == 1)
    what = "a copy and its running mean in float32" if mean else "a copy"
    where = f" on each of {ranks} processes" if ranks > 1 else ""
    return RoleMemory(role="teacher", what=f"{what}{where}", weights=ranks * weights, states=ranks * mean)
