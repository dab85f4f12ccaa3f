"""The weight store: consecutive versions, copies, and no reading of what was replaced."""

from __future__ import annotations

import pytest
import torch
from small_models import small_policy

from lecritique.core.errors import CheckpointError
from lecritique.models.restoring import restore_weights
from lecritique.models.weights import MemoryWeightStore


def test_versions_are_consecutive_for_each_role() -> None:
    store = MemoryWeightStore()
    state = {"w": torch.zeros(2)}
    assert [store.put("policy", state).version for _ in range(3)] == [0, 1, 2]
    assert store.put("critic", state).version == 0
    assert store.put("policy", state).version == 3


def test_published_tensors_are_copies() -> None:
    store, weight = MemoryWeightStore(), torch.nn.Parameter(torch.ones(3))
    manifest = store.put("policy", {"w": weight})
    with torch.no_grad():
        weight.mul_(7)
    held = store.open(manifest)["w"]
    assert held.tolist() == [1.0, 1.0, 1.0] and not held.requires_grad


def test_a_replaced_manifest_and_one_never_published_are_key_errors() -> None:
    store = MemoryWeightStore()
    first = store.put("policy", {"w": torch.zeros(1)})
    second = store.put("policy", {"w": torch.ones(1)})
    with pytest.raises(KeyError, match="policy version 0"):
        store.open(first)
    assert store.open(second)["w"].item() == 1.0
    with pytest.raises(KeyError):
        MemoryWeightStore().open(second)


def test_versions_that_nobody_opens_are_named_and_not_kept() -> None:
    store, kept, told = MemoryWeightStore(), MemoryWeightStore(), []
    store.watch(told.append)
    store.put("critic", {"w": torch.zeros(1)})
    store.only_name("critic")
    for value in (1.0, 2.0):
        manifest = store.put("critic", {"w": torch.full((2,), value)})
        kept.put("critic", {"w": torch.full((2,), value)})
        with pytest.raises(KeyError, match=f"critic version {manifest.version}"):
            store.open(manifest)
    assert [manifest.version for manifest in told] == [0, 1, 2]
    assert told[2].digest == kept.put("critic", {"w": torch.full((2,), 2.0)}).digest
    assert store.open(store.put("policy", {"w": torch.ones(1)}))["w"].item() == 1.0


def test_the_digest_is_of_the_bytes() -> None:
    def digest(state: dict[str, torch.Tensor]) -> str:
        return MemoryWeightStore().put("policy", state).digest

    plain = {"w": torch.arange(6.0).reshape(2, 3), "scalar": torch.tensor(2.0)}
    transposed = {**plain, "w": torch.arange(6.0).reshape(3, 2).t()}
    assert digest(plain) == digest({name: tensor.clone() for name, tensor in plain.items()})
    assert digest(plain) != digest(transposed)
    assert digest(plain) != digest({**plain, "scalar": torch.tensor(3.0)})
    assert digest({"h": torch.ones(2, dtype=torch.bfloat16)})


def test_tied_weights_survive_publishing_and_stay_tied() -> None:
    source, reader = small_policy(1), small_policy(2)
    store = MemoryWeightStore()
    reader.load_state_dict(store.open(store.put("policy", source.state_dict())))
    assert reader.lm_head.weight is reader.get_input_embeddings().weight
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(reader(input_ids=ids).logits, source(input_ids=ids).logits)


def test_a_role_goes_on_from_a_version_and_no_number_means_two_weights() -> None:
    store = MemoryWeightStore()
    before = store.put("policy", {"w": torch.zeros(1)})
    store.go_on_from("policy", 7)
    with pytest.raises(KeyError):
        store.open(before)
    assert [store.put("policy", {"w": torch.ones(1)}).version for _ in range(2)] == [7, 8]
    assert store.put("critic", {"w": torch.ones(1)}).version == 0
    with pytest.raises(ValueError, match="version -1"):
        store.go_on_from("critic", -1)


def test_saved_weights_are_put_back_and_those_of_another_model_refused() -> None:
    one, other = small_policy(1), small_policy(2)
    restore_weights(other, one.state_dict(), role="policy")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    for state in (
        small_policy(3, dtype=torch.float32).state_dict(),
        small_policy(3, layers=1).state_dict(),
        {name: tensor[..., :-1] for name, tensor in small_policy(3).state_dict().items()},
    ):
        with pytest.raises(CheckpointError, match=r"saved weights of the policy have .* this run has"):
            restore_weights(other, state, role="policy")
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
