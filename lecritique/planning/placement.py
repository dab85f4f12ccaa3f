"""Which role is on how many GPUs, and what one GPU of each role holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lecritique.config.cluster import Cluster
from lecritique.config.explain import nearest
from lecritique.config.resolve import uses_critic, uses_teacher
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.planning.memory import MASTER, WIDTH, activation_bytes, evaluator_copies, longest_row
from lecritique.planning.shapes import ModelShape

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
    `activations` those of a micro-batch, or with `checkpointing` what is left of them. Where both are, they take turns.
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
    """Bytes on one GPU of each role: trainers sharded over their GPUs, engines and evaluators whole on each.

    Trainers in bfloat16 are counted with float32 master weights, since a learning rate of 1e-6 moves nothing in
    bfloat16. Activations are checkpointed where they would not fit otherwise.
    """
    width = WIDTH[config.runtime.dtype]
    held = MASTER if width == 2 else 4 * width
    engine = shape.parameters * width
    rows = -(-in_flight(config) // placement.of("inference"))
    cache = rows * shape.cache_numbers(longest_row(config)) * width
    policy_share = shape.parameters * held / placement.of("policy trainer")
    if uses_teacher(config):
        policy_share += shape.parameters * (width + 4) / placement.of("policy trainer")
    roles = {"policy trainer": policy_share}
    evaluator = 0.0
    if uses_critic(config):
        roles["value trainer"] = shape.backbone_parameters * held / placement.of("value trainer")
        evaluator = evaluator_copies(config) * shape.backbone_parameters * width
    if placement.shared:
        fixed = engine + sum(roles.values()) + evaluator
        trained = _with_activations(config, shape, placement.gpu, "all roles in turn", fixed)
        return [
            GpuMemory(
                role=trained.role,
                fixed=fixed,
                cache=min(cache, max(0.0, usable_memory(placement.gpu) - fixed)),
                activations=trained.activations,
                checkpointing=trained.checkpointing,
            )
        ]
    found = [GpuMemory(role="inference", fixed=engine, cache=cache)]
    found += [_with_activations(config, shape, placement.gpu, role, fixed) for role, fixed in roles.items()]
    if "evaluator" in placement.gpus:
        found.append(GpuMemory(role="evaluator", fixed=evaluator))
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


def _with_activations(config: RunConfig, shape: ModelShape, gpu: Gpu, role: str, fixed: float) -> GpuMemory:
    whole = activation_bytes(config, shape)
    if fixed + whole < usable_memory(gpu):
        return GpuMemory(role=role, fixed=fixed, activations=whole)
    kept = activation_bytes(config, shape, checkpointing=True)
    return GpuMemory(role=role, fixed=fixed, activations=kept, checkpointing=True)
