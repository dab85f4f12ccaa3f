"""An engine whose tokens come from vLLM, in one or several processes of its own.

Each replica is a process that holds vLLM and the weights (`vllm_server.py`); requests and completions go through a
pipe, weights as `vllm_weights.py` says. Groups stay on one replica, so that members share the keys of their prompt and
turns those of the turns before; a new group goes where the fewest requests are open.

A replica that dies or hangs loses nothing: another is started in its place (`vllm_supervision.py`) and gets the newest
weights, and what it had open is asked again, of the other replicas or, without others, of the new one. Where no other
may be started and none is left, requests fail.

A request's seed goes to vLLM. The same seed gives the same tokens up to floating-point ties, but not those of the
embedded engine, which draws differently from the same distribution.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lecritique.core.errors import EngineFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.weights import WeightManifest
from lecritique.models.weights import State, WeightStore, state_digest
from lecritique.rollout.vllm_messages import (
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
)
from lecritique.rollout.vllm_replica import ReplicaProcess
from lecritique.rollout.vllm_supervision import ReplicaLost, Replicas, Supervision
from lecritique.rollout.vllm_weights import WeightTransfer

# Groups whose replica is remembered; one that is older is placed anew.
_REMEMBERED_GROUPS = 4096
# A request that was open on so many replicas when they failed may be what they fail of.
_MOST_LOSSES = 3


@dataclass(kw_only=True, eq=False)
class _Open:
    """A request without a completion, and where it is: None while it waits for a replica that starts."""

    request: GenerateRequest
    future: Future[Completion]
    replica: int | None = None
    first_version: int | None = None
    replicas_lost: int = 0
    cancelled: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class _Version:
    """The newest weights, for replicas that start later."""

    manifest: WeightManifest
    state: State


class VllmEngine:
    """Serves the engine protocol from vLLM.

    Args:
        model: the policy; its configuration and first weights are taken.
        store: where versions are opened.
        settings: of every replica, but the model's folder.
        environments: environment variables of each replica, such as its GPUs; as many replicas are started.
        supervision: when a replica counts as failed, and how many are replaced.
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
        supervision: Supervision,
        start: Callable[..., ReplicaProcess] = ReplicaProcess,
    ) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._open: dict[str, _Open] = {}
        self._places: OrderedDict[GroupId, int] = OrderedDict()
        self._serving: set[int] = set()
        self._starting: set[int] = set()
        self._loss = "the engine is closed"
        self._closed = False
        self._tell: Callable[[ReplicaLost], None] = lambda lost: None
        self._transfer = WeightTransfer(model, kind=settings.transfer)
        own = replace(settings, model_folder=str(self._transfer.model_folder))
        self._replicas = Replicas(
            own, environments, self._transfer.folder, supervision, start=start, report=self._reported
        )
        state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self._newest = _Version(
            manifest=WeightManifest(role="policy", version=0, digest=state_digest(state)), state=state
        )
        try:
            self._replicas.start()
            self._serve_first(self._replicas.processes)
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """Replicas that were started in place of failed ones so far."""
        return self._replicas.restarts

    def watch(self, tell: Callable[[ReplicaLost], None]) -> None:
        """Have `tell` called with every replica that fails from now on, on a thread of the engine."""
        self._tell = tell

    def submit(self, request: GenerateRequest) -> Future[Completion]:
        """Queue a request."""
        future: Future[Completion] = Future()
        with self._lock:
            if request.request_id in self._open:
                raise ValueError(f"request {request.request_id} is already queued")
            if not self._serving and not self._starting:
                future.set_exception(EngineFailure(self._loss))
                return future
            entry = _Open(request=request, future=future)
            self._open[request.request_id] = entry
            self._ask(entry)
        return future

    def cancel(self, request_id: str) -> None:
        """Give up a request; its future gets what was sampled as soon as its replica has heard of it."""
        with self._lock:
            entry = self._open.get(request_id)
            if entry is None:
                return
            entry.cancelled = True
            if entry.replica is None:
                self._end_cancelled(entry)
            else:
                self._replicas.send(entry.replica, Cancel(request_id=request_id))

    def oldest_version(self, request_id: str) -> int | None:
        """The version of the request's first sampled token."""
        with self._lock:
            entry = self._open.get(request_id)
            return entry.first_version if entry else None

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve these weights from the next token on."""
        self._publish(_Version(manifest=manifest, state=self._store.open(manifest)))

    def advance(self) -> bool:
        """Nothing to do: replicas are processes."""
        return False

    def close(self) -> None:
        """Stop; unfinished futures are cancelled. No process is left behind."""
        with self._lock:
            self._closed = True
            unfinished, self._open = list(self._open.values()), {}
            self._serving.clear()
            self._starting.clear()
        for entry in unfinished:
            entry.future.cancel()
        self._replicas.close()
        self._transfer.close()

    def _serve_first(self, processes: Mapping[int, ReplicaProcess]) -> None:
        """All have started, and get their first weights."""
        self._serving = set(processes)
        self._publish(self._newest, first=True)
        for number, process in dict(processes).items():
            # One that ended while others were still starting has said so when nobody expected anything of it.
            if process.failure is not None:
                self._reported(number, Failed(reason=process.failure))

    def _publish(self, version: _Version, *, first: bool = False) -> None:
        """Give every replica these weights; one that starts gets them when it is ready."""
        handover = self._transfer.prepared(version.manifest, version.state, first=first)
        with self._lock:
            self._newest = version
            self._transfer.hand_over(handover, self._serving)
            for number in sorted(self._serving):
                self._replicas.send(number, handover.adopt)

    def _welcome(self, number: int) -> None:
        """A replacement has started: it gets the newest weights, and then requests."""
        while True:
            with self._lock:
                version = self._newest
            handover = self._transfer.prepared(version.manifest, version.state, first=True)
            with self._lock:
                wanted = number in self._starting and version is self._newest
                self._transfer.hand_over(handover, {number} if wanted else ())
                if wanted:
                    self._replicas.send(number, handover.adopt)
                    self._starting.discard(number)
                    self._serving.add(number)
                    for entry in [entry for entry in self._open.values() if entry.replica is None]:
                        self._ask(entry)
                if number not in self._starting:
                    return

    def _ask(self, entry: _Open) -> None:
        """Send a request to a replica that serves; without one it waits for one that starts."""
        entry.replica = self._place(entry.request) if self._serving else None
        if entry.replica is not None:
            self._replicas.send(entry.replica, Submit(request=entry.request))

    def _place(self, request: GenerateRequest) -> int:
        group = request.sequence_id.group
        number = self._places.pop(group, None)
        if number is None or number not in self._serving:
            load = Counter(entry.replica for entry in self._open.values())
            number = min(sorted(self._serving), key=load.__getitem__)
        self._places[group] = number
        if len(self._places) > _REMEMBERED_GROUPS:
            self._places.popitem(last=False)
        return number

    def _reported(self, number: int, report: Report) -> None:
        """A replica said something; called on the thread that listens to it."""
        if isinstance(report, Ready):
            self._ready(number)
            return
        lost = None
        with self._lock:
            if self._closed:
                return
            match report:
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
                    self._transfer.done(number, manifest)
                case Failed(reason=reason):
                    lost = self._lost(number, reason)
        if lost is not None:
            self._tell(lost)

    def _ready(self, number: int) -> None:
        """Of the first replicas nothing is expected yet; one that replaces another gets weights and requests."""
        with self._lock:
            if number not in self._starting:
                return
        try:
            self._welcome(number)
        except Exception as error:  # of the disk or of a device: whatever it is, this replica cannot serve
            self._reported(number, Failed(reason=f"it could not be given weights ({type(error).__name__}: {error})"))

    def _lost(self, number: int, reason: str) -> ReplicaLost | None:
        """A replica is no more: another one is started if it may be, and what it had open is asked again."""
        if number not in self._serving | self._starting:
            return None
        self._serving.discard(number)
        self._starting.discard(number)
        self._transfer.forget(number)
        lost = self._replicas.replace(number, reason)
        if lost.replacement is not None:
            self._starting.add(lost.replacement)
        self._loss = f"vLLM replica {number} ended: {lost.reason}"
        # Those that wait for a replica to start were not open on this one, but it may have been their last hope.
        for entry in [entry for entry in self._open.values() if entry.replica in (number, None)]:
            entry.replicas_lost += entry.replica == number
            entry.replica, entry.first_version = None, None
            if entry.cancelled:
                self._end_cancelled(entry)
            elif entry.replicas_lost >= _MOST_LOSSES or not (self._serving or self._starting):
                del self._open[entry.request.request_id]
                entry.future.set_exception(EngineFailure(self._loss))
            else:
                self._ask(entry)
        return lost

    def _end_cancelled(self, entry: _Open) -> None:
        """Nothing is left of a cancelled request; it ends with no token."""
        del self._open[entry.request.request_id]
        entry.future.set_result(
            Completion(
                request_id=entry.request.request_id,
                token_ids=np.zeros(0, dtype=np.int64),
                logprobs=np.zeros(0),
                policy_version=np.zeros(0, dtype=np.int64),
                finish_reason="cancelled",
            )
        )
