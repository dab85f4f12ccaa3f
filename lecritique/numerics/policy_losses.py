"""Policy-gradient losses per token, and the reductions that turn them into one number.

Losses take log-probs in nats, never models. N is any shape of tokens. A loss that is to be minimised by a step
against its gradient; advantages and sampler log-probs are constants in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lecritique.numerics.precision import require_mask, require_shape, select, widen


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenLoss:
    """Loss of every token, and whether its policy-gradient term was kept (True) or dropped (False)."""

    loss_N: Tensor
    kept_N: Tensor


def dppo_keep(p_trainer: Tensor, p_sampler: Tensor, advantages: Tensor, *, mask_low: float, mask_high: float) -> Tensor:
    """Which tokens keep their policy-gradient term: those whose probability has not moved too far already.

        d = p_trainer - p_sampler
        dropped  <=>  (A > 0 and d > mask_high) or (A <= 0 and d < -mask_low)

    Probabilities are compared, not ratios, and strictly: a difference equal to the threshold is kept.
    p_trainer = p_sampler keeps all.

    Args:
        p_trainer: [N], probability of the token under the policy now.
        p_sampler: [N], probability under the distribution sampled from.
        advantages: [N], reward units.
        mask_low: how far a probability may have fallen, at least 0.
        mask_high: how far it may have risen, at least 0.

    Returns:
        [N] bool, True = kept.

    Raises:
        ValueError: a negative threshold or shapes that differ.

    Source: LC's code; method sheet section 1.
    """
    if not (mask_low >= 0.0 and mask_high >= 0.0):
        raise ValueError(f"mask_low and mask_high must be at least 0, got {mask_low} and {mask_high}")
    require_shape("sampler probabilities", p_sampler, p_trainer)
    require_shape("advantages", advantages, p_trainer)
    moved = widen(p_trainer.detach()) - widen(p_sampler.detach())
    risen = (advantages > 0) & (moved > mask_high)
    fallen = (advantages <= 0) & (moved < -mask_low)
    return ~(risen | fallen)


def dppo_loss(
    logprobs_N: Tensor,
    sampler_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    mask_low: float = 0.2,
    mask_high: float = 0.2,
    kl_coef: float = 1e-3,
    action_mask_N: Tensor | None = None,
) -> TokenLoss:
    """The DPPO loss of every token: importance-weighted policy gradient without the tokens that moved too far.

        loss = -keep A r + kl_coef (lp - lq)^2,   r = exp(lp - lq)

    `keep` is `dppo_keep` of the probabilities. r is neither clipped nor detached. A dropped token keeps its
    second term and its place in the denominator. On-policy (lp = lq) with kl_coef = 0 the gradient is that of
    `reinforce_loss`, whichever its form; with thresholds of 1 nothing is dropped.

    Args:
        logprobs_N: [N], lp of the trainer, nats.
        sampler_logprobs_N: [N], lq of the sampler, nats.
        advantages_N: [N], reward units.
        mask_low: see `dppo_keep`.
        mask_high: see `dppo_keep`.
        kl_coef: weight of the squared log-ratio, at least 0.
        action_mask_N: [N] bool; off it nothing is read, the loss is 0 and its gradient is 0. None: all are actions.

    Raises:
        ValueError: a negative constant, shapes that differ, a mask that is not boolean.

    Source: LC section 4.1 and its code; method sheet section 1.
    """
    if not kl_coef >= 0.0:
        raise ValueError(f"kl_coef must be at least 0, got {kl_coef}")
    lp, lq, advantages = _action_inputs(logprobs_N, sampler_logprobs_N, advantages_N, action_mask_N)
    kept = dppo_keep(lp.exp(), lq.exp(), advantages, mask_low=mask_low, mask_high=mask_high)
    log_ratio = lp - lq
    policy_term = -_weighted_ratio(log_ratio, torch.where(kept, advantages, torch.zeros_like(advantages)))
    return TokenLoss(loss_N=policy_term + kl_coef * log_ratio.square(), kept_N=kept)


def reinforce_loss(
    logprobs_N: Tensor,
    sampler_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    on_policy: bool,
    action_mask_N: Tensor | None = None,
) -> TokenLoss:
    """The REINFORCE loss of every token.

        loss = -A lp                        on_policy
        loss = -A r,   r = exp(lp - lq)     otherwise

    Both have the gradient -A grad lp where lp = lq. No token is dropped.

    Args:
        logprobs_N: [N], lp of the trainer, nats.
        sampler_logprobs_N: [N], lq of the sampler, nats; not read when `on_policy`.
        advantages_N: [N], reward units.
        on_policy: whether the sampler is the trainer's own distribution.
        action_mask_N: [N] bool; off it nothing is read, the loss is 0 and its gradient is 0. None: all are actions.

    Raises:
        ValueError: shapes that differ or a mask that is not boolean.

    Source: LC eq. 2; method sheet section 1.
    """
    lp, lq, advantages = _action_inputs(logprobs_N, sampler_logprobs_N, advantages_N, action_mask_N)
    loss = -advantages * lp if on_policy else -_weighted_ratio(lp - lq, advantages)
    return TokenLoss(loss_N=loss, kept_N=torch.ones_like(lp, dtype=torch.bool))


def ppo_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    rollout_weight_N: Tensor | None = None,
    action_mask_N: Tensor | None = None,
) -> TokenLoss:
    """The clipped surrogate of every token.

        loss = -u min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A),   rho = exp(lp - lp_old)

    `kept` is False where the clipped term is strictly the smaller: that token's gradient is 0. At rho = 1 the
    gradient is that of `reinforce_loss`, times u. Equal eps with `response_mean` is PPO (VP); eps 0.2 and 0.28 with
    `token_mean` is DAPO's surrogate; with eps so wide that nothing is clipped it is `reinforce_loss` off-policy.

    Args:
        logprobs_N: [N], lp of the trainer now, nats.
        old_logprobs_N: [N], lp_old of the trainer before the update, nats.
        advantages_N: [N], reward units.
        eps_low: how far the ratio may fall below 1, in [0, 1].
        eps_high: how far it may rise above 1, at least 0.
        rollout_weight_N: [N], u of `rollout_weight`, a constant; None is 1.
        action_mask_N: [N] bool; off it nothing is read, the loss is 0 and its gradient is 0. None: all are actions.

    Raises:
        ValueError: an eps outside its range, shapes that differ, a mask that is not boolean.

    Source: Schulman et al. 2017 (1707.06347) eq. 7; VP eq. 4 and 20; 2503.14476 (DAPO); method sheet section 1.
    """
    if not (0.0 <= eps_low <= 1.0 and eps_high >= 0.0):
        raise ValueError(f"eps_low must be in [0, 1] and eps_high at least 0, got {eps_low} and {eps_high}")
    lp, lp_old, advantages = _action_inputs(logprobs_N, old_logprobs_N, advantages_N, action_mask_N)
    if rollout_weight_N is not None:
        require_shape("the rollout weight", rollout_weight_N, logprobs_N)
        advantages = advantages * select(action_mask_N, widen(rollout_weight_N.detach()))
    log_ratio = lp - lp_old
    ratio = log_ratio.detach().exp()
    risen = (advantages > 0) & (ratio > 1.0 + eps_high)
    fallen = (advantages < 0) & (ratio < 1.0 - eps_low)
    bound = torch.full_like(advantages, 1.0 - eps_low).masked_fill(risen, 1.0 + eps_high)
    kept = ~(risen | fallen)
    # A clipped token's ratio is never formed with a gradient: it may be infinite, and 0 * inf is NaN.
    inside = _weighted_ratio(log_ratio, torch.where(kept, advantages, torch.zeros_like(advantages)))
    return TokenLoss(loss_N=-torch.where(kept, inside, bound * advantages), kept_N=kept)


def rollout_weight(
    old_logprobs_N: Tensor, sampler_logprobs_N: Tensor, cap: float = 2.0, *, action_mask_N: Tensor | None = None
) -> Tensor:
    """How much more likely the trainer found a token than the sampler that drew it, cut at `cap`.

        u = min(exp(lp_old - lq), cap)

    A constant of the loss: it corrects for an engine of other precision or a distribution cut by top-p and top-k.
    1 where trainer and sampler agree.

    Args:
        old_logprobs_N: [N], lp_old of the trainer before the update, nats.
        sampler_logprobs_N: [N], lq of the distribution really sampled from, nats.
        cap: above 0; infinity cuts nothing.
        action_mask_N: [N] bool; off it nothing is read and u is 1. None: all are actions.

    Returns:
        [N], in [0, cap], float32 or wider, detached.

    Raises:
        ValueError: a cap that is not above 0, shapes that differ, a mask that is not boolean.

    Source: VP section 3 (that it is applied); the cap is ours; method sheet section 1.
    """
    if not cap > 0.0:
        raise ValueError(f"cap must be above 0, got {cap}")
    require_shape("sampler log-probs", sampler_logprobs_N, old_logprobs_N)
    log_ratio = widen(old_logprobs_N.detach()) - widen(sampler_logprobs_N.detach())
    return select(action_mask_N, log_ratio).exp().clamp(max=cap)


def token_mean(loss_N: Tensor, mask_N: Tensor, *, action_tokens: int) -> Tensor:
    """The share of these tokens in the mean over all action tokens of the optimizer batch.

        share = sum over the mask of loss_t / action_tokens

    `action_tokens` counts the whole optimizer batch, so the sum over any split of it (micro-batches, ranks,
    packed rows) is the same loss with the same gradient. Tokens that DPPO dropped are counted. Nothing on the
    mask: 0, with gradient 0. Off the mask `loss_N` may be NaN: neither value nor gradient with respect to
    `loss_N` sees it; give the loss function the mask as well, or NaN may arise further upstream (0 * inf).

    Args:
        loss_N: [N].
        mask_N: [N] bool, True on action tokens.
        action_tokens: of the whole optimizer batch.

    Returns:
        a scalar, float32 or wider.

    Raises:
        ValueError: a mask that is not boolean, shapes that differ, or a count below 1 with tokens on the mask.

    Source: method sheet section 1.
    """
    return _global_mean(select(mask_N, widen(loss_N)), mask_N, action_tokens, "action_tokens")


def response_mean(loss_N: Tensor, mask_N: Tensor, *, response_tokens_N: Tensor, responses: int) -> Tensor:
    """The share of these tokens in the mean over responses of each response's mean over its tokens.

        share = sum over the mask of loss_t / (action tokens of t's response) / responses

    Both counts are of the whole optimizer batch, so any split gives the same gradient, also one through the
    middle of a response. All responses of one length: `token_mean`.

    Args:
        loss_N: [N].
        mask_N: [N] bool, True on action tokens.
        response_tokens_N: [N], number of action tokens of the whole response (all its segments) that a token
            belongs to; not read off the mask.
        responses: number of responses with action tokens in the whole optimizer batch.

    Returns:
        a scalar, float32 or wider.

    Raises:
        ValueError: a mask that is not boolean, shapes that differ, or a count below 1 with tokens on the mask.

    Source: VP eq. 4; method sheet section 1.
    """
    loss = select(mask_N, widen(loss_N))
    require_shape("response_tokens", response_tokens_N, loss)
    tokens = select(mask_N, response_tokens_N.to(loss.dtype), fill=1.0)
    if bool((tokens < 1).any()):
        raise ValueError("response_tokens must be at least 1 on every action token")
    return _global_mean(loss / tokens, mask_N, responses, "responses")


def _global_mean(selected_N: Tensor, mask_N: Tensor, count: int, name: str) -> Tensor:
    if count < 1:
        if bool(mask_N.any()):
            raise ValueError(f"{name} is {count}, but {int(mask_N.sum())} tokens are on the action mask")
        return selected_N.sum()
    return selected_N.sum() / count


def _action_inputs(
    logprobs_N: Tensor, sampler_logprobs_N: Tensor, advantages_N: Tensor, action_mask_N: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs in float32 or wider, constants detached, and 0 off the mask before anything non-linear sees them."""
    require_shape("sampler log-probs", sampler_logprobs_N, logprobs_N)
    require_shape("advantages", advantages_N, logprobs_N)
    if action_mask_N is not None:
        require_mask(action_mask_N, logprobs_N)
    lp = select(action_mask_N, widen(logprobs_N))
    lq = select(action_mask_N, widen(sampler_logprobs_N.detach()))
    return lp, lq, select(action_mask_N, widen(advantages_N.detach()))


def _weighted_ratio(log_ratio_N: Tensor, weights_N: Tensor) -> Tensor:
    """The product weights * exp(log_ratio), never forming a ratio of weight 0: it may overflow."""
    weighted = weights_N != 0
    ratio = torch.where(weighted, log_ratio_N, torch.zeros_like(log_ratio_N)).exp()
    return torch.where(weighted, weights_N * ratio, torch.zeros_like(ratio))
