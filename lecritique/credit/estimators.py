"""The one screen that maps a configured estimator to numerics.

Shape letters: M trajectories of a batch, K members of a group, T trajectory length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.config.estimators import (
    AdaptiveLambda,
    Discounting,
    Estimator,
    Evpo,
    GroupMean,
    LeaveOneOut,
    LengthLambda,
    NoAdvantage,
    SoftPenalty,
    Tether,
    Value,
)
from lecritique.config.resolve import gae_lambda
from lecritique.core.ids import GroupId
from lecritique.core.trajectory import CreditedTrajectory, Trajectory, ValuePrediction
from lecritique.numerics.baselines import group_advantages, group_baselines
from lecritique.numerics.dapo import overlong_penalty
from lecritique.numerics.gae import gae, lambda_for_lengths, terminal_rewards
from lecritique.numerics.tether import tether_advantages

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredGroup:
    """The valid members of one group, with their values from one critic version (None without a critic)."""

    group_id: GroupId
    trajectories: tuple[Trajectory, ...]
    predictions: tuple[ValuePrediction, ...] | None

    @property
    def value_version(self) -> int | None:
        """The critic version that scored the group."""
        return self.predictions[0].value_version if self.predictions else None

    @property
    def returns_K(self) -> torch.Tensor:
        """Returns of the members."""
        return torch.tensor([t.episode_return for t in self.trajectories], dtype=torch.float64)

    @cached_property
    def leave_one_out_K(self) -> tuple[float, ...]:
        """The mean return of the others, of each member: Tether's advantages, its fit and the record share it."""
        return tuple(group_baselines(self.returns_K, "leave_one_out").tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenCredit:
    """GAE and value target of one trajectory, before any group baseline: [T] each, 0 off the action mask.

    `gae_lambda` is the lambda that the GAE was made with.
    """

    values_T: Array
    advantages_T: Array
    targets_T: Array
    gae_lambda: float = 1.0


Rho = float | Sequence[torch.Tensor]


def advantages_of(
    group: ScoredGroup, credits: Sequence[TokenCredit], estimator: Estimator, *, rho: Rho, use_critic: bool
) -> list[Array]:
    """Advantages of each member under the estimator.

    Args:
        group: the group.
        credits: GAE of each member.
        estimator: the configured estimator.
        rho: Tether's coefficient for this group, or one [T] per member where it depends on the position.
        use_critic: EVPO's decision for this batch.
    """
    match estimator:
        case GroupMean():
            _, advantages_K = group_advantages(compared_returns(group, estimator), "mean", scale=estimator.scale)
            return broadcast(advantages_K, group.trajectories)
        case LeaveOneOut():
            _, advantages_K = group_advantages(group.returns_K, "leave_one_out")
            return broadcast(advantages_K, group.trajectories)
        case NoAdvantage():
            return [np.zeros(len(trajectory)) for trajectory in group.trajectories]
        case Value():
            return [credit.advantages_T for credit in credits]
        case Tether():
            rhos = one_per_member(rho, group)
            return [
                tethered(credit, trajectory.action_mask, baseline, own)
                for credit, trajectory, baseline, own in zip(
                    credits, group.trajectories, group.leave_one_out_K, rhos, strict=True
                )
            ]
        case Evpo():
            stand_in: Estimator = Value() if use_critic else GroupMean()
            return advantages_of(group, credits, stand_in, rho=rho, use_critic=use_critic)


def baselines_of(group: ScoredGroup, estimator: Estimator, *, use_critic: bool) -> list[float | None]:
    """The group baseline that the estimator subtracts from each member's return, None where it uses none.

    Args:
        group: the group.
        estimator: the configured estimator.
        use_critic: EVPO's decision for this batch.
    """
    match estimator:
        case Tether() | LeaveOneOut():
            return list(group.leave_one_out_K)
        case Evpo() if use_critic:
            return [None] * len(group.trajectories)
        case GroupMean():
            return list(group_baselines(compared_returns(group, estimator), "mean").tolist())
        case Evpo():
            return list(group_baselines(group.returns_K, "mean").tolist())
        case Value() | NoAdvantage():
            return [None] * len(group.trajectories)


def one_per_member(rho: Rho, group: ScoredGroup) -> Sequence[float | torch.Tensor]:
    """Tether's coefficient of each member: the group's one number, or one [T] each."""
    return [rho] * len(group.trajectories) if isinstance(rho, float) else rho


def compared_returns(group: ScoredGroup, estimator: GroupMean) -> torch.Tensor:
    """The returns that the group mean compares: with the penalty on overlong responses, where there is one."""
    if not isinstance(estimator.overlong, SoftPenalty):
        return group.returns_K
    lengths = [trajectory.action_tokens for trajectory in group.trajectories]
    return group.returns_K + overlong_penalty(lengths, limit=estimator.overlong.limit, cache=estimator.overlong.cache)


def broadcast(advantages_K: torch.Tensor, trajectories: Sequence[Trajectory]) -> list[Array]:
    """One number per member, on each of its action tokens."""
    return [
        np.where(trajectory.action_mask, advantage, 0.0)
        for advantage, trajectory in zip(advantages_K.tolist(), trajectories, strict=True)
    ]


def tethered(credit: TokenCredit, action_mask: NDArray[np.bool_], baseline: float, rho: float | torch.Tensor) -> Array:
    """GAE + (1 - rho) (V - B) on the action tokens (LC eq. 15)."""
    advantages_T = tether_advantages(
        torch.from_numpy(credit.advantages_T),
        torch.from_numpy(credit.values_T),
        baseline,
        rho,
        action_mask_T=torch.from_numpy(np.array(action_mask)),
    )
    return np.where(action_mask, advantages_T.numpy(), 0.0)


def token_credits(
    groups: Sequence[ScoredGroup],
    estimator: Estimator,
    *,
    value_target_lambda: float | LengthLambda,
    adapted_lambda: float = 1.0,
) -> list[TokenCredit]:
    """GAE of every trajectory of the batch at once; without a critic the values are 0 and targets the returns.

    Args:
        groups: the batch.
        estimator: the configured estimator.
        value_target_lambda: lambda of the targets.
        adapted_lambda: lambda of the advantages for an estimator whose lambda adapts from batch to batch.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not trajectories:
        return []
    width = max(len(trajectory) for trajectory in trajectories)
    mask_MT = np.zeros((len(trajectories), width), dtype=np.bool_)
    values_MT = np.zeros((len(trajectories), width))
    predicted = [p.values for group in groups for p in group.predictions or ()]
    for row, trajectory in enumerate(trajectories):
        mask_MT[row, : len(trajectory)] = trajectory.action_mask
        if predicted:
            values_MT[row, : len(trajectory)] = predicted[row]
    gamma, own_lambda = discounting(estimator)
    mask = torch.from_numpy(mask_MT)
    lam = adapted_lambda if isinstance(own_lambda, AdaptiveLambda) else own_lambda
    return _credits(
        trajectories,
        values_MT,
        mask,
        gamma=gamma,
        lam=by_length(lam, mask),
        value_target_lambda=by_length(value_target_lambda, mask),
    )


def _credits(
    trajectories: Sequence[Trajectory],
    values_MT: Array,
    mask: torch.Tensor,
    *,
    gamma: float,
    lam: torch.Tensor | float,
    value_target_lambda: torch.Tensor | float,
) -> list[TokenCredit]:
    returns_M = torch.tensor([trajectory.episode_return for trajectory in trajectories], dtype=torch.float64)
    advantages_MT, targets_MT = gae(
        terminal_rewards(returns_M, mask),
        torch.from_numpy(values_MT),
        mask,
        gamma=gamma,
        gae_lambda=lam,
        value_target_lambda=value_target_lambda,
    )
    return [
        TokenCredit(
            values_T=values_MT[row, : len(trajectory)],
            advantages_T=advantages_MT[row, : len(trajectory)].numpy(),
            targets_T=targets_MT[row, : len(trajectory)].numpy(),
            gae_lambda=lam if isinstance(lam, float) else float(lam[row]),
        )
        for row, trajectory in enumerate(trajectories)
    ]


def by_length(factor: float | LengthLambda, mask_MT: torch.Tensor) -> torch.Tensor | float:
    """The lambda of each trajectory where it depends on the trajectory's action tokens, else the one number."""
    return lambda_for_lengths(mask_MT.sum(-1), factor.alpha) if isinstance(factor, LengthLambda) else factor


def discounting(estimator: Estimator) -> tuple[float, float | LengthLambda | AdaptiveLambda]:
    """Gamma and gae_lambda; both 1 for estimators without a critic."""
    if isinstance(estimator, Discounting):
        return estimator.gamma, gae_lambda(estimator.gae_lambda)
    return 1.0, 1.0


def credited(
    trajectory: Trajectory,
    credit: TokenCredit,
    advantages_T: Array,
    *,
    group: ScoredGroup,
    baseline: float | None,
    estimator: Estimator,
    rho: float,
    token_rho: Array | None = None,
) -> CreditedTrajectory:
    """The record of one member's credit."""
    return CreditedTrajectory(
        trajectory=trajectory,
        advantages=advantages_T,
        value_targets=credit.targets_T,
        values=credit.values_T if group.predictions else None,
        baseline=baseline,
        rho=rho if isinstance(estimator, Tether) else None,
        token_rho=token_rho if isinstance(estimator, Tether) else None,
        estimator=estimator.type,
        value_version=group.value_version,
    )
