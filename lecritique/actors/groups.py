"""A trainer whose model is in shards on several actors: rank 0 is asked, the others follow it, and all end together."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from typing import Any

from lecritique.actors import causes
from lecritique.actors.causes import Inquest
from lecritique.actors.cluster import ActorLost, Seat
from lecritique.actors.crew import Casting, Crew, Member
from lecritique.core.errors import RoleFailure


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
        self._inquest: Inquest | None = None

    def ask(self, method: str, *arguments: Any) -> Any:
        """What rank 0's host returns or raises.

        Raises:
            ActorLost: the process of one of the ranks has ended.
            RoleFailure: one of the ranks has failed.
        """
        inquest = self._inquest
        try:
            return super().ask(method, *arguments)
        except RoleFailure as error:
            if inquest is None:
                raise
            # A rank that has ended ends rank 0 as well, or makes its collective fail: what ended first is the reason.
            cause = inquest.cause(error)
            self._end_ranks(inquest)
            if cause is error:
                raise
            raise cause from error

    def begin(self, *, anew: bool, more: tuple[Any, ...] = ()) -> Future[Any]:
        """Have hosts made by new actors for all ranks."""
        with self._lock:
            self._inquest = None
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
        first = [each for each in wait(every, self._crew.start_seconds, FIRST_EXCEPTION).done if each.exception()]
        if first:
            # The others would wait for it in vain; where it failed because another was lost, that is what is said.
            wait(every, causes.NOTICE_SECONDS)
            failure = self._lost_while_made(every) or first[0].exception()
            self._end_all()
            raise failure  # type: ignore[misc]
        if not all(future.done() for future in every):
            self._end_all()
            raise self.late()
        super().started(made)
        for member, future in zip(self._others, self._made, strict=True):
            member.started(future)
        with self._lock:
            inquest = Inquest(self, {each.call("follow", limited=False): each for each in self._others})
            self._inquest = inquest
        threading.Thread(target=self._watch, args=(inquest,), name=f"{self.name} watch", daemon=True).start()

    def dismiss(self) -> None:
        """End all actors."""
        for each in self._others:
            each.dismiss()
        super().dismiss()

    def _watch(self, inquest: Inquest) -> None:
        """Rank 0 would wait for ever for one that has ended."""
        inquest.hold()
        self._end_ranks(inquest)

    def _end_ranks(self, inquest: Inquest) -> None:
        """End those that began with this; nothing where new ones sit in their places."""
        with self._lock:
            if self._inquest is inquest:
                self._end_all()

    def _end_all(self) -> None:
        for each in (*self._others, self):
            each.end()

    def _lost_while_made(self, every: Sequence[Future[Any]]) -> ActorLost | None:
        """Whose process has ended while its host was made, by rank."""
        ended = [
            (each, future.exception())
            for each, future in zip((self, *self._others), every, strict=True)
            if future.done()
        ]
        return next((each.fallen(error) for each, error in ended if isinstance(error, ActorLost)), None)
