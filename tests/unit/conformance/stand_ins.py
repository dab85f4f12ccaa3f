"""GAE under the public signatures of four frameworks, written here: correct, and with the fault that two of them have.

The fault: the recursion steps over every token, so that an observation token between two actions counts as a step
with its own value. It is invisible at lambda 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Walk = Callable[[Tensor, Tensor, Tensor, float, float], Tensor]


def walk_actions(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Right: what is carried backwards is kept where the mask is 0."""
    columns, following = [], torch.zeros(2, len(values), dtype=values.dtype)
    for t in range(values.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * following[0] - values[:, t]
        here = torch.stack([values[:, t], delta + gamma * lam * following[1]])
        following = torch.where(mask[:, t].bool(), here, following)
        columns.insert(0, following[1])
    return torch.stack(columns, dim=1)


def walk_tokens(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Wrong: every token is a step; values off the mask are read as they are."""
    columns, next_value, following = [], torch.zeros(len(values), dtype=values.dtype), 0.0
    for t in range(values.shape[1] - 1, -1, -1):
        following = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * following
        next_value = values[:, t]
        columns.insert(0, following)
    return torch.stack(columns, dim=1)


def walk_zeroed_tokens(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Wrong: every token is a step, with value and reward set to 0 off the mask."""
    kept = mask.to(values.dtype)
    return walk_tokens(rewards * kept, values * kept, mask, gamma, lam)


def whitened(advantages: Tensor, mask: Tensor) -> Tensor:
    chosen = advantages[mask.bool()]
    return (advantages - chosen.mean()) / (chosen.var() + 1e-8).sqrt()


def verl_like(walk: Walk) -> Callable[..., tuple[Tensor, Tensor]]:
    def compute_gae_advantage_return(
        token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, lam: float
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            advantages = walk(token_level_rewards, values, response_mask, gamma, lam)
            return whitened(advantages, response_mask), advantages + values

    return compute_gae_advantage_return


def skyrl_like(walk: Walk) -> Callable[..., tuple[Tensor, Tensor]]:
    def compute_gae_advantage_return(
        token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, lambd: float, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            advantages = walk(token_level_rewards, values, response_mask, gamma, lambd)
            return whitened(advantages, response_mask), advantages + values

    return compute_gae_advantage_return


class OpenRlhfLike:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    @torch.no_grad()
    def get_advantages_and_returns(
        self, values: Tensor, rewards: Tensor, action_mask: Tensor, gamma: float, lambd: float
    ) -> tuple[Tensor, Tensor]:
        advantages = self.walk(rewards, values, action_mask, gamma, lambd)
        return advantages.detach(), advantages + values


class NemoRlLike:
    def __init__(self, config: Mapping[str, Any], walk: Walk) -> None:
        self.config, self.walk = config, walk

    def compute_advantage(
        self, prompt_ids: Tensor, rewards: Tensor, mask: Tensor, values: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert rewards.shape == prompt_ids.shape == (len(mask),)
        assert not self.config["normalize_advantages"]
        left = mask.flip(1).cumsum(1).flip(1)
        per_token = torch.where((left == 1) & (mask == 1), rewards[:, None], torch.zeros_like(values))
        advantages, for_targets = (
            self.walk(per_token, values, mask, self.config["gae_gamma"], self.config[f"gae_lambda_{name}"])
            for name in ("policy", "value")
        )
        return advantages.masked_fill(mask == 0, 0.0), for_targets + values
