"""The policy trainer: one optimizer step on a complete policy batch with global denominators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lecritique.config.losses import Dppo, PolicyLoss, Reinforce
from lecritique.config.schema import PolicySection
from lecritique.core.errors import DivergenceError
from lecritique.core.ids import RolloutId
from lecritique.core.metrics import Max, Mean
from lecritique.core.trajectory import PolicyBatch
from lecritique.core.weights import WeightManifest
from lecritique.models.optimizer import Optimizer
from lecritique.models.scoring import MicroBatch, action_logprobs, in_micro_batches, token_row
from lecritique.models.weights import WeightStore
from lecritique.numerics.policy_losses import TokenLoss, dppo_loss, reinforce_loss, response_mean, token_mean


class PolicyTrainer:
    """Owns the policy that learns; publishes a version after each step. Version n has had n steps."""

    def __init__(
        self, model: Any, config: PolicySection, store: WeightStore, *, temperature: float, max_tokens: int
    ) -> None:
        self.model = model
        self._config = config
        self._store = store
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._optimizer = Optimizer(model.parameters(), config.optimizer)

    @property
    def version(self) -> int:
        """Optimizer steps so far."""
        return self._optimizer.steps

    def publish(self) -> WeightManifest:
        """Put the current weights into the store."""
        return self._store.put("policy", self.model.state_dict())

    def step(self, batch: PolicyBatch) -> Mapping[str, float]:
        """One optimizer step; with nothing to train on no step is made and the loss is 0.

        Raises:
            DivergenceError: an advantage, loss or gradient is not finite; the weights are left as they were.
        """
        if not batch.action_tokens:
            return {"policy_loss": 0.0}
        masks = [member.trajectory.action_mask for member in batch.members]
        advantages = [member.advantages[mask] for member, mask in zip(batch.members, masks, strict=True)]
        if not all(np.isfinite(column).all() for column in advantages):
            raise DivergenceError(f"an advantage of policy step {self.version + 1} is not finite.")
        sampled = [m.trajectory.sampler_logprobs[mask] for m, mask in zip(batch.members, masks, strict=True)]
        rows = [token_row(member.trajectory) for member in batch.members]
        seen = _Seen()
        self._optimizer.zero_grad()
        for micro in in_micro_batches(rows, max_tokens=self._max_tokens, device=self.model.device):
            lp_N = action_logprobs(self.model, micro, temperature=self._temperature)
            lq_N = micro.gathered(sampled, lp_N.dtype)
            tokens = token_losses(self._config.loss, lp_N, lq_N, micro.gathered(advantages, lp_N.dtype))
            loss = reduced(self._config.loss, tokens, micro, batch)
            torch.autograd.backward(loss)
            seen.add(loss, tokens, lp_N.detach(), lq_N)
        if not np.isfinite(seen.loss):
            raise DivergenceError(f"the policy loss of step {self.version + 1} is {seen.loss}.")
        norm = self._optimizer.step("policy")
        everything = np.concatenate(advantages)
        return {
            **seen.metrics(),
            "policy_grad_norm": norm,
            "policy_learning_rate": self._optimizer.learning_rate,
            "advantage_mean": float(everything.mean()),
            "advantage_std": float(everything.std()),
            "staleness_max": float(max(batch.ages)),
        }


def token_losses(config: PolicyLoss, lp_N: torch.Tensor, lq_N: torch.Tensor, advantages_N: torch.Tensor) -> TokenLoss:
    """The configured loss of each action token."""
    match config:
        case Dppo():
            return dppo_loss(
                lp_N,
                lq_N,
                advantages_N,
                mask_low=config.mask_low,
                mask_high=config.mask_high,
                kl_coef=config.kl_coef,
            )
        case Reinforce():
            return reinforce_loss(lp_N, lq_N, advantages_N, on_policy=config.on_policy)


def reduced(config: PolicyLoss, tokens: TokenLoss, micro: MicroBatch, batch: PolicyBatch) -> torch.Tensor:
    """The micro-batch's share of the batch's loss."""
    everywhere = torch.ones_like(tokens.loss_N, dtype=torch.bool)
    if config.reduction == "token_mean":
        return token_mean(tokens.loss_N, everywhere, action_tokens=batch.action_tokens)
    # A response may have several segments; its length counts them all.
    length_of: Counter[RolloutId] = Counter()
    for member in batch.members:
        length_of[member.trajectory.rollout_id] += member.trajectory.action_tokens
    lengths = torch.tensor([length_of[batch.members[index].trajectory.rollout_id] for index in micro.indices])
    per_token_N = lengths.to(tokens.loss_N.device)[micro.row_index_N()]
    return response_mean(tokens.loss_N, everywhere, response_tokens_N=per_token_N, responses=batch.responses)


class _Seen:
    """Sums over the micro-batches of one step."""

    def __init__(self) -> None:
        self.loss = 0.0
        self._ratio, self._dropped, self._gap = Mean(), Mean(), Max()

    def add(self, loss: torch.Tensor, tokens: TokenLoss, lp_N: torch.Tensor, lq_N: torch.Tensor) -> None:
        count = len(lp_N)
        self.loss += loss.item()
        gap_N = lp_N - lq_N
        self._ratio = self._ratio.merge(Mean(gap_N.exp().sum().item(), count))
        self._dropped = self._dropped.merge(Mean(float((~tokens.kept_N).sum().item()), count))
        self._gap = self._gap.merge(Max(gap_N.abs().max().item()))

    def metrics(self) -> dict[str, float]:
        return {
            "policy_loss": self.loss,
            "ratio_mean": self._ratio.value(),
            "dropped_fraction": self._dropped.value(),
            "sampler_gap_nats": self._gap.value(),
        }
