"""Has groups scored by the evaluator while it serves newer and newer versions: each group from one version in the end.

A member is scored as soon as it has ended, where its context does not need the others. When the group is complete,
the members whose values are of an older version than the newest among them are scored again (known fault 27).

 member ended ──► early request ──► values of version m ─┐
 group complete ─────────────────────────────────────────┴─► all of one version? ──► scored
                          ▲ no: the older ones again, from the newest version on ──┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Protocol

from lecritique.core.errors import Overloaded
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.spending import Reading, tokens_read
from lecritique.core.trajectory import ContextInsertion, Trajectory, ValuePrediction, ValueRequest
from lecritique.credit.estimators import ScoredGroup
from lecritique.runtime.events import Scored


class Evaluator(Protocol):
    """What answers value requests on a thread of its own."""

    def submit(self, requests: Sequence[ValueRequest], *, minimum_version: int = 0) -> Future[list[ValuePrediction]]:
        """Queue requests; they are answered in order, from one version of at least `minimum_version`."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class CompleteGroup:
    """Trajectories of the valid members of a complete group, with what the critic reads beside each."""

    group_id: GroupId
    trajectories: tuple[Trajectory, ...]
    contexts: tuple[ContextInsertion | None, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ask:
    requests: tuple[ValueRequest, ...]
    minimum_version: int


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """Complete groups that become available together."""

    groups: tuple[CompleteGroup, ...]
    attempts: int = 0
    keys: frozenset[tuple[RolloutId, int]] = field(default_factory=frozenset)


def _key(trajectory: Trajectory) -> tuple[RolloutId, int]:
    return trajectory.rollout_id, trajectory.segment_index


class GroupScorer:
    """Asks, collects and asks again. All methods are called from one thread, the orchestrator's.

    Args:
        evaluator: answers.
        emit: takes a `Scored` event from whatever thread an answer arrives on; it is handed back to `take`.
        read: counts what the evaluator is asked to read.
    """

    def __init__(self, evaluator: Evaluator, emit: Callable[[Scored], None], read: Reading | None = None) -> None:
        self._read = read or Reading()
        self._evaluator = evaluator
        self._emit = emit
        self._held: dict[tuple[RolloutId, int], ValuePrediction] = {}
        self._asked: set[tuple[RolloutId, int]] = set()
        self._waiting: list[_Waiting] = []
        self._unasked: deque[_Ask] = deque()

    @property
    def waiting_groups(self) -> int:
        """Complete groups whose values are not all there."""
        return sum(len(waiting.groups) for waiting in self._waiting)

    def score_early(self, trajectories: Sequence[Trajectory], contexts: Sequence[ContextInsertion | None]) -> None:
        """Ask for a member whose group goes on."""
        self._ask(_requests(trajectories, contexts), minimum_version=0)

    def score(self, groups: Sequence[CompleteGroup], *, minimum_version: int = 0) -> list[ScoredGroup]:
        """Ask for what complete groups lack, all groups in one request; those that lack nothing already."""
        waiting = _Waiting(groups=tuple(groups))
        waiting.keys = frozenset(_key(t) for group in groups for t in group.trajectories)
        self._waiting.append(waiting)
        return self._settle(waiting, minimum_version)

    def take(self, event: Scored) -> list[ScoredGroup]:
        """Groups that an answer completes.

        Raises:
            BaseException: what the evaluator answered with instead of values.
        """
        if event.error is not None:
            raise event.error
        for request, prediction in zip(event.requests, event.predictions, strict=True):
            key = _key(request.trajectory)
            self._asked.discard(key)
            held = self._held.get(key)
            if held is None or prediction.value_version >= held.value_version:
                self._held[key] = prediction
        done = []
        for waiting in list(self._waiting):
            if not waiting.keys.isdisjoint(_key(request.trajectory) for request in event.requests):
                done += self._settle(waiting, 0)
        return done

    def forget(self, group_id: GroupId) -> None:
        """Drop values that came early for a group that will not be credited."""
        for key in [key for key in self._held if key[0].group == group_id]:
            del self._held[key]

    def ask_again(self) -> None:
        """Hand in what found the evaluator's queue full."""
        while self._unasked:
            if not self._submit(self._unasked[0]):
                return
            self._unasked.popleft()

    def _settle(self, waiting: _Waiting, minimum_version: int) -> list[ScoredGroup]:
        """The groups if all values are there and of one version for each; else ask for what is missing or older."""
        if any(key in self._asked for key in waiting.keys):
            return []
        stale: list[ValueRequest] = []
        newest = minimum_version
        for group in waiting.groups:
            held = [self._held.get(_key(t)) for t in group.trajectories]
            newest_here = max([minimum_version, *(p.value_version for p in held if p is not None)])
            # After one partial repair the versions may have moved on again: then everything is asked in one request.
            whole = waiting.attempts > 0 and len({p.value_version for p in held if p is not None}) > 1
            old = [
                request
                for request, p in zip(_requests(group.trajectories, group.contexts), held, strict=True)
                if whole or p is None or p.value_version < newest_here
            ]
            stale += old
            newest = max(newest, newest_here if old else minimum_version)
        if stale:
            waiting.attempts += 1
            self._ask(stale, minimum_version=newest)
            return []
        self._waiting.remove(waiting)
        return [self._scored(group) for group in waiting.groups]

    def _scored(self, group: CompleteGroup) -> ScoredGroup:
        predictions = tuple(self._held.pop(_key(trajectory)) for trajectory in group.trajectories)
        return ScoredGroup(group_id=group.group_id, trajectories=group.trajectories, predictions=predictions)

    def _ask(self, requests: Sequence[ValueRequest], *, minimum_version: int) -> None:
        if not requests:
            return
        ask = _Ask(requests=tuple(requests), minimum_version=minimum_version)
        self._read.add(tokens_read(request.trajectory, request.context) for request in requests)
        self._asked.update(_key(request.trajectory) for request in requests)
        if self._unasked or not self._submit(ask):
            self._unasked.append(ask)

    def _submit(self, ask: _Ask) -> bool:
        try:
            future = self._evaluator.submit(ask.requests, minimum_version=ask.minimum_version)
        except Overloaded:
            return False
        future.add_done_callback(lambda answered: self._emit(_event(ask, answered)))
        return True


def _requests(
    trajectories: Sequence[Trajectory], contexts: Sequence[ContextInsertion | None]
) -> tuple[ValueRequest, ...]:
    return tuple(
        ValueRequest(trajectory=trajectory, context=context)
        for trajectory, context in zip(trajectories, contexts, strict=True)
    )


def _event(ask: _Ask, answered: Future[list[ValuePrediction]]) -> Scored:
    try:
        return Scored(requests=ask.requests, predictions=tuple(answered.result()), error=None)
    except (Exception, CancelledError) as error:  # the evaluator's boundary: the orchestrator decides
        return Scored(requests=ask.requests, predictions=(), error=error)
