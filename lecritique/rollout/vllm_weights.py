"""How a version of the policy's weights reaches the replicas of vLLM: by a file in memory, or by sharing GPU memory.

A file is written aside, renamed when it is whole and removed when every replica is done with it. Shared memory is the
store's own: the tensors are held until the replica has read them. A file serves every machine and device; memory can be
shared with a replica on the trainer's own GPU alone.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch.multiprocessing.reductions import reduce_tensor

from lecritique.core.weights import WeightManifest
from lecritique.models.weights import State
from lecritique.rollout.vllm_messages import Adopt, SharedWeights, WeightFile

_MEMORY = "/dev/shm"
_SPARE_BYTES = 64 << 20


@dataclass(kw_only=True, eq=False)
class Handover:
    """A version as replicas get it, and which of them have not said yet that they are done with it.

    `state` keeps shared memory as it is until then.
    """

    adopt: Adopt
    state: State | None = None
    waiting: set[int] = field(default_factory=set)


class WeightTransfer:
    """Hands versions of the weights to replicas, which are known by their numbers.

    Args:
        model: the policy, of which the configuration is taken.
        kind: `file`, or `ipc` for CUDA IPC.
    """

    def __init__(self, model: Any, *, kind: Literal["file", "ipc"]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lecritique-vllm-", dir=_roomy_folder(model)))
        self._kind = kind
        self._serial = count()
        self._lock = threading.Lock()
        self._handed: list[Handover] = []
        # Also where nobody closes: memory is not given back by itself.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        _write_model_folder(model, self.model_folder)

    @property
    def model_folder(self) -> Path:
        """Holds the policy's config.json, without weights."""
        return self.folder / "model"

    def prepared(self, manifest: WeightManifest, state: State, *, first: bool) -> Handover:
        """`state` in the form in which replicas take it; takes time, and `hand_over` must follow.

        The first weights of a replica go by a file in any case: then it is known that the policy's names cover every
        parameter of vLLM, which shared memory does not tell.
        """
        if self._kind == "file" or first:
            return Handover(adopt=Adopt(manifest=manifest, weights=self._written(manifest, state)))
        return Handover(adopt=Adopt(manifest=manifest, weights=shared_weights(state)), state=state)

    def hand_over(self, handover: Handover, numbers: Iterable[int]) -> None:
        """Keep what was prepared until each of these replicas is done with it."""
        handover.waiting = set(numbers)
        with self._lock:
            self._handed.append(handover)
        self._drop_unwanted()

    def done(self, number: int, manifest: WeightManifest) -> None:
        """A replica needs this version no more."""
        with self._lock:
            for handed in self._handed:
                if handed.adopt.manifest == manifest:
                    handed.waiting.discard(number)
        self._drop_unwanted()

    def forget(self, number: int) -> None:
        """A replica is no more."""
        with self._lock:
            for handed in self._handed:
                handed.waiting.discard(number)
        self._drop_unwanted()

    def close(self) -> None:
        """Remove the folder, with all that is in it."""
        self._remove_folder()

    def _written(self, manifest: WeightManifest, state: State) -> WeightFile:
        path = self.folder / f"weights-{manifest.version}-{next(self._serial)}.safetensors"
        aside = path.with_suffix(".writing")
        # Tied weights are one tensor under several names, which the file format does not take.
        save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}, aside)
        aside.rename(path)
        return WeightFile(path=str(path), names=tuple(state), digest=manifest.digest)

    def _drop_unwanted(self) -> None:
        with self._lock:
            unwanted = [handed for handed in self._handed if not handed.waiting]
            self._handed = [handed for handed in self._handed if handed.waiting]
        for handed in unwanted:
            if isinstance(handed.adopt.weights, WeightFile):
                Path(handed.adopt.weights.path).unlink(missing_ok=True)
        if any(handed.state is not None for handed in unwanted):
            torch.cuda.ipc_collect()


def shared_weights(state: State) -> SharedWeights:
    """Handles by which a process on the same GPU reads these tensors, as long as this process keeps them.

    What vLLM's own trainer makes of them: `IPCTrainerWeightTransferEngine._send_unpacked` in
    vllm/distributed/weight_transfer/ipc_engine.py (0.32).
    """
    shared = []
    for tensor in state.values():
        if not tensor.is_contiguous():
            raise ValueError("only contiguous tensors can be shared, and the weight store's are")
        uuid = str(torch.cuda.get_device_properties(tensor.device).uuid)
        _, arguments = reduce_tensor(tensor.detach())
        shared.append({uuid: arguments})
    return SharedWeights(
        names=tuple(state),
        dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in state.values()),
        shapes=tuple(tuple(tensor.shape) for tensor in state.values()),
        handles=tuple(shared),
    )


def _roomy_folder(model: Any) -> str | None:
    """A file system in memory, as weights are only passed on; None, the usual folder, where three versions do not fit.

    Three: one is being written, one is being read, and a slow or a new replica may hold another.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 3 * size + _SPARE_BYTES:
        return _MEMORY
    return None


def _write_model_folder(model: Any, folder: Path) -> None:
    """The model's config.json without what describes files that it was loaded from."""
    folder.mkdir()
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
