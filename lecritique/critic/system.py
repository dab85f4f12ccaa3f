"""Evaluator, trainer and replay run inline: the synchronous form of the value system (LC appendix B).

Every trajectory is scored, then credited with a frozen target, then admitted, then trained on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from lecritique.core.trajectory import (
    ContextInsertion,
    Trajectory,
    ValueBatch,
    ValuePrediction,
    ValueRequest,
    ValueSample,
)
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.critic.replay import ReplayBuffer
from lecritique.critic.trainer import ValueTrainer


class ValueSystem:
    """The critic's side of a run in one thread.

    Args:
        evaluator: serves the published version.
        trainer: makes the next one.
        replay: between the two.
        updates_per_step: critic updates after each rollout batch, as far as replay is ready.
    """

    def __init__(
        self,
        *,
        evaluator: ValueEvaluator,
        trainer: ValueTrainer,
        replay: ReplayBuffer[ValueSample],
        updates_per_step: int,
    ) -> None:
        self.evaluator = evaluator
        self.trainer = trainer
        self.replay = replay
        self._updates_per_step = updates_per_step
        self._waiting: deque[ValueSample] = deque()
        self._dropped = 0
        self.evaluator.adopt(self.trainer.publish())

    def score(
        self, trajectories: Sequence[Trajectory], contexts: Sequence[ContextInsertion | None]
    ) -> list[ValuePrediction]:
        """Values from the current version."""
        return self.evaluator.score(
            [
                ValueRequest(trajectory=trajectory, context=context)
                for trajectory, context in zip(trajectories, contexts, strict=True)
            ]
        )

    def learn(self, samples: Sequence[ValueSample]) -> dict[str, float]:
        """Admit what was scored and train, turn by turn as far as replay is ready, and serve the new version."""
        self._waiting.extend(samples)
        updates = []
        # Also with no updates to make, one turn of admission keeps replay and its counts going.
        for turn in range(max(1, self._updates_per_step)):
            self._admit()
            if turn < self._updates_per_step and self.replay.ready:
                updates.append(self._update())
        self._bound_queue()
        metrics = {
            "value_updates": float(self.trainer.updates),
            "replay_size": float(len(self.replay)),
            "replay_evicted": float(self.replay.counts.evicted + self._dropped),
            "value_loss": math.nan,
        }
        if updates:
            metrics |= updates[-1]
            metrics["value_loss"] = sum(update["value_loss"] for update in updates) / len(updates)
        return metrics

    def _bound_queue(self) -> None:
        """More samples than a full replay would only grow old in the queue: the oldest go, and are counted."""
        while len(self._waiting) > self.replay.capacity:
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
