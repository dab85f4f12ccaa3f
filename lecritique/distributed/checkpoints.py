"""Checkpoints of weights in shards: every process writes its own, and any number of processes reads them again.

    step-00000025/   state.json  arrays.npz  tensors.safetensors  complete.json
        shards/      one safetensors file of each process, written and cut anew by torch.distributed.checkpoint

Written aside, marked complete and renamed as those of one process are. The storage is DCP's safetensors one: its usual
one keeps its metadata as pickle, which whoever can write to the folder could make run code. Nothing here is unpickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_shards

from lecritique.core.errors import CheckpointError
from lecritique.distributed.together import Together
from lecritique.runs.checkpoints import SHARDS, Checkpoints, load_checkpoint
from lecritique.runs.state_files import write_tree

# A dictionary with this key stands for a tensor whose shards lie beside the tree.
_MARK = "sharded"
# What reading raises for a file or a mark that does not hold what it should.
_UNREADABLE = (OSError, AttributeError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError)


class ShardedCheckpoints:
    """The checkpoints in one folder that all processes can reach.

    Args:
        folder: made when the first one is saved.
        ranks: the processes; each makes the same calls.
        keep: complete ones that stay.
    """

    def __init__(self, folder: Path, ranks: Together, keep: int = 2) -> None:
        self._checkpoints = Checkpoints(folder, keep)
        self._ranks = ranks

    def save(self, step: int, tree: Mapping[str, Any]) -> Path:
        """Write the state after `step` steps; its folder.

        The tree's shards are everyone's, all else in it is rank 0's.

        Raises:
            OSError: some process cannot write it; there is nothing new then.
        """
        rest, shards = taken_apart(tree)
        if self._ranks.rank:
            return self._follow(shards)
        path, problem = None, ""
        with suppress(OSError):  # kept in `problem`
            try:
                with self._checkpoints.aside(step) as aside:
                    path = self._checkpoints.place_of(aside)
                    self._ranks.told(str(aside))
                    _write_shards(aside / SHARDS, shards)
                    write_tree(aside, rest)
            except BaseException as error:
                problem = f"{type(error).__name__}: {error}"
                raise
            finally:
                if path is None:  # the others are still waiting for the name of the folder
                    self._ranks.told("")
                self._ranks.told(problem)
        if problem or path is None:
            raise OSError(problem)
        return path

    def _follow(self, shards: Mapping[str, torch.Tensor]) -> Path:
        aside = self._ranks.told(None)
        if aside:
            with suppress(OSError):  # rank 0 hears of it, and says so
                _write_shards(Path(aside) / SHARDS, shards)
        problem = self._ranks.told(None)
        if problem:
            raise OSError(problem)
        return self._checkpoints.place_of(Path(aside))


def taken_apart(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The tree with marks in place of its sharded tensors, and these by name; tied ones have one name."""
    shards: dict[str, torch.Tensor] = {}
    seen: dict[tuple[Any, ...], str] = {}

    def plain(node: Any, path: str) -> Any:
        if isinstance(node, DTensor):
            local = node.to_local()
            memory = (local.data_ptr(), local.dtype, tuple(node.shape)) if local.numel() else (path,)
            name = seen.setdefault(memory, path)
            shards[name] = node.detach()
            return {_MARK: name, "shape": list(node.shape), "dtype": str(node.dtype).removeprefix("torch.")}
        if isinstance(node, Mapping):
            return {key: plain(below, f"{path}.{key}" if path else str(key)) for key, below in node.items()}
        if isinstance(node, list | tuple):
            return [plain(below, f"{path}.{index}") for index, below in enumerate(node)]
        return node

    return plain(tree, ""), shards


def load_sharded(path: Path, mesh: DeviceMesh | None = None) -> dict[str, Any]:
    """The tree of a checkpoint, of shards or not, by whatever number of processes it was written.

    Args:
        path: a folder that `ShardedCheckpoints` or `Checkpoints` wrote.
        mesh: the processes that are to have its tensors in shards, all of which call this; None for whole tensors.

    Raises:
        CheckpointError: it is incomplete, damaged or of another format.
    """
    rest = load_checkpoint(path)
    targets: dict[str, torch.Tensor] = {}

    def tree(node: Any) -> Any:
        if isinstance(node, list):
            return [tree(below) for below in node]
        if not isinstance(node, dict):
            return node
        if _MARK in node:
            return targets.setdefault(node[_MARK], _room(node, mesh))
        return {key: tree(below) for key, below in node.items()}

    try:
        whole = tree(rest)
        if targets:
            if not (path / SHARDS).is_dir():
                raise FileNotFoundError(f"there is no folder {SHARDS}")
            reader = HuggingFaceStorageReader(str(path / SHARDS))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process")
                dcp.load(targets, storage_reader=reader, no_dist=mesh is None)
    except (CheckpointException, *_UNREADABLE) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(f"the shards of the checkpoint '{path}' cannot be read: {reason[:300]}") from error
    return whole  # type: ignore[no-any-return]


def _room(mark: Mapping[str, Any], mesh: DeviceMesh | None) -> torch.Tensor:
    """Memory for what a mark stands for."""
    shape, dtype = [int(size) for size in mark["shape"]], getattr(torch, str(mark["dtype"]))
    if mesh is None:
        return torch.empty(shape, dtype=dtype)
    return empty_shards(*shape, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])


def _write_shards(folder: Path, shards: Mapping[str, torch.Tensor]) -> None:
    """All processes at once; OSError when any of them failed."""
    try:
        dcp.save(dict(shards), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        failures = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in error.failures.items())
        raise OSError(f"the shards cannot be written: {failures}") from error
