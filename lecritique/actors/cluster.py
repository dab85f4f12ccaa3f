"""What is asked of whatever runs actors. Ray is one answer (`ray_cluster.py`); tests have another."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from lecritique.core.errors import RoleFailure

Strategy = Literal["pack", "spread", "strict_pack", "strict_spread"]


class ActorLost(RoleFailure):
    """An actor's process has ended, hangs, or can no longer be reached."""


class CollectiveFailure(RoleFailure):
    """A rank of a group failed with what a collective raises: a process may be gone, or all ranks failed alike."""


class TrainerLost(ActorLost):
    """The actor of a trainer: what it had learnt since the newest checkpoint is gone."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """The place of one actor.

    Attributes:
        role: `engine`, `evaluator`, `policy trainer` or `value trainer`.
        number: among the actors of the role; of a trainer's it is the rank.
        cpus: it asks for.
        gpus: it asks for.
        concurrent_calls: that it works on at once.
    """

    role: str
    number: int = 0
    cpus: float
    gpus: float
    concurrent_calls: int = 1

    @property
    def name(self) -> str:
        """In messages and events, such as `engine 0`, `policy trainer` and, of rank 1, `policy trainer rank 1`."""
        if not self.role.endswith("trainer"):
            return f"{self.role} {self.number}"
        return f"{self.role} rank {self.number}" if self.number else self.role

    @property
    def log_name(self) -> str:
        """Of the file with what it prints."""
        return self.name.replace(" ", "-") + ".log"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Where a run's actors go.

    Attributes:
        address: `local` starts a cluster on this machine, `auto` finds one, anything else is where one is.
        seats: all actors.
        strategy: of laying them on nodes.
        start_seconds: until all of them must have a place.
        object_store_bytes: of a cluster that is started here.
    """

    address: str
    seats: tuple[Seat, ...]
    strategy: Strategy
    start_seconds: float
    object_store_bytes: int

    @property
    def cpus(self) -> float:
        """All CPUs that are asked for."""
        return sum(seat.cpus for seat in self.seats)

    @property
    def gpus(self) -> float:
        """All GPUs."""
        return sum(seat.gpus for seat in self.seats)


class Actor(Protocol):
    """A process somewhere that runs a `Stage`."""

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """What `Stage.method(*arguments)` answers.

        The future holds what the role raised, or ActorLost when the process has ended.
        """
        ...

    def ping(self) -> Future[Any]:
        """Answered at once while the process lives, whatever else it works on; raises nothing itself.

        The future holds ActorLost when the process has ended.
        """
        ...

    def kill(self) -> None:
        """End it at once, also while it is stopped; nothing happens where it has ended."""
        ...


class Cluster(Protocol):
    """Starts actors."""

    def start(self, seat: Seat, *, log: Path, environment: Mapping[str, str]) -> Actor:
        """A new actor in the seat, whose actor before has ended; it starts while this returns."""
        ...
