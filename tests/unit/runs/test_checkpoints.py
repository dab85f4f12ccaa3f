"""Checkpoints: what goes in comes out to the last bit, and no moment of a write can cost the one before."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lecritique.core.errors import CheckpointError
from lecritique.runs import checkpoints as module
from lecritique.runs import state_files
from lecritique.runs.checkpoints import Checkpoints, checkpoint_step, is_complete, load_checkpoint
from lecritique.runs.state_files import read_tree, write_tree

DTYPES = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
ARRAY_DTYPES = ("float64", "float32", "int64", "int32", "int16", "uint8", "bool", "uint64", "<U5")


def tree(seed: int = 0) -> dict:
    """A bit of everything."""
    return {"w": torch.full((3, 2), float(seed)), "ids": np.arange(seed + 1), "step": seed, "nested": [{"x": None}]}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and a.equal(b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def round_trip(folder: Path, given_tree: dict) -> dict:
    folder.mkdir(exist_ok=True)
    write_tree(folder, given_tree)
    return read_tree(folder)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_type_and_shape(tmp_path, dtype) -> None:
    numbers = torch.tensor([[0, 1, 2], [3, 1, 0]]).to(dtype)
    held = {"plain": numbers, "transposed": numbers.t(), "scalar": numbers[0, 1], "empty": numbers[:0]}
    held["slice"] = numbers[:, 1:]
    if dtype.is_floating_point:
        held["odd"] = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-7]).to(dtype)
    back = round_trip(tmp_path, held)
    for name, tensor in held.items():
        assert back[name].dtype == dtype and back[name].shape == tensor.shape, name
        assert bits(back[name]) == bits(tensor), name


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
def test_arrays_of_every_type_and_shape(tmp_path, dtype) -> None:
    numbers = np.array([[0, 1, 2], [3, 1, 0]]).astype(dtype)
    held = {"plain": numbers, "transposed": numbers.T, "empty": numbers[:0], "scalar": numbers[0, 0:1].reshape(())}
    assert same(held, round_trip(tmp_path, held))


KEYS = st.text().filter(lambda key: key != "$")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_plain_values_among_them_large_integers_and_what_json_lacks(tmp_path_factory, held) -> None:
    assert same(held, round_trip(tmp_path_factory.mktemp("tree"), held))


def test_numpy_scalars_tuples_and_tied_tensors(tmp_path) -> None:
    weight = torch.randn(400, 300)
    held = {"embed": weight, "head": weight, "view": weight.view(300, 400), "pair": (1, 2.5), "big": 2**127 - 1}
    back = round_trip(tmp_path, held)
    assert back["embed"].equal(weight) and back["head"].equal(weight) and back["view"].equal(weight.view(300, 400))
    assert back["pair"] == [1, 2.5] and back["big"] == 2**127 - 1
    # Tied weights are held once, another shape of the same memory is held by itself.
    assert (tmp_path / "tensors.safetensors").stat().st_size < 2.1 * weight.numel() * 4


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ({"a": {"b": object()}}, "/a/b"),
        ({"a": [np.array([object()])]}, "/a/0"),
        ({"a": {3: 1}}, "/a"),
        ({"a": {"$": 1}}, "/a"),
        ({"a": {1, 2}}, "/a"),
        ({"a": b"bytes"}, "/a"),
    ],
)
def test_what_would_need_pickle_is_refused_with_its_place(tmp_path, bad, where) -> None:
    with pytest.raises(TypeError, match=f"cannot hold .* at '{where}'"):
        Checkpoints(tmp_path).save(1, bad)
    assert list(tmp_path.iterdir()) == []


def test_no_pickle_is_read(tmp_path) -> None:
    write_tree(tmp_path, {"a": np.zeros(1)})
    with open(tmp_path / "arrays.npz", "wb") as file:
        np.savez(file, a0=np.array([{}], dtype=object))
    with pytest.raises(CheckpointError, match="allow_pickle=False"):
        read_tree(tmp_path)


def test_saved_found_and_retired(tmp_path) -> None:
    held = Checkpoints(tmp_path / "deep" / "checkpoints", keep=2)
    assert held.latest() is None and held.names() == ()
    for step in (1, 2, 10):
        path = held.save(step, tree(step))
        assert held.latest() == path and checkpoint_step(path) == step and same(held.load(path), tree(step))
    assert held.names() == ("step-00000002", "step-00000010")


def test_a_step_saved_again_counts_as_the_newer_one(tmp_path) -> None:
    held = Checkpoints(tmp_path, keep=2)
    held.save(3, tree(3))
    again = held.save(3, tree(4))
    assert again.name == "step-00000003.1" and held.latest() == again and checkpoint_step(again) == 3
    assert held.load(again)["step"] == 4


DAMAGES = {
    "marker missing": lambda path: (path / "complete.json").unlink(),
    "marker cut": lambda path: (path / "complete.json").write_text('{"format": 1, "fi'),
    "marker a list": lambda path: (path / "complete.json").write_text("[]"),
    "file missing": lambda path: (path / "state.json").unlink(),
    "file cut": lambda path: os.truncate(path / "tensors.safetensors", 20),
    "a bit": lambda path: (path / "arrays.npz").write_bytes(flipped((path / "arrays.npz").read_bytes())),
    "empty": lambda path: [file.unlink() for file in path.iterdir()],
    "a file in its place": lambda path: ([file.unlink() for file in path.iterdir()], path.rmdir(), path.write_text("")),
}


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_fault_44_a_damaged_one_is_passed_over(tmp_path, damage) -> None:
    held = Checkpoints(tmp_path, keep=3)
    first, second = held.save(1, tree(1)), held.save(2, tree(2))
    DAMAGES[damage](second)
    assert held.latest() == first and held.names_after(first) == (second.name,)
    assert not is_complete(second)
    with pytest.raises(CheckpointError, match=r"incomplete|damaged"):
        load_checkpoint(second)
    third = held.save(2, tree(3))
    assert held.latest() == third and same(held.load(third), tree(3))


def test_another_format_is_named(tmp_path) -> None:
    path = Checkpoints(tmp_path).save(1, tree())
    marker = json.loads((path / "complete.json").read_text())
    (path / "complete.json").write_text(json.dumps(marker | {"format": 7}))
    with pytest.raises(CheckpointError, match="format 7, this version reads 1"):
        load_checkpoint(path)


def test_foreign_names_are_left_alone(tmp_path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    held = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        held.save(step, tree(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-00000002", "step-1"]


@pytest.mark.parametrize("call", range(1, 6))
def test_a_full_disk_at_any_moment_leaves_the_old_one_and_nothing_half_written(tmp_path, monkeypatch, call) -> None:
    held = Checkpoints(tmp_path, keep=1)
    first = held.save(1, tree(1))
    count, sync = 0, os.fsync

    def full(handle: int) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        held.save(2, tree(2))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [first.name] and held.latest() == first
    held.save(2, tree(2))
    assert held.names() == ("step-00000002",)


def dies_before(call: int, held: Checkpoints) -> bool:
    """Save step 2 in a process that ends, as by SIGKILL, just before its n-th call of the system; whether it did."""
    child = os.fork()
    if child == 0:
        left = call

        def dying(function):
            def wrapper(*arguments, **more):
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)
                return function(*arguments, **more)

            return wrapper

        for name in ("fsync", "rename", "mkdir", "unlink", "rmdir"):
            setattr(os, name, dying(getattr(os, name)))
        Path.write_text = dying(Path.write_text)
        state_files.save_file, np.savez = dying(state_files.save_file), dying(np.savez)
        try:
            held.save(2, tree(2))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 9


def test_fault_44_a_process_that_dies_at_any_call_of_a_save_leaves_a_whole_checkpoint(tmp_path) -> None:
    seen, died = [], True
    while died:
        folder = tmp_path / str(len(seen))
        held = Checkpoints(folder, keep=1)
        held.save(1, tree(1))
        died = dies_before(len(seen) + 1, held)
        latest = held.latest()
        assert latest is not None, f"nothing is left when it dies before call {len(seen) + 1}"
        step = held.load(latest)["step"]
        assert same(held.load(latest), tree(step))
        seen.append(step)
        # The next save clears up.
        held.save(3, tree(3))
        assert [path.name for path in folder.iterdir()] == ["step-00000003"]
    # Before the rename it is the first, after it the second, also where it dies while the first is removed.
    assert seen == sorted(seen) and seen.count(1) >= 9 and seen.count(2) >= 4


REAL_LIMIT = """
import resource, signal, sys
from pathlib import Path
import torch
from lecritique.runs.checkpoints import Checkpoints

held = Checkpoints(Path(sys.argv[1]))
held.save(1, {"w": torch.ones(4)})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    held.save(2, {"w": torch.ones(100_000)})
except OSError as error:
    print("refused:", error)
held.save(3, {"w": torch.ones(8)})
print(held.names())
"""


def test_a_file_that_the_system_will_not_take_is_an_oserror(tmp_path) -> None:
    """The writer of tensors reports its own kind of error; a limit on file sizes is a real one."""
    command = [sys.executable, "-c", REAL_LIMIT, str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("refused:") and done.stdout.endswith("('step-00000001', 'step-00000003')\n"), done
