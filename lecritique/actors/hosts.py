"""What actors hold: an engine, copies of the critic that score, a trainer. Made by `runtime/hosting.py`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.actors.messages import Cancel, Done, Figures, Round, RoundReport
from lecritique.core.errors import EngineFailure, RoleFailure
from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.weights import WeightManifest
from lecritique.distributed.weights import FileWeightStore
from lecritique.models.adapters import load_own_weights
from lecritique.models.scoring import TokenRow, values
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import WeightStore
from lecritique.rollout.engine import Engine
from lecritique.rollout.vllm_supervision import ReplicaLost
from lecritique.runs.state_files import read_tree, write_tree

# How long a round waits for an engine that works by itself.
_LISTEN_SECONDS = 0.02


class EngineHost:
    """An engine that works one round for each call; `adopt` may come at any time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: dict[str, Future[Completion]] = {}
        self._first_versions: dict[str, int] = {}
        self._version = -1
        self._adopting, self._working = threading.Lock(), threading.Lock()
        self._losses: deque[ReplicaLost] = deque()

    def note_loss(self, lost: ReplicaLost) -> None:
        """A process of the engine's own has failed; the next report says so. Called on any thread."""
        self._losses.append(lost)

    def adopt(self, manifest: WeightManifest) -> None:
        """Open these weights now; they are served from the next round on. An older version than the newest is left."""
        with self._adopting:
            if manifest.version >= self._version:
                self._engine.adopt(manifest)
                self._version = manifest.version

    def work(self, told: Round) -> RoundReport:
        """Take what is new, and let the engine work for a bounded while."""
        with self._working:
            for command in told:
                match command:
                    case GenerateRequest():
                        self._pending[command.request_id] = self._engine.submit(command)
                    case Cancel(request_id=request_id):
                        self._engine.cancel(request_id)
            if self._pending and not self._engine.advance():
                wait(self._pending.values(), timeout=_LISTEN_SECONDS, return_when=FIRST_COMPLETED)
            return self._report()

    def close(self) -> None:
        """Stop the engine."""
        with self._working:
            self._engine.close()
            self._pending.clear()

    def _report(self) -> RoundReport:
        completions, failures = [], {}
        for request_id in [each for each, future in self._pending.items() if future.done()]:
            try:
                completions.append(self._pending.pop(request_id).result())
            except (EngineFailure, CancelledError) as error:
                failures[request_id] = str(error) or "the engine closed before the request was served"
            self._first_versions.pop(request_id, None)
        began = {each: self._engine.oldest_version(each) for each in self._pending}
        new = {
            each: version
            for each, version in began.items()
            if version is not None and self._first_versions.get(each) != version
        }
        self._first_versions |= new
        losses = tuple(self._losses.popleft() for _ in range(len(self._losses)))
        return RoundReport(completions=tuple(completions), failures=failures, first_versions=new, losses=losses)


class ScoringHost:
    """Copies of the critic, each with a version of its own, and what they say."""

    def __init__(self, copies: Sequence[ValueModel], store: WeightStore) -> None:
        self._copies = copies
        self._store = store
        self._loaded: set[int] = set()

    def load(self, slot: int, manifest: WeightManifest) -> None:
        """Put a version into one of the copies, which nobody asks meanwhile."""
        load_own_weights(self._copies[slot], self._store.open(manifest))
        self._loaded.add(slot)

    def values(self, slot: int, rows: Sequence[TokenRow], max_tokens: int) -> list[NDArray[np.float64]]:
        """`scoring.values` of one of the copies.

        Raises:
            RoleFailure: it was never given weights, because a replacement came too late for the version that served.
        """
        if slot not in self._loaded:
            raise RoleFailure("an evaluator was asked for values before it had the weights that serve.")
        return values(self._copies[slot], rows, max_tokens=max_tokens)


class TrainerHost:
    """A policy or value trainer and the store that it publishes to.

    Args:
        trainer: a `PolicyTrainer` or a `ValueTrainer`.
        store: its own.
        figures: says where it stands.
    """

    def __init__(self, trainer: Any, store: FileWeightStore, figures: Callable[[Any], Figures]) -> None:
        self._trainer = trainer
        self._figures = figures
        self._published: list[WeightManifest] = []
        store.watch(self._published.append)

    def do(self, method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Done:
        """What the trainer's method returns."""
        return self._done(getattr(self._trainer, method)(*arguments, **named))

    def save(self, folder: str) -> Done:
        """Write the trainer's state into a new folder."""
        Path(folder).mkdir(parents=True)
        write_tree(Path(folder), self._trainer.state())
        return self._done(None)

    def restore(self, folder: str) -> Done:
        """Take over the state in a folder."""
        self._trainer.restore(read_tree(Path(folder)))
        return self._done(None)

    def values(self, rows: Sequence[TokenRow]) -> list[NDArray[np.float64]]:
        """Of the critic that is being trained; see `ValueTrainer.values`."""
        scored: list[NDArray[np.float64]] = self._trainer.values(rows)
        return scored

    def _done(self, value: Any) -> Done:
        published = tuple(self._published)
        self._published.clear()
        return Done(value=value, published=published, figures=self._figures(self._trainer))


def policy_figures(trainer: Any) -> Figures:
    """Of a `PolicyTrainer`."""
    return Figures(
        version=trainer.version,
        steps=trainer.steps,
        trained=trainer.trained,
        read=trainer.read,
        read_by_teacher=trainer.teacher.read if trainer.teacher else None,
        judged=dict(trainer.judged),
    )


def value_figures(trainer: Any) -> Figures:
    """Of a `ValueTrainer`."""
    return Figures(version=trainer.updates, steps=trainer.updates, trained=trainer.trained)
