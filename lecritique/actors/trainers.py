"""Trainers in actors, with the surface of `PolicyTrainer` and `ValueTrainer`.

A call comes back with what was published meanwhile and with the trainer's figures, which are kept here: whoever reads
them asks nobody. States for checkpoints go through files of the run's directory, never through Ray's object store.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lecritique.actors.cluster import ActorLost, TrainerLost
from lecritique.actors.crew import Member
from lecritique.actors.messages import Done, Figures
from lecritique.core.errors import RoleFailure
from lecritique.core.ids import RolloutId
from lecritique.core.spending import Reading
from lecritique.core.trajectory import Judged, PolicyBatch, ValueBatch
from lecritique.core.weights import WeightManifest
from lecritique.distributed.weights import FileWeightStore
from lecritique.models.weights import State
from lecritique.runs.state_files import read_tree, write_tree


class PublishedWeights:
    """What the actors' trainers publish, as the run's process sees it.

    Args:
        folder: of their `FileWeightStore`.
    """

    def __init__(self, folder: Path) -> None:
        self._files = FileWeightStore(folder)
        self._tell: Callable[[WeightManifest], None] = lambda manifest: None

    def watch(self, tell: Callable[[WeightManifest], None]) -> None:
        """Have `tell` called with every version that is published from now on."""
        self._tell = tell

    def announce(self, manifest: WeightManifest) -> None:
        """A trainer has published this."""
        self._tell(manifest)

    def open(self, manifest: WeightManifest) -> State:
        """The weights; KeyError when they are no longer held."""
        return self._files.open(manifest)


@dataclass
class RemoteTeacher:
    """What is known here of a teacher that lives with its student."""

    read: Reading


class _RemoteTrainer:
    """What both trainers have in common.

    Args:
        member: holds a `TrainerHost`.
        model: a model of the same shape, for its sizes and for what is saved in the end; it is never trained here.
        store: told what is published.
        folder: where states are handed over.
    """

    def __init__(self, member: Member, model: Any, store: PublishedWeights, folder: Path) -> None:
        self.model = model
        self._member = member
        self._store = store
        self._folder = folder
        self._host = member.number
        self._figures = Figures(version=0, steps=0, trained=Reading())

    @property
    def trained(self) -> Reading:
        """What it has read to train on."""
        return self._figures.trained

    def publish(self) -> WeightManifest:
        """Have the current weights put into the store."""
        manifest: WeightManifest = self._do("publish")
        return manifest

    def state(self) -> dict[str, Any]:
        """What the trainer's own `state` gives, with tensors on the CPU."""
        with self._handover() as place:
            self._ask("save", str(place))
            return read_tree(place)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Have the trainer take over a saved state.

        Raises:
            CheckpointError: it is of another model.
        """
        with self._handover() as place:
            place.mkdir(parents=True)
            write_tree(place, state)
            self._ask("restore", str(place))

    def _do(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self._ask("do", method, arguments, named).value

    def _ask(self, method: str, *arguments: Any) -> Done:
        if self._member.number != self._host:  # a thread of the run before it went back, which took long to stop
            raise RoleFailure(f"the {self._member.name} was made anew, and what it had learnt before is gone.")
        try:
            done: Done = self._member.ask(method, *arguments)
        except ActorLost as lost:
            raise TrainerLost(f"the process of the {self._member.name} has ended ({lost}).") from lost
        except OSError as error:
            if method == "save":  # a checkpoint that cannot be written ends no run
                raise
            raise RoleFailure(f"the {self._member.name} cannot go on: {error}.") from error
        self._figures = done.figures
        for manifest in done.published:
            self._store.announce(manifest)
        return done

    @contextmanager
    def _handover(self) -> Iterator[Path]:
        place = self._folder / uuid.uuid4().hex
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


class RemotePolicyTrainer(_RemoteTrainer):
    """The policy trainer of an actor.

    Args:
        minibatch_size: of its configuration.
        teacher: whether it has one.
        member: see `_RemoteTrainer`, likewise `model`, `store` and `folder`.
    """

    def __init__(
        self,
        member: Member,
        model: Any,
        store: PublishedWeights,
        folder: Path,
        *,
        minibatch_size: int | None,
        teacher: bool,
    ) -> None:
        super().__init__(member, model, store, folder)
        self.minibatch_size = minibatch_size
        self._has_teacher = teacher

    @property
    def version(self) -> int:
        """Policy batches trained on so far."""
        return self._figures.version

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._figures.steps

    @property
    def read(self) -> Reading:
        """What it has read beside training."""
        return self._figures.read

    @property
    def teacher(self) -> RemoteTeacher | None:
        """Its teacher, as far as it is known here."""
        return RemoteTeacher(self._figures.read_by_teacher or Reading()) if self._has_teacher else None

    @property
    def judged(self) -> Mapping[tuple[RolloutId, int], Judged]:
        """What the teacher made of the newest batch."""
        return self._figures.judged

    def step(self, batch: PolicyBatch) -> Mapping[str, float]:
        """Have it train on one policy batch; see `PolicyTrainer.step`."""
        metrics: Mapping[str, float] = self._do("step", batch)
        return metrics


class RemoteValueTrainer(_RemoteTrainer):
    """The value trainer of an actor."""

    @property
    def updates(self) -> int:
        """Optimizer steps so far."""
        return self._figures.version

    def update(self, batch: ValueBatch, *, share: float = 1.0) -> Mapping[str, float]:
        """Have it make one optimizer step; see `ValueTrainer.update`."""
        metrics: Mapping[str, float] = self._do("update", batch, share=share)
        return metrics
