"""An engine over actors: requests are shared out by group, and an actor that ends loses none of them.

Each replica is told what is new and works one bounded round, a decoded chunk, and reports. The caller's thread drives
the rounds (`advance`), so one replica does what the embedded engine does in one process, to the last bit.

A request's seed fixes its tokens, so what a lost replica had open is asked again. Where `exact` is asked for, its
replacement hears every round since the weights last changed, and is then the same engine to the last bit: a replica's
state follows from what it was told since. Otherwise it is asked for what was open, which gives the same tokens up to
floating-point ties.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lecritique.actors.cluster import ActorLost
from lecritique.actors.crew import Member
from lecritique.actors.messages import Cancel, Round, RoundReport
from lecritique.core.errors import EngineFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.weights import WeightManifest
from lecritique.rollout.vllm_supervision import ReplicaLost

# Groups whose replica is remembered; one that is older is placed anew.
_REMEMBERED_GROUPS = 4096
_CLOSE_SECONDS = 5.0


@dataclass(kw_only=True, eq=False)
class _Open:
    """A request without a completion."""

    request: GenerateRequest
    future: Future[Completion]
    replica: _Replica
    first_version: int | None = None
    cancelled: bool = False


class _Replica:
    """One actor, and what it was told."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.open: OrderedDict[str, _Open] = OrderedDict()
        self.untold: deque[GenerateRequest | Cancel] = deque()
        # Since the weights changed, where rounds are to be told again.
        self.rounds: list[Round] = []
        self.to_repeat: deque[Round] = deque()
        self.running: Future[RoundReport] | None = None
        self.incarnation = member.incarnation

    @property
    def has_work(self) -> bool:
        return bool(self.open or self.untold or self.to_repeat)


class RemoteEngine:
    """Serves the engine protocol from actors that hold an `EngineHost`.

    Args:
        members: one for each replica.
        rows: sequences that a replica decodes at once. It is told of twice as many requests; others wait here.
        exact: a replica that is replaced goes on to the same bits; `adopt` is then called by the thread that drives
            the rounds, while no request is open.
    """

    def __init__(self, members: Sequence[Member], *, rows: int, exact: bool) -> None:
        self._replicas = [_Replica(member) for member in members]
        self._told_at_most = 2 * rows
        self._exact = exact
        self._open: dict[str, _Open] = {}
        self._places: OrderedDict[GroupId, _Replica] = OrderedDict()
        self._manifest: WeightManifest | None = None
        self._adopting = threading.Lock()
        self._closed = False
        self._tell: Callable[[ReplicaLost], None] = lambda lost: None
        self.restarts = 0
        """Replicas that were replaced so far, and processes that they have replaced themselves."""
        for replica in self._replicas:
            replica.member.prepare = partial(self._tell_weights, replica.member)

    def watch(self, tell: Callable[[ReplicaLost], None]) -> None:
        """Have `tell` called with every process of a replica's own that fails from now on, by who drives the rounds."""
        self._tell = tell

    def submit(self, request: GenerateRequest) -> Future[Completion]:
        """Queue a request."""
        if request.request_id in self._open:
            raise ValueError(f"request {request.request_id} is already queued")
        future: Future[Completion] = Future()
        replica = self._place(request)
        entry = _Open(request=request, future=future, replica=replica)
        self._open[request.request_id] = replica.open[request.request_id] = entry
        replica.untold.append(request)
        return future

    def cancel(self, request_id: str) -> None:
        """Give up a request; its future gets what was sampled as soon as its replica has heard of it."""
        entry = self._open.get(request_id)
        if entry is None or entry.cancelled:
            return
        entry.cancelled = True
        if entry.request in entry.replica.untold:
            entry.replica.untold.remove(entry.request)
            self._complete(_nothing(entry.request))
        else:
            entry.replica.untold.append(Cancel(request_id=request_id))

    def oldest_version(self, request_id: str) -> int | None:
        """The version of the request's first sampled token, as of the latest round."""
        entry = self._open.get(request_id)
        return None if entry is None else entry.first_version

    def adopt(self, manifest: WeightManifest) -> None:
        """Have every replica open these weights now and serve them from its next round on."""
        with self._adopting:
            self._manifest = manifest
            opened = [replica.member.call("adopt", manifest) for replica in self._replicas]
            for future in opened:
                with suppress(ActorLost):  # its next round finds that out, and its replacement is told
                    future.result()
        if self._exact:
            for replica in self._replicas:
                replica.rounds = [tuple(entry.request for entry in replica.open.values())] if replica.open else []

    def advance(self) -> bool:
        """Until a replica has done its round; False when no request is open.

        Raises:
            RoleFailure: a replica has ended and no replacement is left.
        """
        if self._closed:  # whoever still drives it took long to stop
            return False
        for replica in self._replicas:
            self._begin_round(replica)
        running = [replica.running for replica in self._replicas if replica.running is not None]
        if running:
            wait(running, return_when=FIRST_COMPLETED)
        for replica in self._replicas:
            if replica.running is not None and replica.running.done():
                self._end_round(replica, replica.running)
        return bool(self._open)

    def close(self) -> None:
        """Cancel what is unfinished, and let the replicas go; a second call does nothing.

        By then a run that went back to a checkpoint may have made new hosts in the same places.
        """
        if self._closed:
            return
        self._closed = True
        for entry in self._open.values():
            entry.future.cancel()
        self._open.clear()
        closing = [replica.member.call("close") for replica in self._replicas]
        wait(closing, timeout=_CLOSE_SECONDS)

    def _begin_round(self, replica: _Replica) -> None:
        if replica.running is not None or not replica.has_work:
            return
        if replica.to_repeat:
            told = replica.to_repeat.popleft()
        else:
            told = self._next_commands(replica)
            if self._exact:
                replica.rounds.append(told)
        replica.incarnation = replica.member.incarnation
        replica.running = replica.member.call("work", told)

    def _next_commands(self, replica: _Replica) -> Round:
        """What is new, as far as the replica may be told of it."""
        waiting = sum(isinstance(command, GenerateRequest) for command in replica.untold)
        room = self._told_at_most - (len(replica.open) - waiting)
        told: list[GenerateRequest | Cancel] = []
        kept: deque[GenerateRequest | Cancel] = deque()
        for command in replica.untold:
            if isinstance(command, GenerateRequest) and room <= 0:
                kept.append(command)
                continue
            room -= isinstance(command, GenerateRequest)
            told.append(command)
        replica.untold = kept
        return tuple(told)

    def _end_round(self, replica: _Replica, running: Future[RoundReport]) -> None:
        replica.running = None
        try:
            report = running.result()
        except ActorLost as lost:
            replica.member.replace(replica.incarnation, lost)
            # More than one where a replacement has ended while it loaded.
            self.restarts += replica.member.incarnation - replica.incarnation
            self._ask_again(replica)
            return
        for failed in report.losses:
            self.restarts += failed.replacement is not None
            self._tell(replace(failed, actor=replica.member.name))
        # What was told again has ended before: nobody waits for it any more.
        for completion in report.completions:
            self._complete(completion)
        for request_id, reason in report.failures.items():
            entry = self._forget(request_id)
            if entry is not None:
                entry.future.set_exception(EngineFailure(f"{replica.member.name}: {reason}"))
        for request_id, version in report.first_versions.items():
            if request_id in self._open:
                self._open[request_id].first_version = version

    def _ask_again(self, replica: _Replica) -> None:
        """Have the replacement told what the replica before it was."""
        if self._exact:
            replica.to_repeat = deque(replica.rounds)
            return
        untold = {id(command) for command in replica.untold}
        told = [entry for entry in replica.open.values() if id(entry.request) not in untold]
        for entry in told:
            entry.first_version = None
        replica.to_repeat = deque([tuple(entry.request for entry in told if not entry.cancelled)])
        replica.untold = deque(command for command in replica.untold if isinstance(command, GenerateRequest))
        for entry in [entry for entry in told if entry.cancelled]:
            self._complete(_nothing(entry.request))

    def _complete(self, completion: Completion) -> None:
        entry = self._forget(completion.request_id)
        if entry is not None:
            entry.future.set_result(completion)

    def _forget(self, request_id: str) -> _Open | None:
        entry = self._open.pop(request_id, None)
        if entry is not None:
            del entry.replica.open[request_id]
        return entry

    def _tell_weights(self, member: Member) -> None:
        if self._manifest is not None:
            member.ask("adopt", self._manifest)

    def _place(self, request: GenerateRequest) -> _Replica:
        """The replica of the request's group, or the one with the fewest requests."""
        group = request.sequence_id.group
        replica = self._places.pop(group, None) or min(self._replicas, key=lambda each: len(each.open))
        self._places[group] = replica
        if len(self._places) > _REMEMBERED_GROUPS:
            self._places.popitem(last=False)
        return replica


def _nothing(request: GenerateRequest) -> Completion:
    """The completion of a request that was cancelled where nothing is left of it."""
    return Completion(
        request_id=request.request_id,
        token_ids=np.zeros(0, dtype=np.int64),
        logprobs=np.zeros(0),
        policy_version=np.zeros(0, dtype=np.int64),
        finish_reason="cancelled",
    )
