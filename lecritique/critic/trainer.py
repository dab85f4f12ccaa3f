"""The value trainer: critic optimizer steps on replay batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import ClippedMse
from lecritique.core.errors import DivergenceError
from lecritique.core.metrics import Mean
from lecritique.core.spending import Reading
from lecritique.core.trajectory import ValueBatch
from lecritique.core.weights import WeightManifest
from lecritique.models.adapters import frozen_digest, own_weights
from lecritique.models.optimizer import Optimizer
from lecritique.models.ranks import Alone, Ranks
from lecritique.models.restoring import require_same_base, restore_weights
from lecritique.models.scoring import TokenRow, action_value_outputs, in_micro_batches, token_row
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import WeightStore
from lecritique.numerics.policy_losses import token_mean


class ValueTrainer:
    """Owns the critic that learns; publishes a version after each update. Version n has had n updates.

    Args:
        model: the critic.
        optimizer: step size and clipping.
        store: where versions go.
        max_tokens: padded tokens of one forward pass.
        ranks: the processes that train together; `model` may be in shards on them.
    """

    def __init__(
        self,
        model: ValueModel,
        optimizer: OptimizerConfig,
        store: WeightStore,
        *,
        max_tokens: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self._ranks = ranks or Alone()
        self._optimizer = Optimizer(model.parameters(), optimizer)
        self._store = store
        self._max_tokens = max_tokens
        self._published: int | None = None
        self.trained = Reading()

    @property
    def updates(self) -> int:
        """Optimizer steps so far."""
        return self._optimizer.steps

    def publish(self) -> WeightManifest:
        """Put the current weights into the store; updates since the last version that was published are passed over."""
        if self._published is not None and self._published != self.updates - 1:
            self._store.go_on_from("critic", self.updates)
        self._published = self.updates
        return self._store.put("critic", own_weights(self.model))

    def state(self) -> dict[str, Any]:
        """Weights and optimizer; the tensors are those in use.

        Of a model with an adapter these are the adapter's and the head's, and `frozen` names the weights under it.
        """
        return {
            "weights": own_weights(self.model),
            "frozen": frozen_digest(self.model),
            "optimizer": self._optimizer.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; the next `publish` goes on with its version.

        Raises:
            CheckpointError: it is of another critic.
        """
        require_same_base(self.model, state.get("frozen"), role="critic")
        restore_weights(self.model, state["weights"], role="critic")
        self._optimizer.restore(state["optimizer"])
        self._store.go_on_from("critic", self.updates)
        self._published = None

    def values(self, rows: Sequence[TokenRow]) -> list[NDArray[np.float64]]:
        """V before each row's wanted tokens by the weights as they are now, in reward units, in the order of `rows`."""
        return self._ranks.values(self.model, rows, max_tokens=self._max_tokens)

    def update(self, batch: ValueBatch, *, share: float = 1.0) -> Mapping[str, float]:
        """One optimizer step on the batch's frozen targets, token mean over its action tokens, times `share`.

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
        self.trained.add(row.read_tokens for row in rows)
        targets = [targets_T[trajectory.action_mask] for trajectory, _, targets_T in segments]
        old_values = old_values_of(batch) if isinstance(self.model.loss, ClippedMse) else None
        total, clipped = 0.0, Mean()
        self._optimizer.zero_grad()
        split = self._ranks.micro_batches
        for micro in in_micro_batches(self.model, rows, max_tokens=self._max_tokens, split=split):
            outputs_NA = self._ranks.run(self.model, action_value_outputs, micro)
            targets_N = micro.gathered(targets, outputs_NA.dtype)
            old_N = None if old_values is None else micro.gathered(old_values, outputs_NA.dtype)
            tokens = self.model.token_losses(outputs_NA, targets_N, old_N)
            everywhere = torch.ones_like(tokens.clipped_N)
            loss = token_mean(tokens.loss_N, everywhere, action_tokens=batch.action_tokens) * share
            torch.autograd.backward(loss)
            total += loss.item()
            clipped = clipped.merge(Mean(float(tokens.clipped_N.sum().item()), len(tokens.clipped_N)))
        total, clipped = _together(self._ranks, total, clipped)
        if not torch.isfinite(torch.tensor(total)):
            raise DivergenceError(f"the value loss of critic update {self.updates + 1} is {total}.")
        norm = self._optimizer.step("critic")
        metrics = {
            "value_loss": total,
            "value_grad_norm": norm,
            "value_learning_rate": self._optimizer.learning_rate,
        }
        return metrics if old_values is None else {**metrics, "value_clip_fraction": clipped.value()}


def _together(ranks: Ranks, loss: float, clipped: Mean) -> tuple[float, Mean]:
    """Both over all processes."""
    loss, total, count = ranks.sums([loss, clipped.total, clipped.count])
    return loss, Mean(total, count)


def old_values_of(batch: ValueBatch) -> list[NDArray[np.float64]]:
    """The values that credited each segment, on its action tokens.

    Raises:
        ValueError: a sample without them.
    """
    columns = []
    for sample in batch.samples:
        if sample.old_values is None:
            raise ValueError(
                f"rollout {sample.rollout_id} carries no values from before the update; 'critic.loss.type' = "
                "'clipped_mse' clips around them"
            )
        columns += [v[t.action_mask] for t, v in zip(sample.trajectories, sample.old_values, strict=True)]
    return columns
