"""A trainer whose model is in shards on several actors: rank 0 is asked, the others follow it, and all end together."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from pathlib import Path
from typing import Any

from lecritique.actors.cluster import ActorLost, Seat
from lecritique.actors.crew import Casting, Crew, Member
from lecritique.core.errors import RoleFailure

# A process that has just broken a connection takes a moment to be noticed.
_NOTICE_SECONDS = 15.0


class TrainerGroup(Member):
    """The seats of a trainer, by rank, and whoever sits in them. What is asked of it is asked of rank 0.

    A process that has lost another can join no process group again. So all actors are ended where one of them ends, and
    all are new ones whenever a host is made.

    Args:
        cast: what the ranks hold; makers take where they meet as their last argument.
        crew: to which they belong.
        meetings: folder with a file for each start, where its ranks find each other.
    """

    def __init__(self, cast: Mapping[Seat, Casting], crew: Crew, meetings: Path) -> None:
        first, *others = cast
        super().__init__(first, cast[first], crew)
        self._others = [Member(seat, cast[seat], crew) for seat in others]
        self._meetings = meetings
        self._made: list[Future[Any]] = []
        self._following: dict[Future[Any], Member] = {}

    def ask(self, method: str, *arguments: Any) -> Any:
        """What rank 0's host returns or raises.

        Raises:
            ActorLost: the process of one of the ranks has ended, or cannot reach the others.
            RoleFailure: one of the ranks has failed.
        """
        following = self._following
        try:
            return super().ask(method, *arguments)
        except RoleFailure as error:
            # One that has ended ends rank 0 as well, or makes its collective fail: what ended first is the reason.
            wait(
                following, timeout=0.0 if isinstance(error, ActorLost) else _NOTICE_SECONDS, return_when=FIRST_COMPLETED
            )
            cause = _cause(following)
            if cause is None:
                raise
            self._end_ranks(following)
            raise cause from error

    def begin(self, *, anew: bool, more: tuple[Any, ...] = ()) -> Future[Any]:
        """Have hosts made by new actors for all ranks."""
        with self._lock:
            self._following = {}
            self.dismiss()
            self._meetings.mkdir(parents=True, exist_ok=True)
            more = (*more, str(self._meetings / uuid.uuid4().hex))
            self._made = [each.begin(anew=True, more=more) for each in self._others]
            return super().begin(anew=True, more=more)

    def started(self, made: Future[Any]) -> None:
        """Wait for the hosts of all ranks, say where they live, and have the others follow rank 0.

        Raises:
            ActorLost: the actor of one of them has ended.
            LecritiqueError: one cannot make its host, or takes too long.
        """
        every = [made, *self._made]
        if any(future.exception() for future in wait(every, self._crew.start_seconds, FIRST_EXCEPTION).done):
            # The others would wait for it in vain; where it failed because another was lost, that is what is said.
            failed = [future for future in wait(every, _NOTICE_SECONDS).done if future.exception()]
            self._end_all()
            raise max(failed, key=lambda future: isinstance(future.exception(), ActorLost)).exception()  # type: ignore[misc]
        if not all(future.done() for future in every):
            self._end_all()
            raise self.late()
        super().started(made)
        for member, future in zip(self._others, self._made, strict=True):
            member.started(future)
        with self._lock:
            self._following = {each.call("follow", limited=False): each for each in self._others}
        threading.Thread(target=self._watch, args=(self._following,), name=f"{self.name} watch", daemon=True).start()

    def dismiss(self) -> None:
        """End all actors."""
        for each in self._others:
            each.dismiss()
        super().dismiss()

    def _watch(self, following: Mapping[Future[Any], Member]) -> None:
        """Rank 0 would wait for ever for one that has ended."""
        wait(following, return_when=FIRST_COMPLETED)
        self._end_ranks(following)

    def _end_ranks(self, following: Mapping[Future[Any], Member]) -> None:
        """End those that began with these; nothing where new ones sit in their places."""
        with self._lock:
            if self._following is following:
                self._end_all()

    def _end_all(self) -> None:
        for each in (*self._others, self):
            each.end()


def _cause(following: Mapping[Future[Any], Member]) -> Exception | None:
    """Why a rank follows no more: what failed in it, else that its process has ended; None while all follow."""
    ended = [(future.exception(), member) for future, member in following.items() if future.done()]
    failed = next((error for error, _ in ended if isinstance(error, Exception) and not _is_loss(error)), None)
    lost = next((ActorLost(f"{member.name}: {error}") for error, member in ended if _is_loss(error)), None)
    return failed or lost


def _is_loss(error: BaseException | None) -> bool:
    return isinstance(error, ActorLost)
