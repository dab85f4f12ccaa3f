"""CUDA IPC needs GPUs; that its calls are those which the installed vLLM takes can be told without one."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from types import SimpleNamespace

import pytest
import torch

from lecritique.rollout.vllm_messages import SharedWeights

HERE = importlib.util.find_spec("vllm") is not None
pytestmark = pytest.mark.skipif(not HERE, reason="vllm is not installed: make test-cluster")
SHARED = SharedWeights(
    names=("a", "b"),
    dtypes=("bfloat16", "float32"),
    shapes=((2, 3), (4,)),
    handles=({"GPU-1": (1, 2)}, {"GPU-1": (3, 4)}),
)


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, dict[str, object]]]:
    """What a decoder asks of vLLM's workers when it is given shared weights, and then of its cache."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from lecritique.rollout.vllm_library import VllmDecoder

    made: list[tuple[str, dict[str, object]]] = []
    decoder = VllmDecoder.__new__(VllmDecoder)
    decoder._engine = SimpleNamespace(
        collective_rpc=lambda method, kwargs=None: made.append((method, kwargs or {})),
        reset_prefix_cache=lambda **options: made.append(("reset", options)) or True,
    )
    decoder.load(SHARED)
    return made


def test_the_workers_take_the_calls_in_this_order_and_the_cache_goes_last(calls) -> None:
    from vllm.v1.worker.gpu_worker import Worker

    assert [name for name, _ in calls] == ["start_weight_update", "update_weights", "finish_weight_update", "reset"]
    for name, options in [*calls[:3], ("init_weight_transfer_engine", {"init_info": {"packed": False}})]:
        inspect.signature(getattr(Worker, name)).bind(None, **options)


def test_the_update_is_one_that_the_receiving_engine_parses(calls) -> None:
    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferInitInfo

    update = IPCWeightTransferEngine.update_info_cls(**calls[1][1]["update_info"])
    assert (update.names, update.dtype_names, update.shapes) == (["a", "b"], ["bfloat16", "float32"], [[2, 3], [4]])
    assert update.ipc_handles == list(SHARED.handles) and update.tensor_sizes is None
    assert IPCWeightTransferInitInfo(packed=False) == IPCWeightTransferEngine.init_info_cls(packed=False)
    assert all(getattr(torch, name).itemsize for name in update.dtype_names)


def test_the_backend_is_registered_and_an_argument_of_the_engine() -> None:
    from vllm import EngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    assert WeightTransferConfig(backend="ipc").backend == "ipc"
    assert "weight_transfer_config" in {field.name for field in dataclasses.fields(EngineArgs)}
    assert "ipc" in WeightTransferEngineFactory._registry


def test_the_receiver_rebuilds_from_what_torch_reduces_a_tensor_to() -> None:
    """vLLM overwrites argument 6 with its own device: it must be the device."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    assert list(inspect.signature(rebuild_cuda_tensor).parameters)[6] == "storage_device"
