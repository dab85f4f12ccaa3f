"""What the policy's losses saw, for the step's metrics. N counts the action tokens of a micro-batch."""

from __future__ import annotations

import numpy as np
import torch

from lecritique.core.metrics import Max, Mean
from lecritique.models.ranks import Ranks
from lecritique.numerics.policy_losses import TokenLoss


class Seen:
    """Sums over the micro-batches of all optimizer steps on a batch."""

    def __init__(self) -> None:
        self._ratio, self._dropped, self._gap = Mean(), Mean(), Max()
        self._update_gap, self._weight, self._divergence = Max(), Mean(), Mean()

    def add(
        self,
        tokens: TokenLoss,
        lp_N: torch.Tensor,
        lq_N: torch.Tensor,
        old_N: torch.Tensor | None,
        weights_N: torch.Tensor | None,
    ) -> None:
        """A micro-batch of a loss by log-probs of the sampled tokens."""
        count = len(lp_N)
        if not count:
            return
        gap_N = lp_N - lq_N
        self._ratio = self._ratio.merge(Mean(gap_N.exp().sum().item(), count))
        self._dropped = self._dropped.merge(Mean(float((~tokens.kept_N).sum().item()), count))
        self._gap = self._gap.merge(Max(gap_N.abs().max().item()))
        if old_N is not None:
            self._update_gap = self._update_gap.merge(Max((lp_N - old_N).abs().max().item()))
        if weights_N is not None:
            self._weight = self._weight.merge(Mean(weights_N.sum().item(), count))

    def add_divergence(self, divergence_N: torch.Tensor) -> None:
        """A micro-batch of a loss by whole distributions."""
        self._divergence = self._divergence.merge(Mean(divergence_N.sum().item(), len(divergence_N)))

    def together(self, ranks: Ranks) -> Seen:
        """What all processes saw."""
        every = Seen()
        means = (self._ratio, self._dropped, self._weight, self._divergence)
        sums = iter(ranks.sums([number for mean in means for number in (mean.total, mean.count)]))
        every._ratio, every._dropped, every._weight, every._divergence = (Mean(next(sums), next(sums)) for _ in means)
        largest = ranks.largest([self._gap.largest, self._update_gap.largest])
        every._gap, every._update_gap = Max(largest[0]), Max(largest[1])
        return every

    def metrics(self) -> dict[str, float]:
        """What was seen; undefined ones are left out, but for those that every loss by log-probs has."""
        if self._divergence.count:
            return {"opsd_divergence": self._divergence.value()}
        always = {
            "ratio_mean": self._ratio.value(),
            "dropped_fraction": self._dropped.value(),
            "sampler_gap_nats": self._gap.value(),
        }
        some = {"update_gap_nats": self._update_gap.value(), "rollout_weight_mean": self._weight.value()}
        return always | {name: value for name, value in some.items() if not np.isnan(value)}
