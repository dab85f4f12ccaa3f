"""What a vLLM engine and the processes of its replicas say to each other. Plain records: no torch, no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.weights import WeightManifest


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """How a replica starts vLLM.

    Attributes:
        model_folder: holds the model's config.json; weights follow in an `Adopt`.
        dtype: of weights and arithmetic.
        device: what the caller works on; a vLLM built for another one is refused.
        max_length: tokens of the longest sequence, prompt included.
        rows: sequences that are decoded at once.
        tensor_parallel: devices that share one copy of the weights.
        gpu_memory_utilization: share of each GPU's memory for weights and cache.
        cpu_cache_gib: size of the cache where there is no GPU.
        enforce_eager: no compilation and no CUDA graphs.
        transfer: how weights after the first arrive: `file`, or `ipc` for memory of the same GPU.
    """

    model_folder: str
    dtype: Literal["float32", "bfloat16"]
    device: Literal["cpu", "cuda"]
    max_length: int
    rows: int
    tensor_parallel: int
    gpu_memory_utilization: float
    cpu_cache_gib: float
    enforce_eager: bool
    transfer: Literal["file", "ipc"] = "file"


@dataclass(frozen=True, kw_only=True)
class Submit:
    """Continue a request's ids."""

    request: GenerateRequest


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Give up a request; what it has comes back as its completion."""

    request_id: str


@dataclass(frozen=True, kw_only=True)
class WeightFile:
    """A version's tensors as a safetensors file; `names` are in the order that the manifest's digest was taken in."""

    path: str
    names: tuple[str, ...]
    digest: str


@dataclass(frozen=True, kw_only=True)
class SharedWeights:
    """A version's tensors in the caller's GPU memory, which stays as it is until the version is `Adopted`.

    Attributes:
        names: of the tensors.
        dtypes: named as in torch, without `torch.`.
        shapes: of each tensor.
        handles: of each tensor, by the GPU's UUID: the arguments of torch's `rebuild_cuda_tensor`.
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    handles: tuple[Mapping[str, tuple[Any, ...]], ...]


Weights = WeightFile | SharedWeights


@dataclass(frozen=True, kw_only=True)
class Adopt:
    """Serve these weights from the next token on."""

    manifest: WeightManifest
    weights: Weights


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End the process."""


Command = Submit | Cancel | Adopt | Stop


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The replica serves; commands that came before are worked off now."""


@dataclass(frozen=True, kw_only=True)
class Began:
    """The first token of these requests was sampled by this version."""

    version: int
    request_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A request has ended."""

    completion: Completion


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A request that vLLM does not accept; others go on."""

    request_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """The version is served, or a newer one is: its file is not needed any more."""

    manifest: WeightManifest


@dataclass(frozen=True, kw_only=True)
class Working:
    """A sign of life: the replica has decoded since the one before."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The replica ends. Before `Ready` its settings are at fault, later it is a failure of the engine."""

    reason: str


Report = Ready | Began | Completed | Rejected | Adopted | Working | Failed
