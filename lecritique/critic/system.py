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
        """Admit what was scored, train as far as replay is ready, and serve the new version."""
        self._waiting.extend(samples)
        for _ in range(min(self.replay.wanted, len(self._waiting))):
            sample = self._waiting.popleft()
            self.replay.add(sample.rollout_id, sample)
        updates = []
        for _ in range(self._updates_per_step):
            if not self.replay.ready:
                break
            updates.append(self.trainer.update(ValueBatch.of(self.replay.sample())))
            self.evaluator.adopt(self.trainer.publish())
        metrics = {
            "value_updates": float(self.trainer.updates),
            "replay_size": float(len(self.replay)),
            "replay_evicted": float(self.replay.counts.evicted),
            "value_loss": math.nan,
        }
        if updates:
            metrics |= updates[-1]
            metrics["value_loss"] = sum(update["value_loss"] for update in updates) / len(updates)
        return metrics
