"""Published weights as files: whole versions or none, whatever happens to the files."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from lecritique.core.errors import CheckpointError
from lecritique.core.weights import WeightManifest
from lecritique.distributed.weights import LATEST, MANIFEST, WEIGHTS, FileWeightStore
from lecritique.models.loading import load_causal_lm
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.engine import EmbeddedEngine


def state(value: float = 0.0) -> dict[str, torch.Tensor]:
    table = torch.full((5, 3), value)
    return {"z.head": table, "a.embed": table, "norm": torch.arange(3, dtype=torch.bfloat16) + value}


@pytest.fixture
def store(tmp_path):
    return FileWeightStore(tmp_path / "weights")


def test_a_reader_in_another_process_gets_what_was_published(store):
    manifests = [store.put("policy", state(value)) for value in (1.0, 2.0)]
    assert [manifest.version for manifest in manifests] == [0, 1]
    reader = FileWeightStore(store.folder)
    assert reader.latest("policy") == manifests[1] and reader.latest("critic") is None
    for manifest, value in zip(manifests, (1.0, 2.0), strict=True):
        opened = reader.open(manifest)
        assert list(opened) == list(state())
        assert all(torch.equal(opened[name], tensor) for name, tensor in state(value).items())
        assert opened["norm"].dtype == torch.bfloat16


def test_its_manifests_are_those_of_the_store_in_memory(store):
    assert store.put("policy", state(3.0)) == MemoryWeightStore().put("policy", state(3.0))


def test_tied_weights_are_written_once(store):
    size = (store.folder / "policy" / "00000000" / WEIGHTS).stat
    store.put("policy", {"a": torch.zeros(1000), "b": torch.zeros(1000)})
    apart = size().st_size
    store.go_on_from("policy", 0)
    table = torch.zeros(1000)
    store.put("policy", {"a": table, "b": table})
    assert size().st_size < apart - 3900


def test_what_is_published_does_not_follow_the_trainer(store):
    own = state(1.0)
    manifest = store.put("policy", own)
    own["norm"].add_(1)
    assert torch.equal(store.open(manifest)["norm"], state(1.0)["norm"])


def test_two_versions_stay_and_older_ones_are_no_longer_held(store):
    manifests = [store.put("critic", state(float(value))) for value in range(4)]
    assert sorted(path.name for path in (store.folder / "critic").iterdir()) == ["00000002", "00000003", LATEST]
    with pytest.raises(KeyError, match="critic version 1 are no longer held"):
        store.open(manifests[1])


def torn(place):
    data = (place / WEIGHTS).read_bytes()
    (place / WEIGHTS).write_bytes(data[: len(data) // 2])


def flipped(place):
    data = bytearray((place / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (place / WEIGHTS).write_bytes(bytes(data))


def swapped(place):
    """Every byte is there, under another name."""
    record = json.loads((place / MANIFEST).read_text())
    names = record["names"]
    names["norm"], names["a.embed"] = names["a.embed"], names["norm"]
    (place / MANIFEST).write_text(json.dumps(record))


def left_out(place):
    record = json.loads((place / MANIFEST).read_text())
    del record["names"]["norm"]
    (place / MANIFEST).write_text(json.dumps(record))


def without_manifest(place):
    (place / MANIFEST).unlink()


def junk_manifest(place):
    (place / MANIFEST).write_text('{"names": [1, 2]}')


@pytest.mark.parametrize("damage", [torn, flipped, swapped, left_out, without_manifest, junk_manifest])
def test_damaged_weights_are_never_served(store, damage):
    manifest = store.put("policy", state(1.0))
    assert store.open(manifest)
    damage(store.folder / "policy" / "00000000")
    with pytest.raises(CheckpointError, match=r"weights of policy version 0 in '.*' (cannot be read|have the digest)"):
        store.open(manifest)


def test_weights_of_another_run_are_not_what_was_announced(store, tmp_path):
    manifest = store.put("policy", state(1.0))
    other = FileWeightStore(tmp_path / "other")
    other.put("policy", state(2.0))
    shutil.rmtree(store.folder)
    shutil.copytree(other.folder, store.folder)
    with pytest.raises(CheckpointError, match="have the digest"):
        store.open(manifest)


def test_an_engine_stays_with_the_version_before_when_an_update_is_torn(store):
    model = load_causal_lm("tiny").model
    engine = EmbeddedEngine(model, store, max_rows=1, chunk_tokens=1, prefill_tokens=100)
    engine.adopt(store.put("policy", model.state_dict()))
    engine.advance()
    moved = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    manifest = store.put("policy", moved)
    torn(store.folder / "policy" / "00000001")
    with pytest.raises(CheckpointError):
        engine.adopt(manifest)
    engine.advance()
    served = engine._sampler.model.state_dict()
    assert engine._sampler.version == 0
    assert all(torch.equal(served[name], tensor) for name, tensor in model.state_dict().items())
    engine.close()


def test_an_update_that_was_cut_short_is_not_announced(store, monkeypatch):
    first = store.put("policy", state(1.0))
    with monkeypatch.context() as patch:
        patch.setattr("lecritique.distributed.weights.save_file", full_disk)
        with pytest.raises(OSError, match="no space"):
            store.put("policy", state(2.0))
    assert store.latest("policy") == first and store.open(first)
    again = store.put("policy", state(3.0))
    assert again.version == 1 and torch.equal(store.open(again)["norm"], state(3.0)["norm"])


def full_disk(tensors, path):
    path.write_bytes(b"half")
    raise OSError("no space left on device")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"role": "critic", "version": 3, "digest": "x"}', '{"version": "x"}'])
def test_an_announcement_that_cannot_be_read_announces_nothing(store, text):
    store.put("policy", state())
    (store.folder / "policy" / LATEST).write_text(text)
    assert store.latest("policy") is None


def test_a_resumed_run_goes_on_with_its_number_and_nothing_of_before(store):
    for value in range(5):
        old = store.put("policy", state(float(value)))
    again = FileWeightStore(store.folder)
    again.go_on_from("policy", 3)
    assert again.latest("policy") is None
    with pytest.raises(KeyError):
        again.open(old)
    assert again.put("policy", state(9.0)).version == 3
    with pytest.raises(ValueError, match="cannot go on from version -1"):
        again.go_on_from("policy", -1)


def test_another_run_in_the_same_folder_starts_with_nothing(store):
    store.put("policy", state(1.0))
    again = FileWeightStore(store.folder)
    assert again.put("policy", state(2.0)).version == 0
    assert torch.equal(again.open(again.latest("policy"))["norm"], state(2.0)["norm"])


def test_who_watches_is_told_of_each_version(store):
    told = []
    store.watch(told.append)
    manifest = store.put("policy", state())
    assert told == [manifest] and isinstance(told[0], WeightManifest)


def test_at_least_one_version_is_kept(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        FileWeightStore(tmp_path, keep=0)
