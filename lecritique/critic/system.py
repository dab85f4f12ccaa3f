"""Evaluator, trainer and replay run inline: the synchronous form of the value system (LC appendix B).

Every trajectory is scored, then credited with a frozen target, then admitted, then trained on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lecritique.core.columns import sample_columns, samples_from
from lecritique.core.spending import Reading, tokens_read
from lecritique.core.trajectory import (
    ContextInsertion,
    Trajectory,
    ValueBatch,
    ValuePrediction,
    ValueRequest,
    ValueSample,
)
from lecritique.core.weights import WeightManifest
from lecritique.critic.budget import UpdateBudget
from lecritique.critic.replay import ReplayBuffer
from lecritique.critic.trainer import ValueTrainer


class ServesValues(Protocol):
    """What answers from the published version of the critic."""

    @property
    def version(self) -> int:
        """The version that serves."""
        ...

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve this version from now on."""
        ...

    def score(self, requests: Sequence[ValueRequest]) -> list[ValuePrediction]:
        """Values of all requests from one version, in their order."""
        ...


class ValueSystem:
    """The critic's side of a run.

    Args:
        evaluator: serves the published version.
        trainer: makes the next one.
        replay: between the two.
        updates_per_step: critic updates after each rollout batch, as far as replay is ready; 0.5 every second time.
    """

    def __init__(
        self,
        *,
        evaluator: ServesValues,
        trainer: ValueTrainer,
        replay: ReplayBuffer[ValueSample],
        updates_per_step: float,
    ) -> None:
        self.evaluator = evaluator
        self.trainer = trainer
        self.replay = replay
        self._budget = UpdateBudget(updates_per_step)
        self._owed = 0
        self._waiting: deque[ValueSample] = deque()
        self._dropped = 0
        self.scored = Reading()
        """What was read to score values; the loop that asks an evaluator thread adds to it itself."""
        self.evaluator.adopt(self.trainer.publish())

    def score(
        self, trajectories: Sequence[Trajectory], contexts: Sequence[ContextInsertion | None]
    ) -> list[ValuePrediction]:
        """Values from the current version."""
        self.scored.add(map(tokens_read, trajectories, contexts))
        return self.evaluator.score(
            [
                ValueRequest(trajectory=trajectory, context=context)
                for trajectory, context in zip(trajectories, contexts, strict=True)
            ]
        )

    def learn(self, samples: Sequence[ValueSample]) -> dict[str, float]:
        """Take what was scored, make every update that is owed, and serve the new version."""
        self.take(samples)
        updates = []
        while self.owes:
            update = self.turn()
            if update is not None:
                updates.append(update)
        return {**self.metrics(), **update_metrics(updates)}

    def epoch(self, minibatches: Sequence[tuple[tuple[ValueSample, ...], float]]) -> dict[str, float]:
        """One update on each minibatch with its share, nothing by way of replay, and serve what came of it."""
        updates = [
            dict(self.trainer.update(ValueBatch.of(samples), share=share)) for samples, share in minibatches if samples
        ]
        if updates:
            self.evaluator.adopt(self.trainer.publish())
        return {"value_updates": float(self.trainer.updates), **update_metrics(updates)}

    def take(self, samples: Sequence[ValueSample]) -> None:
        """Queue the scored rollouts of one batch, and owe its share of updates."""
        self._waiting.extend(samples)
        self._owed += self._budget.due()
        # A trainer that does not keep up finds the newest; one that does has admitted most of them before this bites.
        self._bound_queue(self.replay.capacity + len(samples))
        if not self.owes:
            # Also with no update to make, a turn of admission keeps replay and its counts going.
            self._admit()
            self._bound_queue(self.replay.capacity)

    def count_dropped(self, samples: int) -> None:
        """So many samples were dropped before they were taken."""
        self._dropped += samples

    @property
    def owes(self) -> bool:
        """Whether an update is due for what was taken."""
        return self._owed > 0

    def turn(self) -> dict[str, float] | None:
        """Admit, and make one owed update if replay is ready; None when it is not, and the update lapses."""
        self._owed -= 1
        self._admit()
        update = self._update() if self.replay.ready else None
        if not self.owes:
            self._bound_queue(self.replay.capacity)
        return update

    def metrics(self) -> dict[str, float]:
        """Where trainer and replay stand."""
        return {
            "value_updates": float(self.trainer.updates),
            "replay_size": float(len(self.replay)),
            "replay_evicted": float(self.replay.counts.evicted + self._dropped),
        }

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs: trainer, replay, what waits for admission, updates owed and to come."""
        return {
            "trainer": self.trainer.state(),
            "replay": self.replay.state(sample_columns),
            "waiting": sample_columns(tuple(self._waiting)),
            "dropped": self._dropped,
            "budget": self._budget.state(),
            "owed": self._owed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state, and serve its version.

        Raises:
            CheckpointError: it is of another critic or another replay.
        """
        self.trainer.restore(state["trainer"])
        self.replay.restore(state["replay"], samples_from, lambda sample: sample.rollout_id)
        self._waiting = deque(samples_from(state["waiting"]))
        self._dropped = int(state["dropped"])
        self._budget.restore(state["budget"])
        self._owed = int(state["owed"])
        self.evaluator.adopt(self.trainer.publish())

    def _bound_queue(self, length: int) -> None:
        """More samples than a full replay would only grow old in the queue: the oldest go, and are counted."""
        while len(self._waiting) > length:
            self._waiting.popleft()
            self._dropped += 1

    def _admit(self) -> None:
        for _ in range(min(self.replay.wanted, len(self._waiting))):
            sample = self._waiting.popleft()
            self.replay.add(sample.rollout_id, sample)

    def _update(self) -> dict[str, float]:
        before = self.trainer.updates
        metrics = dict(self.trainer.update(ValueBatch.of(self.replay.sample())))
        # Version n has had n updates: a batch with nothing to train on makes no new version.
        if self.trainer.updates > before:
            self.evaluator.adopt(self.trainer.publish())
        return metrics


def update_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of a step's critic updates: the mean loss, the rest from the last; the loss is undefined without any."""
    if not updates:
        return {"value_loss": math.nan}
    return {**updates[-1], "value_loss": sum(update["value_loss"] for update in updates) / len(updates)}
