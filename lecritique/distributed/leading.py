"""Rank 0 decides and the other ranks do the same: what is called on its trainers is called on theirs.

    rank 0:   collect ─► credit ─► policy.step(batch) ─► critic.update(batch) ─► publish ─► checkpoint
                                        │ the batch           │                    │            │
    others:                        policy.step(batch)    critic.update(batch)   publish     checkpoint

What is told between the processes of one run is pickled, as torch does for objects; nothing from outside is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh

from lecritique.core.errors import CheckpointError, LecritiqueError, RoleFailure
from lecritique.core.trajectory import PolicyBatch, ValueBatch
from lecritique.core.weights import WeightManifest
from lecritique.critic.trainer import ValueTrainer
from lecritique.distributed.checkpoints import ShardedCheckpoints, load_sharded
from lecritique.distributed.gathering import gathered
from lecritique.distributed.together import Together
from lecritique.models.adapters import own_weights
from lecritique.models.ranks import Ranks
from lecritique.models.scoring import TokenRow
from lecritique.policy.trainer import PolicyTrainer
from lecritique.runs.state_files import read_tree


class Leader:
    """Tells the others what rank 0 is about to do.

    Args:
        ended: says which of the others are gone, "" while all live.
    """

    def __init__(self, ended: Callable[[], str] = lambda: "") -> None:
        self._ended = ended
        self._within = False
        self.broken = False
        """Whether rank 0 left in the middle of something: nothing that is told after that would be heard."""

    @property
    def busy(self) -> bool:
        """Whether a call is under way, on whichever thread."""
        return self._within

    @contextmanager
    def calling(self, role: str, method: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Have the others call `role.method(...)`, and do the same inside; what that calls in turn is not told again.

        Raises:
            RoleFailure: one of the others is gone.
        """
        if self._within:
            yield
            return
        self._within = True
        try:
            _tell((role, method, args, kwargs))
            yield
        except (LecritiqueError, OSError):  # on all processes alike
            raise
        except BaseException as error:
            self.broken = True
            # What a collective raises when a process is gone is a RuntimeError.
            gone = self._ended() if isinstance(error, RuntimeError) else ""
            if not gone:
                raise
            raise RoleFailure(f"{gone} while rank 0 called '{method}' of the {role}.") from error
        finally:
            self._within = False

    def dismiss(self) -> None:
        """Let the others go."""
        _tell(None)


class LeadingPolicyTrainer(PolicyTrainer):
    """Rank 0's policy trainer."""

    def __init__(self, *args: Any, leader: Leader, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leader = leader

    def step(self, batch: PolicyBatch) -> Mapping[str, float]:
        """As all do it."""
        with self._leader.calling("policy", "step", batch):
            return super().step(batch)

    def scored(self, batch: PolicyBatch) -> PolicyBatch:
        """As all do it."""
        with self._leader.calling("policy", "scored", batch):
            return super().scored(batch)

    def publish(self) -> WeightManifest:
        """As all do it."""
        with self._leader.calling("policy", "publish"):
            return super().publish()


class LeadingValueTrainer(ValueTrainer):
    """Rank 0's value trainer."""

    def __init__(self, *args: Any, leader: Leader, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leader = leader

    def values(self, rows: Sequence[TokenRow]) -> list[NDArray[np.float64]]:
        """As all do it."""
        with self._leader.calling("critic", "values", rows):
            return super().values(rows)

    def update(self, batch: ValueBatch, *, share: float = 1.0) -> Mapping[str, float]:
        """As all do it."""
        with self._leader.calling("critic", "update", batch, share=share):
            return super().update(batch, share=share)

    def publish(self) -> WeightManifest:
        """As all do it."""
        with self._leader.calling("critic", "publish"):
            return super().publish()


class LeadingCheckpoints:
    """Rank 0's checkpoints: the tree is rank 0's, the shards in it are everyone's."""

    def __init__(self, folder: Path, keep: int, *, ranks: Together, mesh: DeviceMesh, leader: Leader) -> None:
        self._own = ShardedCheckpoints(folder, ranks, keep)
        self._folder, self._keep, self._mesh, self._leader = folder, keep, mesh, leader

    def save(self, step: int, tree: Mapping[str, Any]) -> Path:
        """As `ShardedCheckpoints.save`."""
        with self._leader.calling("group", "save", self._folder, self._keep, step):
            return self._own.save(step, tree)

    def load(self, path: Path) -> dict[str, Any]:
        """The tree, for rank 0 to restore its roles from; the others restore theirs at the same time."""
        with self._leader.calling("group", "load", path):
            return load_sharded(path, self._mesh)


class Follower:
    """One of the other ranks.

    Args:
        trainers: policy and, where there is one, critic, by these names.
        ranks: the processes.
        mesh: the same.
    """

    def __init__(self, trainers: Mapping[str, Any], *, ranks: Together, mesh: DeviceMesh) -> None:
        self._trainers = trainers
        self._ranks = ranks
        self._mesh = mesh

    def follow(self) -> None:
        """Do what rank 0 does until it lets go.

        What goes wrong on all processes alike, such as a loss that is not finite or a full disk, is rank 0's to judge.
        """
        while (call := _heard()) is not None:
            role, method, args, kwargs = call
            try:
                if role == "group":
                    getattr(self, f"_{method}")(*args)
                else:
                    getattr(self._trainers[role], method)(*args, **kwargs)
            except (LecritiqueError, OSError):
                continue

    def _save(self, folder: Path, keep: int, step: int) -> None:
        ShardedCheckpoints(folder, self._ranks, keep).save(step, {"learner": self._state()})

    def _load(self, path: Path) -> None:
        learner = load_sharded(path, self._mesh)["learner"]
        self._trainers["policy"].restore(learner["policy"])
        if "critic" in self._trainers:
            self._trainers["critic"].restore(learner["values"]["trainer"])

    def _gather(self, role: str) -> None:
        gathered(own_weights(self._trainers[role].model), keep=False)

    def _gather_state(self, role: str) -> None:
        gathered(self._trainers[role].state(), keep=False)

    def _restore(self, role: str, folder: Path) -> None:
        restore_on_all(self._trainers[role], folder, self._ranks)

    def _state(self) -> dict[str, Any]:
        """What of rank 0's tree has shards, under the same names."""
        critic = self._trainers.get("critic")
        return {
            "policy": self._trainers["policy"].state(),
            "values": None if critic is None else {"trainer": critic.state()},
        }


def restore_on_all(trainer: Any, folder: Path, ranks: Ranks) -> None:
    """Have this rank's trainer take over the state in a folder, as all others do at the same time.

    Raises:
        CheckpointError: one of them cannot read it, or it is of another model.
    """
    problem: Exception | None = None
    try:
        trainer.restore(read_tree(folder))
    except (LecritiqueError, OSError) as error:
        problem = error
    (failed,) = ranks.sums([float(problem is not None)])
    if problem is not None:
        raise problem
    if failed:
        raise CheckpointError(
            f"{failed:g} other ranks could not take over the state in '{folder}', and this one could: all machines "
            "of a cluster must see the run's directory."
        )


def _tell(call: tuple[str, str, tuple[Any, ...], dict[str, Any]] | None) -> None:
    dist.broadcast_object_list([call], src=0)


def _heard() -> tuple[str, str, tuple[Any, ...], dict[str, Any]] | None:
    box: list[Any] = [None]
    dist.broadcast_object_list(box, src=0)
    return box[0]  # type: ignore[no-any-return]
