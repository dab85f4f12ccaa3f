"""An engine whose tokens come from vLLM, in one or several processes of its own.

Each replica is a process that holds vLLM and the weights (`vllm_server.py`); requests, completions and the paths of
weight files go through a pipe. Groups stay on one replica, so that members share the keys of their prompt and turns
those of the turns before; a new group goes where the fewest requests are open. A replica that dies loses nothing: what
it had open is asked of the others again.

A request's seed goes to vLLM. The same seed gives the same tokens up to floating-point ties, but not those of the
embedded engine, which draws differently from the same distribution.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from lecritique.core.errors import EngineFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.weights import WeightManifest
from lecritique.models.weights import State, WeightStore, state_digest
from lecritique.rollout.vllm_messages import (
    Adopt,
    Adopted,
    Began,
    Cancel,
    Completed,
    Failed,
    Ready,
    Rejected,
    ReplicaSettings,
    Report,
    Submit,
    WeightFile,
)
from lecritique.rollout.vllm_replica import ReplicaProcess

# Groups whose replica is remembered; one that is older is placed anew.
_REMEMBERED_GROUPS = 4096
_MEMORY = "/dev/shm"
_SPARE_BYTES = 64 << 20


@dataclass(kw_only=True, eq=False)
class _Open:
    """A request without a completion, and where it is."""

    request: GenerateRequest
    future: Future[Completion]
    replica: int
    first_version: int | None = None
    replicas_lost: int = 0
    cancelled: bool = False


@dataclass(kw_only=True)
class _Published:
    """The newest weight file, and which replicas have not said yet that they are done with it."""

    adopt: Adopt
    waiting: set[int] = field(default_factory=set)


class VllmEngine:
    """Serves the engine protocol from vLLM.

    Args:
        model: the policy; its configuration and first weights are taken.
        store: where versions are opened.
        settings: of every replica, but the model's folder.
        environments: environment variables of each replica, such as its GPUs; as many replicas are started.
        start_seconds: how long they may take to start.
        start: makes a replica's process; tests put another in its place.

    Raises:
        ConfigurationError: vLLM is not installed or does not accept the settings.
    """

    def __init__(
        self,
        model: Any,
        store: WeightStore,
        settings: ReplicaSettings,
        *,
        environments: Sequence[Mapping[str, str]],
        start_seconds: float,
        start: Callable[..., ReplicaProcess] = ReplicaProcess,
    ) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._open: dict[str, _Open] = {}
        self._places: OrderedDict[GroupId, int] = OrderedDict()
        self._published: dict[str, _Published] = {}
        self._alive: set[int] = set()
        self._loss = "the engine is closed"
        self._closed = False
        self._folder = Path(tempfile.mkdtemp(prefix="lecritique-vllm-", dir=_roomy_folder(model)))
        # Also where nobody closes: memory is not given back by itself.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._replicas: list[ReplicaProcess] = []
        try:
            _write_model_folder(model, self._folder / "model")
            own = replace(settings, model_folder=str(self._folder / "model"))
            for number, variables in enumerate(environments):
                log = self._folder / f"replica-{number}.log"
                self._replicas.append(start(own, number=number, log=log, variables=variables, report=self._reported))
                self._alive.add(number)
            for process in self._replicas:
                process.wait_until_ready(start_seconds)
            state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
            self._publish(WeightManifest(role="policy", version=0, digest=state_digest(state)), state)
        except BaseException:
            self.close()
            raise

    def submit(self, request: GenerateRequest) -> Future[Completion]:
        """Queue a request."""
        future: Future[Completion] = Future()
        with self._lock:
            if request.request_id in self._open:
                raise ValueError(f"request {request.request_id} is already queued")
            if not self._alive:
                future.set_exception(EngineFailure(self._loss))
                return future
            entry = _Open(request=request, future=future, replica=self._place(request))
            self._open[request.request_id] = entry
            self._replicas[entry.replica].send(Submit(request=request))
        return future

    def cancel(self, request_id: str) -> None:
        """Give up a request; its future gets what was sampled as soon as its replica has heard of it."""
        with self._lock:
            entry = self._open.get(request_id)
            if entry is not None:
                entry.cancelled = True
                self._replicas[entry.replica].send(Cancel(request_id=request_id))

    def oldest_version(self, request_id: str) -> int | None:
        """The version of the request's first sampled token."""
        with self._lock:
            entry = self._open.get(request_id)
            return entry.first_version if entry else None

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve these weights from the next token on."""
        self._publish(manifest, self._store.open(manifest))

    def advance(self) -> bool:
        """Nothing to do: replicas are processes."""
        return False

    def close(self) -> None:
        """Stop; unfinished futures are cancelled. No process is left behind."""
        with self._lock:
            self._closed = True
            unfinished, self._open = list(self._open.values()), {}
            self._alive.clear()
        for entry in unfinished:
            entry.future.cancel()
        for process in self._replicas:
            process.ask_to_stop()
        for process in self._replicas:
            process.stop()
        self._remove_folder()

    def _publish(self, manifest: WeightManifest, state: State) -> None:
        """Write the weights aside, name them when they are whole, tell every replica."""
        path = self._folder / f"weights-{manifest.version}-{manifest.digest}.safetensors"
        aside = path.with_suffix(".writing")
        # Tied weights are one tensor under several names, which the file format does not take.
        save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}, aside)
        file = WeightFile(path=str(path), names=tuple(state), digest=manifest.digest)
        with self._lock:
            aside.rename(path)
            published = _Published(adopt=Adopt(manifest=manifest, file=file), waiting=set(self._alive))
            self._published[str(path)] = published
            for number in sorted(self._alive):
                self._replicas[number].send(published.adopt)

    def _place(self, request: GenerateRequest) -> int:
        group = request.sequence_id.group
        number = self._places.pop(group, None)
        if number not in self._alive:
            load = Counter(entry.replica for entry in self._open.values())
            number = min(sorted(self._alive), key=load.__getitem__)
        self._places[group] = number
        if len(self._places) > _REMEMBERED_GROUPS:
            self._places.popitem(last=False)
        return number

    def _reported(self, number: int, report: Report) -> None:
        """A replica said something; called on the thread that listens to it."""
        with self._lock:
            if self._closed:
                return
            match report:
                case Ready():
                    pass
                case Began(version=version, request_ids=request_ids):
                    for entry in (self._open[each] for each in request_ids if each in self._open):
                        entry.first_version = version
                case Completed(completion=completion):
                    entry = self._open.pop(completion.request_id, None)
                    if entry is not None:
                        entry.future.set_result(completion)
                case Rejected(request_id=request_id, reason=reason):
                    entry = self._open.pop(request_id, None)
                    if entry is not None:
                        entry.future.set_exception(EngineFailure(f"vLLM does not accept the request: {reason}"))
                case Adopted(manifest=manifest):
                    self._done_with(number, manifest)
                case Failed(reason=reason):
                    self._lost(number, reason)

    def _done_with(self, number: int, manifest: WeightManifest | None) -> None:
        """A replica needs the manifest's file no more, nor those before it; all files when it is None."""
        for path, published in list(self._published.items()):
            if manifest is None or published.adopt.manifest == manifest:
                published.waiting.discard(number)
            if not published.waiting:
                del self._published[path]
                Path(path).unlink(missing_ok=True)

    def _lost(self, number: int, reason: str) -> None:
        """A replica is no more: the others take over, and without others every request fails."""
        if number not in self._alive:
            return
        self._alive.discard(number)
        self._loss = f"vLLM replica {number} ended: {reason}"
        self._done_with(number, None)
        for entry in [entry for entry in self._open.values() if entry.replica == number]:
            entry.replicas_lost += 1
            if entry.cancelled:
                del self._open[entry.request.request_id]
                entry.future.set_result(_nothing(entry.request))
                continue
            # What kills one replica after the other must not take them all.
            if not self._alive or entry.replicas_lost > 1:
                del self._open[entry.request.request_id]
                entry.future.set_exception(EngineFailure(self._loss))
                continue
            entry.first_version = None
            entry.replica = self._place(entry.request)
            self._replicas[entry.replica].send(Submit(request=entry.request))


def _nothing(request: GenerateRequest) -> Completion:
    """The completion of a request that was cancelled where nothing is left of it."""
    return Completion(
        request_id=request.request_id,
        token_ids=np.zeros(0, dtype=np.int64),
        logprobs=np.zeros(0),
        policy_version=np.zeros(0, dtype=np.int64),
        finish_reason="cancelled",
    )


def _roomy_folder(model: Any) -> str | None:
    """A file system in memory, as weights are only passed on; None, the usual folder, where two versions do not fit."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 2 * size + _SPARE_BYTES:
        return _MEMORY
    return None


def _write_model_folder(model: Any, folder: Path) -> None:
    """The model's config.json without what describes files that it was loaded from."""
    folder.mkdir()
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
