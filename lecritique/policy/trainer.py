"""The policy trainer: optimizer steps on a policy batch, each on a complete minibatch with global denominators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.config.schema import PolicySection
from lecritique.core.errors import DivergenceError
from lecritique.core.metrics import Max, Mean
from lecritique.core.trajectory import PolicyBatch
from lecritique.core.weights import WeightManifest
from lecritique.models.optimizer import Optimizer
from lecritique.models.scoring import action_logprobs, in_micro_batches, logprobs, token_row
from lecritique.models.weights import WeightStore
from lecritique.numerics.policy_losses import TokenLoss
from lecritique.policy.batches import Minibatch, minibatches, whitened, with_old_logprobs
from lecritique.policy.losses import reads_old_logprobs, reduced, rollout_weights, token_losses


class PolicyTrainer:
    """Owns the policy that learns; a version is published after each batch. Version n was trained on n batches."""

    def __init__(
        self, model: Any, config: PolicySection, store: WeightStore, *, temperature: float, max_tokens: int
    ) -> None:
        self.model = model
        self._config = config
        self._store = store
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._optimizer = Optimizer(model.parameters(), config.optimizer)
        self._version = 0

    @property
    def version(self) -> int:
        """Policy batches trained on so far."""
        return self._version

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._optimizer.steps

    def publish(self) -> WeightManifest:
        """Put the current weights into the store."""
        return self._store.put("policy", self.model.state_dict())

    def step(self, batch: PolicyBatch) -> Mapping[str, float]:
        """Train on one policy batch: `epochs` times, minibatch by minibatch; with nothing to train on the loss is 0.

        Advantages and the log-probs from before the update are fixed through all optimizer steps.

        Raises:
            DivergenceError: an advantage, log-prob, loss or gradient is not finite; the weights are left as the last
                good optimizer step made them, and no version counts.
        """
        if not batch.action_tokens:
            return {"policy_loss": 0.0}
        everything = np.concatenate(_advantages(batch))
        if not np.isfinite(everything).all():
            raise DivergenceError(f"an advantage of policy step {self.steps + 1} is not finite.")
        ages = batch.ages
        if self._config.whiten:
            batch = whitened(batch)
        if reads_old_logprobs(self._config.loss) and any(m.old_logprobs is None for m in batch.members):
            batch = self.scored(batch)
        parts = minibatches(batch, self._config.minibatch_size or len(batch.members))
        seen, losses, norm = _Seen(), Mean(), 0.0
        for _ in range(self._config.epochs):
            for part in parts:
                loss, norm = self._optimizer_step(part, seen)
                losses = losses.merge(Mean(loss, 1))
        self._version += 1
        return {
            "policy_loss": losses.value(),
            **seen.metrics(),
            "policy_grad_norm": norm,
            "policy_learning_rate": self._optimizer.learning_rate,
            "advantage_mean": float(everything.mean()),
            "advantage_std": float(everything.std()),
            "staleness_max": float(max(ages)),
        }

    def scored(self, batch: PolicyBatch) -> PolicyBatch:
        """The batch with the log-probs of the policy as it is now, lp_old of an update that starts from here.

        Raises:
            DivergenceError: one of them is not finite.
        """
        rows = [token_row(member.trajectory) for member in batch.members]
        columns = logprobs(self.model, rows, temperature=self._temperature, max_tokens=self._max_tokens)
        if not all(np.isfinite(column).all() for column in columns):
            raise DivergenceError(f"a log-prob before policy step {self.steps + 1} is not finite.")
        return with_old_logprobs(batch, columns)

    def _optimizer_step(self, part: Minibatch, seen: _Seen) -> tuple[float, float]:
        """One optimizer step; its loss, and its gradient norm before clipping."""
        config, batch = self._config.loss, part.batch
        trajectories = [member.trajectory for member in batch.members]
        advantages = _advantages(batch)
        sampled = [trajectory.sampler_logprobs[trajectory.action_mask] for trajectory in trajectories]
        old = _old_logprobs(batch) if reads_old_logprobs(config) else None
        rows = [token_row(trajectory) for trajectory in trajectories]
        total = 0.0
        self._optimizer.zero_grad()
        for micro in in_micro_batches(rows, max_tokens=self._max_tokens, device=self.model.device):
            lp_N = action_logprobs(self.model, micro, temperature=self._temperature)
            lq_N = micro.gathered(sampled, lp_N.dtype)
            old_N = None if old is None else micro.gathered(old, lp_N.dtype)
            tokens = token_losses(config, lp_N, lq_N, micro.gathered(advantages, lp_N.dtype), old_N=old_N)
            loss = reduced(config, tokens, micro, batch) * part.share
            torch.autograd.backward(loss)
            total += loss.item()
            seen.add(tokens, lp_N.detach(), lq_N, old_N, rollout_weights(config, old_N, lq_N))
        if not np.isfinite(total):
            raise DivergenceError(f"the policy loss of step {self.steps + 1} is {total}.")
        return total, self._optimizer.step("policy")


def _advantages(batch: PolicyBatch) -> list[NDArray[np.float64]]:
    return [member.advantages[member.trajectory.action_mask] for member in batch.members]


def _old_logprobs(batch: PolicyBatch) -> list[NDArray[np.float64]]:
    columns = []
    for member in batch.members:
        if member.old_logprobs is None:
            raise ValueError(f"rollout {member.trajectory.rollout_id} has no log-probs from before the update")
        columns.append(member.old_logprobs[member.trajectory.action_mask])
    return columns


class _Seen:
    """Sums over the micro-batches of all optimizer steps on a batch."""

    def __init__(self) -> None:
        self._ratio, self._dropped, self._gap = Mean(), Mean(), Max()
        self._update_gap, self._weight = Max(), Mean()

    def add(
        self,
        tokens: TokenLoss,
        lp_N: torch.Tensor,
        lq_N: torch.Tensor,
        old_N: torch.Tensor | None,
        weights_N: torch.Tensor | None,
    ) -> None:
        count = len(lp_N)
        gap_N = lp_N - lq_N
        self._ratio = self._ratio.merge(Mean(gap_N.exp().sum().item(), count))
        self._dropped = self._dropped.merge(Mean(float((~tokens.kept_N).sum().item()), count))
        self._gap = self._gap.merge(Max(gap_N.abs().max().item()))
        if old_N is not None:
            self._update_gap = self._update_gap.merge(Max((lp_N - old_N).abs().max().item()))
        if weights_N is not None:
            self._weight = self._weight.merge(Mean(weights_N.sum().item(), count))

    def metrics(self) -> dict[str, float]:
        always = {
            "ratio_mean": self._ratio.value(),
            "dropped_fraction": self._dropped.value(),
            "sampler_gap_nats": self._gap.value(),
        }
        some = {"update_gap_nats": self._update_gap.value(), "rollout_weight_mean": self._weight.value()}
        return always | {name: value for name, value in some.items() if not np.isnan(value)}
