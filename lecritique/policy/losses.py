"""Which numerics a configured policy loss is, and its reduction over a whole optimizer batch.

N counts the action tokens of a micro-batch.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from lecritique.config.losses import Dapo, Dppo, Opsd, PolicyLoss, Ppo, Reinforce
from lecritique.core.ids import RolloutId
from lecritique.core.trajectory import PolicyBatch
from lecritique.models.scoring import MicroBatch, action_states
from lecritique.numerics.distillation import opsd_divergence
from lecritique.numerics.policy_losses import (
    TokenLoss,
    dppo_loss,
    ppo_loss,
    reinforce_loss,
    response_mean,
    rollout_weight,
    token_mean,
)


def reads_old_logprobs(config: PolicyLoss) -> bool:
    """Whether the loss compares the policy with what it was before the update."""
    return isinstance(config, Ppo | Dapo)


def rollout_weights(config: PolicyLoss, old_N: torch.Tensor | None, lq_N: torch.Tensor) -> torch.Tensor | None:
    """The weight u of each token that corrects for the sampler, None where the loss has none."""
    if old_N is None or not isinstance(config, Ppo | Dapo) or not config.rollout_weight:
        return None
    return rollout_weight(old_N, lq_N, config.rollout_weight_cap)


def token_losses(
    config: PolicyLoss,
    lp_N: torch.Tensor,
    lq_N: torch.Tensor,
    advantages_N: torch.Tensor,
    *,
    old_N: torch.Tensor | None = None,
) -> TokenLoss:
    """The configured loss of each action token.

    Args:
        config: which loss.
        lp_N: log-probs of the trainer now, nats, with gradient.
        lq_N: those of the sampler.
        advantages_N: reward units.
        old_N: those of the trainer before the update, for losses that read them.
    """
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
        case Ppo() | Dapo():
            if old_N is None:
                raise ValueError(f"the policy loss '{config.type}' needs log-probs from before the update")
            return ppo_loss(
                lp_N,
                old_N,
                advantages_N,
                eps_low=config.eps_low,
                eps_high=config.eps_high,
                rollout_weight_N=rollout_weights(config, old_N, lq_N),
            )
        case Opsd():
            raise ValueError("the policy loss 'opsd' compares distributions, not the sampled tokens' log-probs")


def divergences(
    config: Opsd, student: Any, teacher: Any, read: MicroBatch, told: MicroBatch, *, temperature: float
) -> torch.Tensor:
    """How far the student's next-token distributions are from the teacher's at each action token, nats, [N].

    Args:
        config: which divergence.
        student: the policy, with gradient.
        teacher: constants.
        read: what the student reads.
        told: what the teacher reads, the same wanted tokens in the same order.
        temperature: divides the logits of both.
    """
    with torch.no_grad():
        teacher_NH = action_states(teacher, told)
    return opsd_divergence(
        action_states(student, read),
        student.get_output_embeddings().weight,
        teacher_NH,
        teacher.get_output_embeddings().weight,
        kind=config.kind,
        beta=config.beta,
        temperature=temperature,
    )


def reduced(config: PolicyLoss, loss_N: torch.Tensor, micro: MicroBatch, batch: PolicyBatch) -> torch.Tensor:
    """The micro-batch's share of the loss of the optimizer batch."""
    everywhere = torch.ones_like(loss_N, dtype=torch.bool)
    if config.reduction == "token_mean":
        return token_mean(loss_N, everywhere, action_tokens=batch.action_tokens)
    # A response may have several segments; its length counts them all.
    length_of: Counter[RolloutId] = Counter()
    for member in batch.members:
        length_of[member.trajectory.rollout_id] += member.trajectory.action_tokens
    lengths = torch.tensor([length_of[batch.members[index].trajectory.rollout_id] for index in micro.indices])
    per_token_N = lengths.to(loss_N.device)[micro.row_index_N()]
    return response_mean(loss_N, everywhere, response_tokens_N=per_token_N, responses=batch.responses)
