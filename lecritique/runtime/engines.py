"""The engine that a configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from lecritique.actors.engine import RemoteEngine
from lecritique.config.engines import Vllm
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.models.weights import WeightStore
from lecritique.rollout.engine import EmbeddedEngine, Engine
from lecritique.rollout.vllm_engine import VllmEngine
from lecritique.rollout.vllm_messages import ReplicaSettings
from lecritique.rollout.vllm_replica import ReplicaProcess, require_vllm
from lecritique.rollout.vllm_supervision import ReplicaLost, Supervision


def require_engine(config: RunConfig) -> None:
    """Raise ConfigurationError when the engine is not installed: before a run has a directory."""
    if isinstance(config.runtime.engine, Vllm):
        require_vllm()


def configured_engine(model: Any, store: WeightStore, config: RunConfig, *, max_length: int) -> Engine:
    """An engine with the model's weights as they are now.

    Args:
        model: the policy.
        store: where later versions are opened.
        config: of the run; only `runtime` is read.
        max_length: tokens of the longest sequence that will be asked for.

    Raises:
        ConfigurationError: vLLM is not installed, does not start, or asks for more GPUs than there are.
    """
    if isinstance(config.runtime.engine, Vllm):
        return vllm_engine(model, store, config, max_length=max_length)
    return embedded_engine(model, store, config)


def embedded_engine(model: Any, store: WeightStore, config: RunConfig) -> EmbeddedEngine:
    """The engine of the process itself."""
    runtime = config.runtime
    return EmbeddedEngine(
        model,
        store,
        max_rows=runtime.decode_rows,
        chunk_tokens=runtime.decode_chunk_tokens,
        prefill_tokens=runtime.micro_batch_tokens,
    )


def vllm_engine(
    model: Any,
    store: WeightStore,
    config: RunConfig,
    *,
    max_length: int,
    start: Callable[..., ReplicaProcess] = ReplicaProcess,
) -> VllmEngine:
    """An engine in processes of its own; `start` makes one of them."""
    chosen, dtype = config.runtime.engine, config.runtime.dtype
    # The model given may lie on the CPU all the same: the replicas' GPUs are theirs.
    kind = torch.device(config.runtime.device or model.device).type
    assert isinstance(chosen, Vllm) and dtype != "float64"
    settings = ReplicaSettings(
        model_folder="",
        dtype=dtype,
        device=kind,
        max_length=max_length,
        rows=chosen.rows,
        tensor_parallel=chosen.tensor_parallel,
        gpu_memory_utilization=chosen.gpu_memory_utilization,
        cpu_cache_gib=chosen.cpu_cache_gib,
        enforce_eager=chosen.enforce_eager,
        transfer=chosen.transfer,
    )
    return VllmEngine(
        model,
        store,
        settings,
        environments=replica_environments(
            replicas=chosen.replicas,
            gpus_each=chosen.tensor_parallel,
            first=chosen.first_gpu,
            gpus=None if kind == "cpu" else _visible_gpus(),
        ),
        supervision=Supervision(
            start_seconds=chosen.start_seconds, stuck_seconds=chosen.stuck_seconds, restarts=chosen.restarts
        ),
        start=start,
    )


def engine_restarts(engine: Engine) -> int:
    """Replicas of the engine that were started in place of failed ones so far; the embedded engine has none."""
    return engine.restarts if isinstance(engine, VllmEngine | RemoteEngine) else 0


def watch_replicas(engine: Engine, tell: Callable[[ReplicaLost], None]) -> None:
    """Have `tell` called with every replica of vLLM that fails, on a thread of the engine's or of its caller's."""
    if isinstance(engine, VllmEngine | RemoteEngine):
        engine.watch(tell)


def replica_environments(*, replicas: int, gpus_each: int, first: int, gpus: list[str] | None) -> list[dict[str, str]]:
    """Environment variables of each replica, which say what GPUs it sees; empty ones without GPUs.

    Args:
        replicas: how many.
        gpus_each: GPUs of one.
        first: how many GPUs are left to others.
        gpus: names of those that this process sees, None on CPU.

    Raises:
        ConfigurationError: there are not so many.
    """
    if gpus is None:
        return [{} for _ in range(replicas)]
    end = first + replicas * gpus_each
    if end > len(gpus):
        raise ConfigurationError(
            f"'runtime.engine' needs GPUs {first} to {end - 1}, for {replicas} 'replicas' of {gpus_each} "
            f"('tensor_parallel') from 'first_gpu' = {first} on, and there are {len(gpus)}."
        )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[at : at + gpus_each])} for at in range(first, end, gpus_each)]


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]
