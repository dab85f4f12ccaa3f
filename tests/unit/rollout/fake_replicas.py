"""Engines over real processes that behave like replicas of vLLM (`fake_vllm.py`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from literal_decoding import request

from lecritique.core.rollout import GenerateRequest
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.vllm_engine import VllmEngine
from lecritique.rollout.vllm_messages import ReplicaSettings
from lecritique.rollout.vllm_replica import ReplicaProcess
from lecritique.rollout.vllm_supervision import Supervision

FAKE = (str(Path(__file__).with_name("fake_vllm.py")),)
SETTINGS = ReplicaSettings(
    model_folder="",
    dtype="float32",
    device="cpu",
    max_length=50,
    rows=4,
    tensor_parallel=1,
    gpu_memory_utilization=0.5,
    cpu_cache_gib=1.0,
    enforce_eager=True,
)
PROMPT = (1, 2, 3)
LONG = partial(request, PROMPT, max_new_tokens=100_000, stop_ids=frozenset({9}))
SECONDS = 60.0


class Numbered:
    """A policy whose weights are one number, which the fake samples over and over."""

    class config:  # noqa: N801
        to_dict = staticmethod(lambda: {"quantization_config": {}, "model_type": "numbered"})

    def __init__(self, number: float) -> None:
        self.number = number

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"number": torch.full((3,), self.number)}


@pytest.fixture
def engines() -> Iterator[Callable[..., VllmEngine]]:
    """Makes engines over real processes, and closes them."""
    made: list[VllmEngine] = []

    def make(
        replicas: int = 1,
        store: MemoryWeightStore | None = None,
        settings: ReplicaSettings = SETTINGS,
        *,
        restarts: int = 0,
        stuck_seconds: float = SECONDS,
    ) -> VllmEngine:
        limits = Supervision(start_seconds=SECONDS, stuck_seconds=stuck_seconds, restarts=restarts)
        made.append(
            VllmEngine(
                Numbered(7), store or MemoryWeightStore(), settings, environments=[{}] * replicas,
                supervision=limits, start=partial(ReplicaProcess, server=FAKE),
            )
        )  # fmt: skip
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def pids_of(engine: VllmEngine) -> list[int]:
    return [replica._process.pid for replica in engine._replicas.processes.values()]


def begun(engine: VllmEngine, *requests: GenerateRequest) -> None:
    until(lambda: all(engine.oldest_version(each.request_id) is not None for each in requests))


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
