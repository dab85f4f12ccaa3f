"""A tree of plain values, arrays and tensors as three files: JSON, NPZ and safetensors. No pickle anywhere.

A tensor or an array in the tree becomes a reference in the JSON file, a number that JSON lacks becomes its name.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from lecritique.core.errors import CheckpointError

TREE, ARRAYS, TENSORS = "state.json", "arrays.npz", "tensors.safetensors"
# Dictionaries with this key stand for something that JSON cannot hold.
_MARK = "$"


def write_tree(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write the three files.

    Tensors are copied to the CPU; those that share their memory, such as tied weights, are written once.

    Raises:
        TypeError: a leaf that is neither a tensor, an array of numbers or text, nor JSON.
        OSError: they cannot be written.
    """
    flat = _Flat()
    plain = flat.plain(tree, "")
    try:
        save_file(flat.tensors, folder / TENSORS)
    except SafetensorError as error:  # what the Rust side makes of a full disk
        raise OSError(f"{folder / TENSORS}: {error}") from error
    # With a file of our own NumPy adds no suffix; arrays of objects, which it would pickle, are refused above.
    with open(folder / ARRAYS, "wb") as file:
        np.savez(file, **flat.arrays)
    (folder / TREE).write_text(json.dumps(plain, allow_nan=False) + "\n", encoding="utf-8")


def read_tree(folder: Path) -> dict[str, Any]:
    """What was written, with tuples as lists; tensors on the CPU.

    Raises:
        CheckpointError: a file is missing or does not hold what it should.
    """
    try:
        plain = json.loads((folder / TREE).read_text(encoding="utf-8"))
        with np.load(folder / ARRAYS, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        tensors = load_file(folder / TENSORS)
        tree = _tree(plain, arrays, tensors)
    except (OSError, ValueError, KeyError, SafetensorError, zipfile.BadZipFile, RecursionError) as error:
        raise CheckpointError(f"the checkpoint '{folder}' cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"the checkpoint '{folder}' cannot be read: {TREE} is not an object")
    return tree


class _Flat:
    """Takes tensors and arrays out of a tree."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.arrays: dict[str, NDArray[Any]] = {}
        self._seen: dict[tuple[Any, ...], str] = {}

    def plain(self, node: Any, path: str) -> Any:
        """The node as JSON can hold it."""
        match node:
            case torch.Tensor():
                return {_MARK: "tensor", "name": self._tensor(node, path)}
            case np.ndarray():
                return {_MARK: "array", "name": self._array(node, path)}
            case None | bool() | str():
                return node
            case int():
                return int(node)
            case float():
                return float(node) if math.isfinite(node) else {_MARK: "float", "name": repr(float(node))}
            case Mapping():
                return {self._key(key, path): self.plain(below, f"{path}/{key}") for key, below in node.items()}
            case list() | tuple():
                return [self.plain(below, f"{path}/{index}") for index, below in enumerate(node)]
        raise TypeError(f"a checkpoint cannot hold {type(node).__name__} at '{path}'")

    def _key(self, key: Any, path: str) -> str:
        if not isinstance(key, str) or key == _MARK:
            raise TypeError(f"a checkpoint cannot hold the key {key!r} at '{path}'")
        return key

    def _tensor(self, tensor: torch.Tensor, path: str) -> str:
        identity = (tensor.data_ptr(), tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and identity in self._seen:
            return self._seen[identity]
        # A copy of its own also where it is on the CPU already: other shapes of the same memory are refused.
        self.tensors[path] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        self._seen[identity] = path
        return path

    def _array(self, array: NDArray[Any], path: str) -> str:
        if array.dtype.hasobject:
            raise TypeError(f"a checkpoint cannot hold an array of objects at '{path}'")
        name = f"a{len(self.arrays)}"
        self.arrays[name] = array
        return name


def _tree(node: Any, arrays: Mapping[str, NDArray[Any]], tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(node, list):
        return [_tree(below, arrays, tensors) for below in node]
    if not isinstance(node, dict):
        return node
    match node.get(_MARK):
        case None:
            return {key: _tree(below, arrays, tensors) for key, below in node.items()}
        case "tensor":
            return tensors[node["name"]]
        case "array":
            return arrays[node["name"]]
        case "float":
            return float(node["name"])
    raise ValueError(f"{node.get(_MARK)!r} is no mark of this version")
