"""Generalised advantage estimation over action tokens, and the rewards that go into it.

Shapes: T trajectory length; `...` leading batch dimensions. Values and rewards are in reward units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from lecritique.numerics.precision import require_mask, require_shape, select, widen

SegmentSemantics = Literal["sequential", "independent"]

# Tokens of a block of the recursion: about the square root of a long response, so that it takes two short loops.
_BLOCK_TOKENS = 64
_CACHED_TOKENS = 1 << 17


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
    gae_lambda: Tensor | float,
    value_target_lambda: Tensor | float,
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
        gae_lambda: [...] or one number, of the advantages, in [0, 1]; one per row for `lambda_for_lengths`.
        value_target_lambda: [...] or one number, of the targets, in [0, 1], independent of `gae_lambda`.
        bootstrap_value: [...] or one number, V of the state after the last action token.

    Returns:
        advantages [..., T] and targets [..., T], both 0 off the mask, float32 or wider.

    Raises:
        ValueError: a factor outside [0, 1], a mask that is not boolean, shapes that differ.

    Source: Schulman et al. 2016 (1506.02438) eq. 16; LC section 2.3; method sheet section 3.
    """
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    require_mask(action_mask_T, values_T)
    require_shape("rewards", rewards_T, values_T)
    rows, time = values_T.shape[:-1], values_T.shape[-1]
    dtype = torch.promote_types(widen(rewards_T).dtype, widen(values_T).dtype)
    bootstrap = torch.as_tensor(bootstrap_value, dtype=dtype, device=values_T.device).detach().expand(rows)
    lambdas = [
        _row_lambdas(name, factor, rows).to(values_T.device)
        for name, factor in (("gae_lambda", gae_lambda), ("value_target_lambda", value_target_lambda))
    ]
    advantages, targets = torch.zeros((2, *values_T.shape), dtype=dtype, device=values_T.device)
    if values_T.numel() == 0:
        return advantages, targets
    by_token = [c.reshape(-1, time) for c in (rewards_T.detach(), values_T.detach(), action_mask_T)]
    by_row = [c.reshape(-1) for c in (bootstrap, *lambdas)]
    into = advantages.view(-1, time), targets.view(-1, time)
    # Few rows at a time: what is computed in between then stays in the processor's cache.
    rows_at_once = max(1, _CACHED_TOKENS // time)
    for start in range(0, len(by_token[0]), rows_at_once):
        these = slice(start, start + rows_at_once)
        parts = _gae_rows(*(c[these] for c in by_token), *(c[these] for c in by_row), gamma=gamma, dtype=dtype)
        for whole, part in zip(into, parts, strict=True):
            whole[these] = part
    return advantages, targets


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


def lambda_for_lengths(lengths_B: Tensor | Sequence[int], alpha: float = 0.05) -> Tensor:
    """The length-adaptive lambda: one per response, closer to 1 the longer it is.

        lambda_i = max(0, 1 - 1 / (alpha T_i))

    1 / (1 - lambda_i) = alpha T_i tokens is how far credit reaches: always the share alpha of the response. Up to
    1 / alpha tokens, and without any, it is 0. Give the result to `gae` as `gae_lambda`.

    Args:
        lengths_B: [B], action tokens of each response, at least 0.
        alpha: share of the response, above 0.

    Returns:
        [B], float64.

    Raises:
        ValueError: a negative length or an alpha that is not above 0.

    Source: 2504.05118 (VAPO); method sheet section 3.
    """
    if not alpha > 0.0:
        raise ValueError(f"alpha must be above 0, got {alpha}")
    lengths = torch.as_tensor(lengths_B, dtype=torch.float64)
    if bool((lengths < 0).any()):
        raise ValueError(f"lengths must be at least 0 tokens, got {float(lengths.min()):g}")
    return (1.0 - 1.0 / (alpha * lengths)).clamp(min=0.0)


def _row_lambdas(name: str, factor: Tensor | float, rows: torch.Size) -> Tensor:
    """`factor` in float64 with one dimension per leading dimension of the rows, checked."""
    lambdas = torch.as_tensor(factor, dtype=torch.float64).detach()
    if lambdas.dim() and lambdas.shape != rows:
        raise ValueError(f"{name} has shape {tuple(lambdas.shape)}, expected one number or {tuple(rows)}")
    if not bool(((lambdas >= 0.0) & (lambdas <= 1.0)).all()):
        raise ValueError(f"{name} must be in [0, 1], got {factor}")
    return lambdas if lambdas.dim() else lambdas.expand(rows)


def _packed_places(action_mask_T: Tensor) -> Tensor:
    """Where each token goes so that the action tokens stand, in order, at the end: a permutation of each row."""
    time = action_mask_T.shape[-1]
    position_T = torch.arange(time, device=action_mask_T.device)
    actions_so_far = action_mask_T.cumsum(-1)
    actions = actions_so_far[..., -1:]
    return torch.where(action_mask_T, actions_so_far + (time - 1 - actions), position_T - actions_so_far)


def _gae_rows(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    bootstrap_B: Tensor,
    gae_lambda_B: Tensor,
    value_target_lambda_B: Tensor,
    *,
    gamma: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """`gae` of rows whose inputs are checked."""
    values, rewards = values_BT.to(dtype), rewards_BT.to(dtype)
    # Action tokens move, in order, to the end. The recursion runs from there to the front, so what stands off the
    # mask comes last, reaches no action token and is dropped.
    places = _packed_places(mask_BT)
    packed_values = torch.empty_like(values).scatter_(-1, places, values)
    packed_rewards = torch.empty_like(rewards).scatter_(-1, places, rewards)
    packed_next = torch.cat([packed_values[:, 1:], bootstrap_B[:, None]], dim=-1)

    def returns(lambda_B: Tensor) -> Tensor:
        return _lambda_returns(packed_rewards, packed_next, gamma=gamma, lambda_B=lambda_B).gather(-1, places)

    of_advantages = returns(gae_lambda_B)
    same = torch.equal(gae_lambda_B, value_target_lambda_B)
    of_targets = of_advantages if same else returns(value_target_lambda_B)
    return select(mask_BT, of_advantages - values), select(mask_BT, of_targets)


def _lambda_returns(rewards_BT: Tensor, next_values_BT: Tensor, *, gamma: float, lambda_B: Tensor) -> Tensor:
    """G_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1}), with G = V after the last token: [B, T]."""
    lambda_B1 = lambda_B[:, None]
    steps_BT = rewards_BT + (gamma * (1.0 - lambda_B1)).to(rewards_BT.dtype) * next_values_BT
    return _recursion(steps_BT, gamma * lambda_B1, next_values_BT[:, -1:])


def _recursion(steps_BT: Tensor, decay_B1: Tensor, after_last_B1: Tensor) -> Tensor:
    """G_t = steps_t + decay G_{t+1}, with G = `after_last_B1` behind the last token: [B, T]. `decay_B1` is float64.

    In blocks counted from the end, n tokens before the end of its block and c the first G behind it:

        G_t = (the recursion inside the block, started from 0)_t + decay^n c

    and the first G of the blocks follow from the same recursion over blocks. Every operation is elementwise and the
    blocks do not depend on what stands in front, so the result of a row does not depend on its padding or on its
    neighbours, to the last bit.
    """
    time, dtype = steps_BT.shape[-1], steps_BT.dtype
    block = min(_BLOCK_TOKENS, time)
    blocks = -(-time // block)
    in_front = blocks * block - time
    # [block, B, blocks]: the same token of every block is contiguous.
    inside = pad(steps_BT, (in_front, 0)).reshape(-1, blocks, block).movedim(-1, 0).contiguous()
    tokens, decay = inside.unbind(0), decay_B1.to(dtype)
    for n in reversed(range(block - 1)):
        tokens[n].add_(decay * tokens[n + 1])
    powers = decay_B1.expand(block, -1, -1).cumprod(0).flip(0)
    behind = after_last_B1
    if blocks > 1:
        firsts = _recursion(tokens[0].clone(), powers[0], after_last_B1)
        behind = torch.cat([firsts[:, 1:], after_last_B1], dim=-1)
    inside += powers.to(dtype) * behind
    return inside.movedim(0, -1).flatten(-2)[:, in_front:]
