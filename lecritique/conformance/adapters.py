"""Adapters from the signatures of released frameworks to a `GaeRequest`.

Each takes the framework's function (or what makes it) and imports nothing of the framework. verl and SkyRL whiten the
advantages that they return, so theirs are read back as returns minus values, which are not whitened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from lecritique.conformance.request import GaeCallable, GaeRequest, Unsupported
from lecritique.numerics.gae import gae, gae_segments

_Pair = tuple[Tensor, Tensor]


def lecritique_gae(request: GaeRequest) -> _Pair:
    """This package's `gae` and `gae_segments`; a packed row is split into its sequences."""
    if request.packed_lengths is not None:
        return _packed(request, request.packed_lengths)
    if request.episodes is not None:
        return _segmented(request, request.episodes)
    return gae(
        request.rewards_BT,
        request.values_BT,
        request.action_mask_BT,
        gamma=request.gamma,
        gae_lambda=request.gae_lambda,
        value_target_lambda=request.value_target_lambda,
        bootstrap_value=0.0 if request.bootstrap_B is None else request.bootstrap_B,
    )


def _packed(request: GaeRequest, packed_lengths: tuple[tuple[int, ...], ...]) -> _Pair:
    advantages, targets = torch.zeros_like(request.values_BT), torch.zeros_like(request.values_BT)
    for row, lengths in enumerate(packed_lengths):
        for end, length in zip(accumulate(lengths), lengths, strict=True):
            cut = slice(end - length, end)
            advantages[row, cut], targets[row, cut] = gae(
                request.rewards_BT[row, cut],
                request.values_BT[row, cut],
                request.action_mask_BT[row, cut],
                gamma=request.gamma,
                gae_lambda=request.gae_lambda,
                value_target_lambda=request.value_target_lambda,
            )
    return advantages, targets


def _segmented(request: GaeRequest, episodes: tuple[tuple[int, ...], ...]) -> _Pair:
    advantages, targets = torch.zeros_like(request.values_BT), torch.zeros_like(request.values_BT)
    for rows in episodes:
        found = gae_segments(
            [request.rewards_BT[row] for row in rows],
            [request.values_BT[row] for row in rows],
            [request.action_mask_BT[row] for row in rows],
            gamma=request.gamma,
            gae_lambda=request.gae_lambda,
            value_target_lambda=request.value_target_lambda,
        )
        for row, segment_advantages, segment_targets in zip(rows, *found, strict=True):
            advantages[row], targets[row] = segment_advantages, segment_targets
    return advantages, targets


def verl_gae(compute_gae_advantage_return: Callable[..., _Pair]) -> GaeCallable:
    """verl's `compute_gae_advantage_return(token_level_rewards, values, response_mask, gamma, lam)`.

    Args:
        compute_gae_advantage_return: the function; returns whitened advantages, and advantages + values.
    """
    return _from_returns(compute_gae_advantage_return, lambda_name="lam")


def skyrl_gae(compute_gae_advantage_return: Callable[..., _Pair]) -> GaeCallable:
    """SkyRL's `compute_gae_advantage_return(token_level_rewards, values, response_mask, gamma, lambd, **kwargs)`.

    Args:
        compute_gae_advantage_return: the function; returns whitened advantages, and advantages + values.
    """
    return _from_returns(compute_gae_advantage_return, lambda_name="lambd")


def _from_returns(function: Callable[..., _Pair], *, lambda_name: str) -> GaeCallable:
    def adapted(request: GaeRequest) -> _Pair:
        _require_plain(request)
        _, returns = function(
            token_level_rewards=request.rewards_BT,
            values=request.values_BT,
            response_mask=request.action_mask_BT.to(request.values_BT.dtype),
            gamma=request.gamma,
            **{lambda_name: request.gae_lambda},
        )
        return returns - request.values_BT.detach(), returns

    return adapted


def openrlhf_gae(get_advantages_and_returns: Callable[..., _Pair]) -> GaeCallable:
    """OpenRLHF's `get_advantages_and_returns(values, rewards, action_mask, gamma, lambd)`.

    Args:
        get_advantages_and_returns: the method, bound to its experience maker; its advantages are not normalised.
    """

    def adapted(request: GaeRequest) -> _Pair:
        _require_plain(request)
        # The function fills masked slots of its arguments in place in some releases.
        return get_advantages_and_returns(
            values=request.values_BT.clone(),
            rewards=request.rewards_BT.clone(),
            action_mask=request.action_mask_BT,
            gamma=request.gamma,
            lambd=request.gae_lambda,
        )

    return adapted


class NemoRlEstimator(Protocol):
    """What NeMo-RL's advantage estimators offer."""

    def compute_advantage(self, prompt_ids: Any, rewards: Tensor, mask: Tensor, values: Tensor) -> _Pair:
        """Advantages and returns [B, T] from one reward per sample [B]."""
        ...


def nemo_rl_gae(make_estimator: Callable[[Mapping[str, Any]], NemoRlEstimator]) -> GaeCallable:
    """NeMo-RL's `GeneralizedAdvantageEstimator.compute_advantage(prompt_ids, rewards, mask, values)`.

    Args:
        make_estimator: builds the estimator from its configuration, most often
            `lambda config: GeneralizedAdvantageEstimator(config, loss_config)` with a loss configuration that
            keeps the KL penalty out of the rewards.
    """

    def adapted(request: GaeRequest) -> _Pair:
        _require_plain(request, one_lambda=False)
        mask = request.action_mask_BT
        rewards_BT = torch.where(mask, request.rewards_BT, torch.zeros_like(request.rewards_BT))
        actions_left = mask.flip(-1).cumsum(-1).flip(-1)
        if bool((rewards_BT[actions_left > 1] != 0).any()):
            raise Unsupported("takes one reward per sample, given at its end")
        estimator = make_estimator(
            {
                "gae_gamma": request.gamma,
                "gae_lambda": request.gae_lambda,
                "gae_lambda_policy": request.gae_lambda,
                "gae_lambda_value": request.value_target_lambda,
                "length_adaptive_alpha": 0.0,
                "normalize_advantages": False,
            }
        )
        return estimator.compute_advantage(
            prompt_ids=torch.arange(len(mask)),
            rewards=rewards_BT.sum(-1),
            mask=mask.to(request.values_BT.dtype),
            values=request.values_BT,
        )

    return adapted


def _require_plain(request: GaeRequest, *, one_lambda: bool = True) -> None:
    """Raise for what none of the frameworks' functions can be asked for."""
    if request.packed_lengths is not None:
        raise Unsupported("takes one sequence a row")
    if request.episodes is not None:
        raise Unsupported("takes one row an episode")
    if request.bootstrap_B is not None:
        raise Unsupported("takes no value of the state after the last token")
    if one_lambda and request.gae_lambda != request.value_target_lambda:
        raise Unsupported("takes one lambda for advantages and targets")
