"""The value trainer: critic optimizer steps on replay batches."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lecritique.config.estimators import OptimizerConfig
from lecritique.core.errors import DivergenceError
from lecritique.core.trajectory import ValueBatch
from lecritique.core.weights import WeightManifest
from lecritique.models.optimizer import Optimizer
from lecritique.models.scoring import action_value_outputs, in_micro_batches, token_row
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import WeightStore
from lecritique.numerics.policy_losses import token_mean


class ValueTrainer:
    """Owns the critic that learns; publishes a version after each update. Version n has had n updates."""

    def __init__(self, model: ValueModel, optimizer: OptimizerConfig, store: WeightStore, *, max_tokens: int) -> None:
        self.model = model
        self._optimizer = Optimizer(model.parameters(), optimizer)
        self._store = store
        self._max_tokens = max_tokens

    @property
    def updates(self) -> int:
        """Optimizer steps so far."""
        return self._optimizer.steps

    def publish(self) -> WeightManifest:
        """Put the current weights into the store."""
        return self._store.put("critic", self.model.state_dict())

    def update(self, batch: ValueBatch) -> Mapping[str, float]:
        """One optimizer step on the batch's frozen targets, token mean over its action tokens.

        With nothing to train on no step is made and the loss is 0.

        Raises:
            DivergenceError: loss or gradient is not finite; the weights are left as they were.
        """
        if not batch.action_tokens:
            return {"value_loss": 0.0}
        segments = [
            segment
            for sample in batch.samples
            for segment in zip(sample.trajectories, sample.contexts, sample.value_targets, strict=True)
        ]
        rows = [token_row(trajectory, context) for trajectory, context, _ in segments]
        targets = [targets_T[trajectory.action_mask] for trajectory, _, targets_T in segments]
        total = 0.0
        self._optimizer.zero_grad()
        for micro in in_micro_batches(rows, max_tokens=self._max_tokens, device=self.model.device):
            outputs_NA = action_value_outputs(self.model, micro)
            targets_N = micro.gathered(targets, outputs_NA.dtype)
            losses_N = self.model.losses_of(outputs_NA, targets_N)
            loss = token_mean(losses_N, torch.ones_like(losses_N, dtype=torch.bool), action_tokens=batch.action_tokens)
            torch.autograd.backward(loss)
            total += loss.item()
        if not torch.isfinite(torch.tensor(total)):
            raise DivergenceError(f"the value loss of critic update {self.updates + 1} is {total}.")
        norm = self._optimizer.step("critic")
        return {
            "value_loss": total,
            "value_grad_norm": norm,
            "value_learning_rate": self._optimizer.learning_rate,
        }
