"""What generates tokens: a choice of the runtime, which changes no recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lecritique.config.base import Config


class Embedded(Config):
    """Decodes in the run's own process: the same tokens again on the same seed, whatever else is in the batch."""

    type: Literal["embedded"] = "embedded"


class Vllm(Config):
    """vLLM in processes of its own (the extra `vllm`). The same seed gives other tokens than the embedded engine's."""

    type: Literal["vllm"] = "vllm"
    replicas: int = Field(1, ge=1)
    """Copies of the engine, each a process; groups are spread over them."""
    tensor_parallel: int = Field(1, ge=1)
    """Devices that share the weights of one replica."""
    first_gpu: int = Field(0, ge=0)
    """GPUs left to the trainers: replicas take those from this number on."""
    gpu_memory_utilization: float = Field(0.9, gt=0, lt=1)
    """Share of a GPU's memory for weights and cache; lower where a trainer works on the same one."""
    cpu_cache_gib: float = Field(1.0, gt=0)
    """Size of a replica's key-value cache where there is no GPU."""
    rows: int = Field(256, ge=1)
    """Sequences that a replica decodes at once."""
    enforce_eager: bool = False
    """No compilation and no CUDA graphs: a faster start and slower decoding."""
    start_seconds: float = Field(900.0, gt=0)
    """How long replicas may take to start."""
    restarts: int = Field(3, ge=0)
    """Replacements for replicas that die or hang, in the whole run. Open requests are asked again; with none left they
    go to the other replicas, and without others they fail."""
    stuck_seconds: float = Field(300.0, gt=0)
    """A replica that has work and says nothing for so long is killed and replaced. Longer than one step, or than
    loading weights, can take."""
    transfer: Literal["file", "ipc"] = "file"
    """How new weights reach replicas: by a file in memory, or, from a trainer on the same GPU as the one replica, by
    CUDA IPC (not run yet)."""


EngineChoice = Annotated[Embedded | Vllm, Field(discriminator="type")]
# vLLM clamps lower temperatures to the first and refuses higher ones than the second.
VLLM_TEMPERATURES = (0.01, 2.0)
