"""What the actors of a trainer hold whose model is in shards on them: rank 0 one, the others another."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lecritique.actors.cluster import CollectiveFailure
from lecritique.actors.hosts import TrainerHost
from lecritique.actors.messages import Done, Figures
from lecritique.distributed.gathering import gathered
from lecritique.distributed.leading import Follower, Leader, restore_on_all
from lecritique.distributed.weights import FileWeightStore
from lecritique.models.ranks import Ranks
from lecritique.runs.state_files import write_tree


class LeadingHost(TrainerHost):
    """Rank 0's of a trainer in shards: what it is asked, the other ranks do as well.

    Args:
        trainer: a `LeadingPolicyTrainer` or a `LeadingValueTrainer`.
        store: its own, with whole weights.
        figures: says where it stands.
        role: `policy` or `critic`, as the other ranks know it.
        leader: of the trainer.
        ranks: all of its processes.
    """

    def __init__(
        self,
        trainer: Any,
        store: FileWeightStore,
        figures: Callable[[Any], Figures],
        *,
        role: str,
        leader: Leader,
        ranks: Ranks,
    ) -> None:
        super().__init__(trainer, store, figures)
        self._role, self._leader, self._ranks = role, leader, ranks

    def save(self, folder: str) -> Done:
        """Write the trainer's state with whole tensors into a new folder; the state of one process looks the same."""
        with self._leader.calling("group", "gather_state", self._role):
            state = gathered(self._trainer.state(), keep=True)
        Path(folder).mkdir(parents=True)
        write_tree(Path(folder), state)
        return self._done(None)

    def restore(self, folder: str) -> Done:
        """Take over the state in a folder, which each rank reads and cuts into shards itself."""
        with self._leader.calling("group", "restore", self._role, Path(folder)):
            restore_on_all(self._trainer, Path(folder), self._ranks)
        return self._done(None)


class FollowingHost:
    """One of the other ranks of a trainer in shards.

    Args:
        follower: holds its trainer.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def follow(self) -> None:
        """Do what rank 0 does, as long as it lives.

        Raises:
            CollectiveFailure: another rank cannot be reached, or this one failed as a collective does.
        """
        try:
            self._follower.follow()
        except torch.OutOfMemoryError:  # a RuntimeError too, and this rank's own
            raise
        except RuntimeError as error:  # what a collective raises when a process is gone, and much else raises too
            traceback.print_exc()
            raise CollectiveFailure(f"{type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Of its text, cut to a length that fits a sentence."""
    return (str(error).splitlines() or [""])[0][:200]
