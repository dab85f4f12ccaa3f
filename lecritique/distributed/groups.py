"""The group of processes that train together: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from lecritique.core.errors import ConfigurationError

# What `torchrun` sets for each process that it starts.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# While rank 0 collects rollouts the others wait in a collective.
_PATIENCE = timedelta(hours=2)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which process this is. `local_rank` counts those of one machine and says which GPU is whose."""

    rank: int
    ranks: int
    local_rank: int

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.ranks and 0 <= self.local_rank <= self.rank):
            raise ConfigurationError(
                f"rank {self.rank} (on its machine {self.local_rank}) of {self.ranks} processes is none: expected "
                "0 <= LOCAL_RANK <= RANK < WORLD_SIZE."
            )

    def device(self, kind: str) -> torch.device:
        """The device of this process, `cpu` or a GPU of its own."""
        return torch.device(kind) if kind == "cpu" else torch.device(kind, self.local_rank)


def place_of(environment: Mapping[str, str] = os.environ) -> Place:
    """Where torchrun's variables put this process.

    Raises:
        ConfigurationError: one of them is missing or is no number.
    """
    missing = [name for name in VARIABLES if not environment.get(name)]
    if missing:
        raise ConfigurationError(
            f"training on several processes needs {', '.join(VARIABLES)} in the environment, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set: start the processes with torchrun."
        )
    try:
        rank, ranks, local_rank = (int(environment[name]) for name in VARIABLES[:3])
    except ValueError as error:
        raise ConfigurationError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}.") from error
    return Place(rank=rank, ranks=ranks, local_rank=local_rank)


def join(place: Place, device: torch.device, *, meeting: Path | None = None) -> None:
    """Become one of a group of processes, until `torch.distributed.destroy_process_group` or the end of this one.

    Args:
        place: of this process.
        device: what it computes on.
        meeting: a file that does not exist yet, where the processes find each other; by default they meet where
            torchrun's variables say.

    Raises:
        ConfigurationError: the group does not come together, or torch lacks what it needs.
    """
    backend = dist.get_default_backend_for_device(device)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    try:
        dist.init_process_group(
            backend,
            rank=place.rank,
            world_size=place.ranks,
            init_method="env://" if meeting is None else meeting.absolute().as_uri(),
            timeout=_PATIENCE,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        raise ConfigurationError(f"the {place.ranks} processes cannot be joined with {backend}: {reason}") from error


@contextmanager
def process_group(place: Place, device: torch.device, *, meeting: Path | None = None) -> Iterator[None]:
    """`join` for as long as the context lasts."""
    join(place, device, meeting=meeting)
    try:
        yield
    finally:
        dist.destroy_process_group()
