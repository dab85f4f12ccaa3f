"""Which role is on how many GPUs, and what one GPU of each role holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lecritique.config.cluster import Cluster
from lecritique.config.explain import nearest
from lecritique.config.resolve import uses_critic, uses_teacher
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.planning.memory import (
    activation_bytes,
    engine_weights,
    evaluator_copies,
    gathered_bytes,
    in_process_engine_weights,
    logit_bytes,
    longest_row,
    teacher_bytes,
)
from lecritique.planning.shapes import ModelShape
from lecritique.planning.weights import WIDTH, ModelWeights, critic_weights, policy_weights

# A part of every GPU that the driver, the allocator and communication buffers take.
_USABLE = 0.92


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as its maker describes it: dense bfloat16 FLOP/s, bytes/s of its memory, bytes of it."""

    name: str
    flops: float
    bandwidth: float
    memory: float


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="A100", flops=312e12, bandwidth=2.04e12, memory=80e9),
        Gpu(name="H100", flops=989e12, bandwidth=3.35e12, memory=80e9),
        Gpu(name="H200", flops=989e12, bandwidth=4.8e12, memory=141e9),
        Gpu(name="B200", flops=2250e12, bandwidth=8.0e12, memory=180e9),
    )
}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """GPUs of each role: `inference`, `policy trainer`, `value trainer`, `evaluator`. A teacher is with the policy.

    With `shared` all roles take turns on the same GPUs. A colocated evaluator has none of its own.
    """

    gpu: Gpu
    gpus: Mapping[str, int]
    shared: bool = False
    per_node: int = 8

    @property
    def total(self) -> int:
        """All GPUs."""
        return next(iter(self.gpus.values())) if self.shared else sum(self.gpus.values())

    def of(self, role: str) -> int:
        """GPUs that work for a role: the evaluator's are the value trainer's where it has none."""
        return self.gpus.get(role) or self.gpus["value trainer"]


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Bytes on one GPU of a role: `fixed` is there all the time, `cache` are keys and values at the declared lengths,
    `activations` those of a micro-batch, or with `checkpointing` what is left of them, with logits and layers brought
    together from shards. Where both are, they take turns.
    """

    role: str
    fixed: float
    cache: float = 0.0
    activations: float = 0.0
    checkpointing: bool = False

    @property
    def total(self) -> float:
        """Everything."""
        return self.fixed + max(self.cache, self.activations)

    def fits(self, gpu: Gpu) -> bool:
        """Whether it has room; a cache may be smaller, down to nothing, since an engine queues what does not fit."""
        return self.fixed + self.activations < _USABLE * gpu.memory


def usable_memory(gpu: Gpu) -> float:
    """Bytes of a GPU that a role may fill."""
    return _USABLE * gpu.memory


def parsed_gpus(text: str) -> tuple[int, Gpu]:
    """`8xH200` as a number and a GPU.

    Raises:
        ConfigurationError: another form, or an unknown GPU.
    """
    match = re.fullmatch(r"([1-9]\d{0,5})\s*[xX*]\s*(\w+)", text.strip())
    if match is None:
        raise ConfigurationError(f"--gpus: got {text!r}, expected a number and a GPU, such as 8xH200.")
    return int(match[1]), known_gpu(match[2])


def known_gpu(name: str) -> Gpu:
    """A GPU by name.

    Raises:
        ConfigurationError: it is not known.
    """
    if name.upper() not in GPUS:
        raise ConfigurationError(f"there is no GPU {name!r}.{nearest(name, GPUS)} Known: {', '.join(GPUS)}.")
    return GPUS[name.upper()]


def placement_of(config: RunConfig, cluster: Cluster) -> Placement:
    """The placement of the recipe's paper: whole nodes; a critic adds a trainer's nodes and an evaluator's."""
    node = cluster.gpus_per_node
    gpus = {role: nodes * node for role, nodes in _nodes(config, cluster).items()}
    return Placement(gpu=known_gpu(cluster.gpu), gpus=gpus, shared=cluster.shared, per_node=node)


def scaled_to(total: int, gpu: Gpu, config: RunConfig, cluster: Cluster) -> Placement:
    """The paper's shares of so many GPUs, one at least for each role, by largest remainder.

    Raises:
        ConfigurationError: there are fewer GPUs than roles.
    """
    nodes = _nodes(config, cluster)
    if cluster.shared:
        return Placement(gpu=gpu, gpus=dict.fromkeys(nodes, total), shared=True, per_node=cluster.gpus_per_node)
    if total < len(nodes):
        raise ConfigurationError(f"{total} GPUs are too few for {len(nodes)} roles: {', '.join(nodes)}.")
    gpus, whole = dict.fromkeys(nodes, 1), sum(nodes.values())
    for _ in range(total - len(nodes)):
        # The role that is furthest below its share gets the next one; the first of those that are equally far.
        lacking = max(nodes, key=lambda role: (nodes[role] / whole) * total - gpus[role])
        gpus[lacking] += 1
    return Placement(gpu=gpu, gpus=gpus, per_node=cluster.gpus_per_node)


def memory_on_gpus(config: RunConfig, shape: ModelShape, placement: Placement) -> list[GpuMemory]:
    """Bytes on one GPU of each role: trainers in shards over their GPUs; engine, evaluator and teacher whole on each.

    Shards are float32 or wider; a trainer on one GPU holds `runtime.dtype` (see `weights.py`). Activations are computed
    again where `runtime.recompute_activations` says so, and where they would not fit otherwise. On GPUs that all roles
    share, the backbone of `shared` is there once; a value trainer on GPUs of its own has a copy.
    """
    models = trained_on(config, shape, placement)
    policy, alone = models["policy"], placement.shared and placement.total == 1
    engine = in_process_engine_weights(config, shape) if alone else engine_weights(config, shape)
    rows = -(-in_flight(config) // placement.of("inference"))
    cache = rows * shape.cache_numbers(longest_row(config)) * WIDTH[config.runtime.dtype]
    held = {"policy trainer": _shard(policy, placement.of("policy trainer"))}
    if uses_teacher(config):
        held["policy trainer"] += sum(teacher_bytes(config, policy, shares=alone))
    evaluator = 0.0
    if uses_critic(config):
        critic = models["critic"]
        held["value trainer"] = _shard(critic, placement.of("value trainer"))
        copies = evaluator_copies(config)
        evaluator = copies * critic.served + (critic.served_frozen if copies and not alone else 0)
    passing = {role: _Passing(config, shape, model) for role, model in _by_trainer(models).items()}
    if placement.shared:
        fixed = engine + sum(held.values()) + evaluator
        trained = passing["policy trainer"].beside(fixed, placement.gpu, role="all roles in turn")
        return [replace(trained, cache=min(cache, max(0.0, usable_memory(placement.gpu) - fixed)))]
    found = [GpuMemory(role="inference", fixed=engine, cache=cache)]
    found += [passing[role].beside(fixed, placement.gpu, role=role) for role, fixed in held.items()]
    if "evaluator" in placement.gpus:
        found.append(GpuMemory(role="evaluator", fixed=evaluator))
    return found


def trained_on(config: RunConfig, shape: ModelShape, placement: Placement) -> dict[str, ModelWeights]:
    """Policy and critic as their trainers hold them on these GPUs."""
    found = {"policy": policy_weights(config, shape, sharded=placement.of("policy trainer") > 1)}
    if uses_critic(config):
        sharded = placement.of("value trainer") > 1
        found["critic"] = critic_weights(config, shape, sharded=sharded, beside_policy=placement.shared)
    return found


def in_flight(config: RunConfig) -> int:
    """Rollouts that are open at once."""
    if config.runtime.loop == "synchronous":
        return config.rollout.batch_size
    assert config.rollout.in_flight is not None
    return config.rollout.in_flight


def _nodes(config: RunConfig, cluster: Cluster) -> dict[str, int]:
    nodes = {"inference": cluster.inference_nodes, "policy trainer": cluster.trainer_nodes}
    if uses_critic(config):
        nodes["value trainer"] = cluster.trainer_nodes
        if config.runtime.placement == "dedicated" or cluster.shared:
            nodes["evaluator"] = cluster.trainer_nodes
    return dict.fromkeys(nodes, cluster.inference_nodes) if cluster.shared else nodes


def _shard(model: ModelWeights, gpus: int) -> float:
    return (model.held + model.held_frozen + model.states) / gpus


def _by_trainer(models: Mapping[str, ModelWeights]) -> dict[str, ModelWeights]:
    names = {"policy": "policy trainer", "critic": "value trainer"}
    return {names[role]: model for role, model in models.items()}


@dataclass(frozen=True)
class _Passing:
    """What one GPU of a trainer holds of a micro-batch while it trains."""

    config: RunConfig
    shape: ModelShape
    model: ModelWeights

    def beside(self, fixed: float, gpu: Gpu, *, role: str) -> GpuMemory:
        """Beside what is always there: whole activations where they are wanted and fit."""
        whole = self._bytes(role, checkpointing=False)
        if not self.config.runtime.recompute_activations and fixed + whole < usable_memory(gpu):
            return GpuMemory(role=role, fixed=fixed, activations=whole)
        kept = self._bytes(role, checkpointing=True)
        return GpuMemory(role=role, fixed=fixed, activations=kept, checkpointing=True)

    def _bytes(self, role: str, *, checkpointing: bool) -> int:
        output = role != "value trainer"
        logits = logit_bytes(self.config, self.shape) if output else 0
        gathered = gathered_bytes(self.shape, self.model, output=output)
        return activation_bytes(self.config, self.shape, checkpointing=checkpointing) + logits + gathered
