"""What a teacher does to advantages: which numerics a configured modulation is, for a batch or at a forward pass.

N counts action tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from lecritique.config.teachers import Fusion, Modulation, NoModulation, Rlsd
from lecritique.core.metrics import Mean
from lecritique.core.trajectory import CreditedTrajectory, PolicyBatch
from lecritique.models.ranks import Ranks
from lecritique.numerics.fusion import fused_advantages, fusion_gate, rlsd_advantages, rlsd_mix, teacher_gap


class Modulator:
    """Applies a modulation to the advantages of one policy batch and keeps what it did.

    Args:
        config: which one.
        version: policy batches trained on before this one, by which RLSD's mix falls.
    """

    def __init__(self, config: Modulation, *, version: int) -> None:
        self._config = config
        self._version = version
        self._gap, self._distance, self._open, self._weight = Mean(), Mean(), Mean(), Mean()
        self._change, self._size = 0.0, 0.0

    def modulated(
        self, advantages_N: torch.Tensor, teacher_logprobs_N: torch.Tensor, logprobs_N: torch.Tensor
    ) -> torch.Tensor:
        """A' of action tokens, detached.

        Args:
            advantages_N: raw, as the estimator made them.
            teacher_logprobs_N: nats.
            logprobs_N: of the student, before the update or now, nats.
        """
        gap_N = teacher_gap(teacher_logprobs_N, logprobs_N)
        match self._config:
            case NoModulation():
                return advantages_N
            case Fusion() as own:
                modulated_N = fused_advantages(
                    advantages_N, gap_N, eps_w=own.eps_w, tau=own.tau, delta=own.delta, masked=own.masked
                )
                opened = fusion_gate(advantages_N, gap_N, tau=own.tau, delta=own.delta)
                self._open = self._open.merge(_mean(opened.double() if own.masked else torch.ones_like(gap_N)))
            case Rlsd() as own:
                mix = rlsd_mix(self._version, own.mix, own.mix_steps)
                modulated_N = rlsd_advantages(advantages_N, gap_N, mix=mix, eps_w=own.eps_w)
        self._observe(advantages_N, modulated_N, gap_N)
        return modulated_N

    def over(self, batch: PolicyBatch) -> PolicyBatch:
        """The whole batch with modulated advantages, by the log-probs from before the update."""
        return replace(batch, members=tuple(self._over_member(member) for member in batch.members))

    def add_up(self, ranks: Ranks) -> None:
        """Make what this process saw what all saw: each was asked for advantages of its own tokens."""
        means = (self._gap, self._distance, self._open, self._weight)
        sums = iter(ranks.sums([number for m in means for number in (m.total, m.count)] + [self._change, self._size]))
        self._gap, self._distance, self._open, self._weight = (Mean(next(sums), next(sums)) for _ in means)
        self._change, self._size = next(sums), next(sums)

    def metrics(self) -> dict[str, float]:
        """What was seen, over all calls."""
        if not self._gap.count:
            return {}
        metrics = {
            "teacher_gap_mean_nats": self._gap.value(),
            "teacher_gap_abs_nats": self._distance.value(),
            "modulation_weight_mean": self._weight.value(),
            "fusion_strength": self._change / self._size if self._size else np.nan,
        }
        return metrics | ({"gate_open_fraction": self._open.value()} if self._open.count else {})

    def _over_member(self, member: CreditedTrajectory) -> CreditedTrajectory:
        if member.teacher_logprobs is None or member.old_logprobs is None:
            raise ValueError(f"rollout {member.trajectory.rollout_id} has no log-probs of teacher and student")
        mask = member.trajectory.action_mask
        columns = (member.advantages, member.teacher_logprobs, member.old_logprobs)
        advantages = np.zeros(len(mask))
        advantages[mask] = self.modulated(*(torch.from_numpy(column[mask]) for column in columns)).numpy()
        return replace(member, advantages=advantages)

    def _observe(self, advantages_N: torch.Tensor, modulated_N: torch.Tensor, gap_N: torch.Tensor) -> None:
        self._gap = self._gap.merge(_mean(gap_N))
        self._distance = self._distance.merge(_mean(gap_N.abs()))
        some = advantages_N != 0
        self._weight = self._weight.merge(_mean(modulated_N[some] / advantages_N[some]))
        self._change += (modulated_N - advantages_N).abs().double().sum().item()
        self._size += advantages_N.abs().double().sum().item()


def _mean(column_N: torch.Tensor) -> Mean:
    return Mean(column_N.double().sum().item(), len(column_N))
