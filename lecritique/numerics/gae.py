"""Generalised advantage estimation over action tokens, and the rewards that go into it.

Shapes: T trajectory length; `...` leading batch dimensions. Values and rewards are in reward units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lecritique.numerics.precision import require_mask, require_shape, select, widen

SegmentSemantics = Literal["sequential", "independent"]


def terminal_rewards(reward: Tensor | float, action_mask_T: Tensor) -> Tensor:
    """Per-token rewards of an episode that is scored once: `reward` on its last action token, 0 elsewhere.

        r_t = reward if t is the last action token, else 0

    The last action token carries it also when the episode ends on an environment message. Without action
    tokens all is 0. With gamma = 1 the return of every action token is `reward`.

    Args:
        reward: [...], or one number (taken in float64), in reward units.
        action_mask_T: [..., T] bool, True on sampled tokens.

    Returns:
        [..., T], float32 or wider.

    Raises:
        ValueError: the mask is not boolean, or the shapes do not go together.

    Source: method sheet section 0; LC section 2.1.
    """
    if action_mask_T.dtype != torch.bool:
        raise ValueError(f"a mask must be boolean (True = keep), got {action_mask_T.dtype}")
    if not isinstance(reward, Tensor):
        reward = torch.tensor(reward, dtype=torch.float64, device=action_mask_T.device)
    if reward.dim() and reward.shape != action_mask_T.shape[:-1]:
        raise ValueError(f"rewards have shape {tuple(reward.shape)}, expected {tuple(action_mask_T.shape[:-1])}")
    actions_left = action_mask_T.flip(-1).cumsum(-1).flip(-1)
    is_last = action_mask_T & (actions_left == 1)
    spread = widen(reward.detach()).unsqueeze(-1).expand(action_mask_T.shape)
    return torch.where(is_last, spread, torch.zeros_like(spread))


def gae(
    rewards_T: Tensor,
    values_T: Tensor,
    action_mask_T: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    value_target_lambda: float,
    bootstrap_value: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets by generalised advantage estimation.

        delta_t  = r_t + gamma V_{t+1} - V_t
        A_t      = delta_t + gamma gae_lambda A_{t+1}
        target_t = V_t + the same sum with value_target_lambda

    "t+1" is the next action token of the same episode: prompt, tool and environment tokens in between are
    neither a step nor a discount. After the last action token V_{t+1} is `bootstrap_value`: 0 when the
    episode ended, also when it was cut, unless the caller chooses to bootstrap.

    Computed as the equal lambda-return G_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1}), A_t = G_t - V_t,
    because it does not add up rounding: with gamma = lambda = 1 and a terminal reward R, G_t is R and A_t is
    R - V_t to the last bit.

    Special cases: lambda = 1 is the discounted return minus V_t; lambda = 0 is the one-step error delta_t;
    V = 0 and gamma = lambda = 1 is the return itself.

    What stands off the mask in `rewards_T` and `values_T` is never read. Nothing flows back: results are detached.

    Args:
        rewards_T: [..., T], reward units.
        values_T: [..., T], V(state before token t), reward units.
        action_mask_T: [..., T] bool, True on sampled tokens.
        gamma: discount per action token, in [0, 1].
        gae_lambda: of the advantages, in [0, 1].
        value_target_lambda: of the targets, in [0, 1], independent of `gae_lambda`.
        bootstrap_value: [...] or one number, V of the state after the last action token.

    Returns:
        advantages [..., T] and targets [..., T], both 0 off the mask, float32 or wider.

    Raises:
        ValueError: a factor outside [0, 1], a mask that is not boolean, shapes that differ.

    Source: Schulman et al. 2016 (1506.02438) eq. 16; LC section 2.3; method sheet section 3.
    """
    for name, factor in (("gamma", gamma), ("gae_lambda", gae_lambda), ("value_target_lambda", value_target_lambda)):
        if not 0.0 <= factor <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {factor}")
    require_mask(action_mask_T, values_T)
    require_shape("rewards", rewards_T, values_T)
    dtype = torch.promote_types(widen(rewards_T).dtype, widen(values_T).dtype)
    rewards, values = rewards_T.detach().to(dtype), values_T.detach().to(dtype)
    if values.shape[-1] == 0:
        return torch.zeros_like(values), torch.zeros_like(values)

    # A stable sort of the mask moves the action tokens, in order, to the end. The recursion runs from there to the
    # front, so what stands off the mask comes last, reaches no action token and is dropped.
    order = torch.argsort(action_mask_T.to(torch.uint8), dim=-1, stable=True)
    packed_values = values.gather(-1, order)
    bootstrap = torch.as_tensor(bootstrap_value, dtype=dtype, device=values.device).detach()
    after_last = bootstrap.expand(values.shape[:-1]).unsqueeze(-1)
    packed_next = torch.cat([packed_values[..., 1:], after_last], dim=-1)
    packed_returns = _lambda_returns(
        rewards.gather(-1, order), packed_next, gamma=gamma, lambdas=(gae_lambda, value_target_lambda)
    )
    returns = torch.zeros_like(packed_returns).scatter(-1, order.expand_as(packed_returns), packed_returns)
    return select(action_mask_T, returns[0] - values), select(action_mask_T, returns[1])


def gae_segments(
    rewards: Sequence[Tensor],
    values: Sequence[Tensor],
    masks: Sequence[Tensor],
    *,
    gamma: float,
    gae_lambda: float,
    value_target_lambda: float,
    bootstrap_value: float = 0.0,
    semantics: SegmentSemantics = "sequential",
) -> tuple[list[Tensor], list[Tensor]]:
    """`gae` of one episode that is kept in several segments, because its context was compacted.

        sequential:   (A_1 | A_2 | ...) = gae(r_1 | r_2 | ..., V_1 | V_2 | ...), | joining segments
        independent:  A_s = gae(terminal_rewards(sum of all r), V_s) for each segment s

    `sequential`: the recursion runs through the action tokens of all segments in order of generation, so
    "t+1" of a segment's last action token is the first action token of the next segment. Equals `gae` of the
    concatenation. `independent`: each segment is an episode of its own that ends with the return of the whole
    one: the sum of all rewards on action tokens sits on each segment's last action token, and only the last
    segment bootstraps. One segment with a terminal reward: both equal `gae`.

    Args:
        rewards: one [T] per segment, reward units.
        values: one [T] per segment, reward units.
        masks: one [T] bool per segment, True on sampled tokens.
        gamma: discount per action token, in [0, 1].
        gae_lambda: of the advantages, in [0, 1].
        value_target_lambda: of the targets, in [0, 1].
        bootstrap_value: V of the state after the episode's last action token.
        semantics: `sequential` or `independent`.

    Returns:
        advantages and targets, each one [T] per segment.

    Raises:
        ValueError: no segments, differing numbers of segments, unknown semantics, or what `gae` refuses.

    Source: method sheet section 3.
    """
    if not values or not len(rewards) == len(values) == len(masks):
        raise ValueError(
            f"an episode needs the same number of rewards, values and masks, at least one of each: "
            f"got {len(rewards)}, {len(values)} and {len(masks)}"
        )
    factors = {"gamma": gamma, "gae_lambda": gae_lambda, "value_target_lambda": value_target_lambda}
    if semantics == "sequential":
        lengths = [len(mask) for mask in masks]
        advantages, targets = gae(
            torch.cat(list(rewards)),
            torch.cat(list(values)),
            torch.cat(list(masks)),
            bootstrap_value=bootstrap_value,
            **factors,
        )
        return list(torch.split(advantages, lengths)), list(torch.split(targets, lengths))
    if semantics != "independent":
        raise ValueError(f"segment semantics must be 'sequential' or 'independent', got {semantics!r}")
    episode_return = torch.stack([select(m, widen(r)).sum() for r, m in zip(rewards, masks, strict=True)]).sum()
    bootstraps = [0.0] * (len(masks) - 1) + [bootstrap_value]
    pairs = [
        gae(terminal_rewards(episode_return, m), v, m, bootstrap_value=b, **factors)
        for v, m, b in zip(values, masks, bootstraps, strict=True)
    ]
    return [advantages for advantages, _ in pairs], [targets for _, targets in pairs]


def terminal_rewards_segments(reward: float, masks: Sequence[Tensor]) -> list[Tensor]:
    """`terminal_rewards` of an episode in segments: once, on the last action token of the last segment that has one.

        r_{s,t} = reward if (s, t) is the last action token of the episode, else 0

    Args:
        reward: of the episode, reward units.
        masks: one [T] bool per segment.

    Returns:
        one [T] per segment, float64.

    Raises:
        ValueError: no segments, or a mask that is not boolean.

    Source: method sheet section 0.
    """
    if not masks:
        raise ValueError("an episode needs at least one segment, got none")
    return list(torch.split(terminal_rewards(reward, torch.cat(list(masks))), [len(mask) for mask in masks]))


def lambda_from_length(length: int, retained: float) -> float:
    """The lambda that keeps the fraction `retained` of a terminal signal over `length` action tokens.

        lambda = retained^(1 / length)

    With V = 0 and gamma = 1 the first of `length` action tokens gets about `retained` of the terminal reward
    (exactly lambda^(length - 1)). `retained = 1` is lambda 1. 0.4 over 8192 tokens is 0.9998881543592094.

    Args:
        length: action tokens, at least 1.
        retained: fraction in (0, 1].

    Raises:
        ValueError: an argument outside its range.

    Source: LC section 4.1; method sheet section 3.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1 token, got {length}")
    if not 0.0 < retained <= 1.0:
        raise ValueError(f"retained must be in (0, 1], got {retained}")
    return float(retained ** (1.0 / length))


def _lambda_returns(rewards_T: Tensor, next_values_T: Tensor, *, gamma: float, lambdas: tuple[float, ...]) -> Tensor:
    """G_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1}) for each lambda: [len(lambdas), ..., T]."""
    time = rewards_T.shape[-1]
    lam = torch.tensor(lambdas, dtype=rewards_T.dtype, device=rewards_T.device)
    lam = lam.reshape(-1, *[1] * (rewards_T.dim() - 1))
    decay = gamma * lam
    steps = (rewards_T + (gamma * (1.0 - lam)).unsqueeze(-1) * next_values_T).movedim(-1, 0).contiguous().unbind(0)
    # G after the last action token is the bootstrap value itself.
    following = next_values_T[..., -1].expand(steps[-1].shape)
    returns = [following] * time
    for t in reversed(range(time)):
        following = torch.addcmul(steps[t], decay, following)
        returns[t] = following
    return torch.stack(returns, dim=-1)
