"""Weights on their way to replicas: kept as long as somebody reads them; shared GPU memory as vLLM takes it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_replicas import Numbered

from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout import vllm_weights
from lecritique.rollout.vllm_messages import SharedWeights, WeightFile
from lecritique.rollout.vllm_weights import WeightTransfer, shared_weights


@pytest.fixture
def gpu(monkeypatch) -> list[str]:
    """What torch says of a GPU; the list fills with what happened to shared memory."""
    happened: list[str] = []
    cuda = SimpleNamespace(
        get_device_properties=lambda device: SimpleNamespace(uuid="GPU-1"),
        ipc_collect=lambda: happened.append("collected"),
    )
    monkeypatch.setattr(vllm_weights, "reduce_tensor", lambda tensor: (None, (tuple(tensor.shape), tensor.data_ptr())))
    monkeypatch.setattr(vllm_weights.torch, "cuda", cuda)
    return happened


def test_a_file_is_kept_until_the_last_of_its_replicas_is_done() -> None:
    transfer, state = WeightTransfer(Numbered(3), kind="file"), Numbered(3).state_dict()
    manifest = MemoryWeightStore().put("policy", state)
    handover = transfer.prepared(manifest, state, first=False)
    assert isinstance(handover.adopt.weights, WeightFile)
    path = Path(handover.adopt.weights.path)
    transfer.hand_over(handover, {4, 5, 6})
    transfer.done(4, manifest)
    transfer.forget(6)
    assert path.exists()
    transfer.done(5, manifest)
    assert not path.exists()
    transfer.close()
    assert not transfer.folder.exists()


def test_shared_memory_is_described_tensor_by_tensor(gpu) -> None:
    state = {"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.ones(4)}
    shared = shared_weights(state)
    assert (shared.names, shared.dtypes, shared.shapes) == (("a", "b"), ("bfloat16", "float32"), ((2, 3), (4,)))
    assert shared.handles[1] == {"GPU-1": ((4,), state["b"].data_ptr())}, "a copy would be freed while it is read"
    with pytest.raises(ValueError, match="contiguous"):
        shared_weights({"a": torch.zeros(2, 3).T})


def test_shared_memory_is_held_until_it_was_read_and_the_first_weights_go_by_a_file(gpu) -> None:
    store, transfer = MemoryWeightStore(), WeightTransfer(Numbered(3), kind="ipc")
    state = Numbered(3).state_dict()
    first = transfer.prepared(store.put("policy", state), state, first=True)
    assert isinstance(first.adopt.weights, WeightFile)
    manifest = store.put("policy", state)
    handover = transfer.prepared(manifest, state, first=False)
    assert isinstance(handover.adopt.weights, SharedWeights)
    transfer.hand_over(handover, {0})
    assert transfer._handed[0].state is state and not gpu
    transfer.done(0, manifest)
    assert not transfer._handed and gpu == ["collected"]
    transfer.close()
