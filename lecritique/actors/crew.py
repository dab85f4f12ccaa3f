"""The actors of one run: started together, made anew where the run goes back, replaced where they end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lecritique.actors.cluster import ActorLost, Cluster, Seat
from lecritique.actors.liveness import Patience, Watch, WatchedActor
from lecritique.core.errors import RoleFailure

# Takes (kind, fields) of an event.
Tell = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Casting:
    """What an actor in a seat holds: the function that makes it, `module:function`, and its arguments."""

    maker: str
    arguments: tuple[Any, ...]


class Member:
    """A seat and whoever sits in it.

    Args:
        seat: the place.
        casting: what the actor holds.
        crew: to which it belongs.
    """

    def __init__(self, seat: Seat, casting: Casting, crew: Crew) -> None:
        self.seat = seat
        self.incarnation = 0
        """Which actor sits here; it changes when it is replaced."""
        self.prepare: Callable[[], None] = lambda: None
        """What a replacement must be told before it is asked anything else."""
        self._casting = casting
        self._crew = crew
        self._actor: WatchedActor | None = None
        self._number = 0
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """Of the seat."""
        return self.seat.name

    @property
    def number(self) -> int:
        """Of the host: how many were made in this seat."""
        return self._number

    def call(self, method: str, *arguments: Any, limited: bool = True) -> Future[Any]:
        """What the host's method returns or raises; ActorLost when the actor has ended or hangs.

        Args:
            method: of the host.
            arguments: of the method.
            limited: False for a call that may take as long as the actor lives.
        """
        with self._lock:  # not in the middle of a replacement
            assert self._actor is not None, f"{self.name} was not started"
            return self._actor.call(self._number, method, arguments, limited=limited)

    def ping(self) -> Future[Any]:
        """Answered while the actor's process lives; ActorLost when it has ended or nobody sits here."""
        actor = self._actor
        if actor is not None:
            return actor.ping()
        answer: Future[Any] = Future()
        answer.set_exception(ActorLost("nobody sits there any more"))
        return answer

    def ask(self, method: str, *arguments: Any) -> Any:
        """`call`, waiting for the answer."""
        return self.call(method, *arguments).result()

    def persistently(self, do: Callable[[], Any]) -> Any:
        """What `do` gives, which asks this member; asked again of a replacement when the actor ends meanwhile.

        Raises:
            RoleFailure: no replacement is left.
        """
        while True:
            incarnation = self.incarnation
            try:
                return do()
            except ActorLost as lost:
                self.replace(incarnation, lost)

    def replace(self, incarnation: int, lost: ActorLost) -> None:
        """Put another actor in place of one that has ended; nothing where another thread has done so.

        Args:
            incarnation: of the one that ended.
            lost: how it was noticed.

        Raises:
            RoleFailure: no replacement is left, or it does not start.
        """
        with self._lock:
            while self.incarnation == incarnation:
                self._crew.spend_restart(self, lost)
                try:
                    self.started(self.begin(anew=True))
                    self.prepare()
                except ActorLost as again:
                    incarnation, lost = self.incarnation, again

    def begin(self, *, anew: bool, more: tuple[Any, ...] = ()) -> Future[Any]:
        """Have a host made: by a new actor with `anew`, else by the one that sits here, if any.

        Args:
            anew: see above.
            more: arguments of its maker beside those of the casting.
        """
        if anew or self._actor is None:
            if self._actor is not None:
                self._actor.kill()
            self._actor = self._crew.start(self.seat)
            self.incarnation += 1
        self._number += 1
        return self._actor.make(self._number, self._casting.maker, (*self._casting.arguments, *more))

    def started(self, made: Future[Any]) -> None:
        """Wait for a host and say where it lives.

        Raises:
            ActorLost: the actor has ended.
            RoleFailure: it takes too long.
        """
        try:
            where = made.result(timeout=self._crew.start_seconds)
        except TimeoutError as error:
            raise self.late() from error
        except ActorLost as lost:
            raise self.fallen(lost) from lost
        self._crew.tell("actor_started", role=self.name, pid=where.pid, machine=where.machine)

    def fallen(self, lost: ActorLost) -> ActorLost:
        """What is said where its process ended while a host was made."""
        return ActorLost(f"{self.name} ended while it loaded: {lost}")

    def late(self) -> RoleFailure:
        """What is said where a host took too long to be made."""
        return RoleFailure(
            f"{self.name} did not start within {self._crew.start_seconds:g} seconds ('runtime.actors.start_seconds')."
        )

    def end(self) -> None:
        """End the actor, and leave it in its seat: whoever asks it hears that it is lost."""
        if self._actor is not None:
            self._actor.kill()

    def dismiss(self) -> None:
        """End the actor."""
        if self._actor is not None:
            self._actor.kill()
            self._actor = None


class Crew:
    """Everyone of a run.

    Args:
        cluster: where actors are started.
        cast: what sits where.
        logs: folder of what they print.
        start_seconds: how long one may take to load.
        patience: with one that owes an answer.
        restarts: replacements in all.
        tell: takes events.
    """

    def __init__(
        self,
        cluster: Cluster,
        cast: Mapping[Seat, Casting],
        *,
        logs: Path,
        start_seconds: float,
        patience: Patience,
        restarts: int,
        tell: Tell,
    ) -> None:
        self.start_seconds = start_seconds
        self.tell = tell
        self._cluster = cluster
        self._logs = logs
        self._restarts = restarts
        self._restarted = 0
        self._lock = threading.Lock()
        self._patience = patience
        self._watch = Watch(patience.look_seconds)
        self.members = [Member(seat, casting, self) for seat, casting in cast.items()]

    def of(self, role: str) -> Sequence[Member]:
        """All members of a role."""
        return [member for member in self.members if member.seat.role == role]

    def begin(self) -> None:
        """Have everyone make a host, all at the same time; actors that live are kept.

        Raises:
            LecritiqueError: one of them cannot.
        """
        for member in self.members:
            member.prepare = lambda: None  # what the roles before have told it is void
        beginnings = [(member, member.begin(anew=False)) for member in self.members]
        # Started before anybody is waited for, so that a dead one costs no second wait.
        for member, made in beginnings:
            try:
                member.started(made)
            except ActorLost:
                self._start_once_more(member)

    def _start_once_more(self, member: Member) -> None:
        try:
            member.started(member.begin(anew=True))
        except ActorLost as lost:
            raise ActorLost(f"{lost}.") from lost  # ends the run's start: a sentence

    def start(self, seat: Seat) -> WatchedActor:
        """A new actor, which is watched from now on."""
        self._logs.mkdir(parents=True, exist_ok=True)
        started = self._cluster.start(seat, log=self._logs / seat.log_name, environment=_environment(seat))
        actor = WatchedActor(started, self._patience)
        self._watch.add(actor)
        return actor

    def spend_restart(self, member: Member, lost: ActorLost) -> None:
        """One replacement less; RoleFailure when none is left."""
        with self._lock:
            left = self._restarted < self._restarts
            self._restarted += left
        self.tell("actor_lost", role=member.name, reason=str(lost), replaced=left)
        if not left:
            raise RoleFailure(
                f"{member.name} has ended ({lost}), and all 'runtime.actors.restarts' = {self._restarts} replacements "
                "are used up."
            ) from lost

    def close(self) -> None:
        """End every actor."""
        self._watch.close()
        for member in self.members:
            member.dismiss()


def _environment(seat: Seat) -> dict[str, str]:
    """Of an actor: as many threads as it has CPUs, unless the user has chosen, and none that spin while they wait."""
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, int(seat.cpus))),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"),
    }
