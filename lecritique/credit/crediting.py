"""Credits a batch of groups and keeps the controllers' state (Tether, EVPO) across batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lecritique.config.estimators import USES_GROUP, Estimator, Evpo, LeaveOneOut, Tether
from lecritique.core.ids import GroupId
from lecritique.core.metrics import ValueFit
from lecritique.core.moments import Moments
from lecritique.core.trajectory import CreditedTrajectory
from lecritique.credit.estimators import (
    ScoredGroup,
    TokenCredit,
    advantages_of,
    baselines_of,
    credited,
    discounting,
    token_credits,
)
from lecritique.credit.evpo import EvpoController
from lecritique.credit.tether import TetherController
from lecritique.numerics.baselines import group_baselines
from lecritique.numerics.tether import tether_pairs


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchCredit:
    """The credit of one batch, and how well the values fitted before the critic trained on it.

    `critic_only` are the groups that the critic may learn from and the policy may not: while the critic is cold,
    those too small for the group baseline that stands in for it.
    """

    groups: tuple[tuple[CreditedTrajectory, ...], ...]
    fit: ValueFit
    rho: float | None
    evpo_uses_critic: bool | None
    groups_dropped: int
    critic_only: frozenset[GroupId] = frozenset()

    @property
    def members(self) -> tuple[CreditedTrajectory, ...]:
        """All credited trajectories, group by group."""
        return tuple(member for group in self.groups for member in group)

    @property
    def policy_members(self) -> tuple[CreditedTrajectory, ...]:
        """Those that the policy may be trained on."""
        return tuple(member for member in self.members if member.trajectory.group_id not in self.critic_only)


class Crediting:
    """The configured estimator with its state.

    Args:
        estimator: which advantage.
        value_target_lambda: lambda of the value targets.
        batch_size: rollouts of a Tether window: the policy batch (LC).
        warmup_updates: groups scored by an older critic version do not enter the Tether fit.
    """

    def __init__(
        self, estimator: Estimator, *, value_target_lambda: float, batch_size: int, warmup_updates: int
    ) -> None:
        self._estimator = estimator
        self._value_target_lambda = value_target_lambda
        self._warmup_updates = warmup_updates
        self.tether = _tether_controller(estimator, batch_size)
        self.evpo = EvpoController(lagged=estimator.lagged) if isinstance(estimator, Evpo) else None

    def credit(self, groups: Sequence[ScoredGroup], *, warm: bool) -> BatchCredit:
        """Advantages and targets of the batch.

        `warm = False` credits the policy by leave-one-out, whatever the estimator; targets and fit
        are the estimator's. Groups too small for the estimator's group baseline are dropped and counted.
        """
        estimator = self._estimator
        kept = [group for group in groups if len(group.trajectories) >= _least_members(estimator)]
        cold = [] if warm else [group for group in kept if len(group.trajectories) >= _least_members(LeaveOneOut())]
        by_group_alone = {group.group_id for group in cold}
        credits = token_credits(kept, estimator, value_target_lambda=self._value_target_lambda)
        fit = value_fit_of(kept, credits)
        use_critic = self.evpo.decide(fit.value()) if self.evpo else False
        rho = self.tether.rho if self.tether else None
        rest = iter(credits)
        done = tuple(
            self._credit_group(
                group,
                [next(rest) for _ in group.trajectories],
                LeaveOneOut() if group.group_id in by_group_alone else estimator,
                use_critic,
            )
            for group in kept
        )
        return BatchCredit(
            groups=done,
            fit=fit,
            rho=rho,
            evpo_uses_critic=use_critic if self.evpo else None,
            groups_dropped=len(groups) - len(kept),
            critic_only=frozenset() if warm else frozenset({group.group_id for group in kept} - by_group_alone),
        )

    def _credit_group(
        self, group: ScoredGroup, credits: list[TokenCredit], applied: Estimator, use_critic: bool
    ) -> tuple[CreditedTrajectory, ...]:
        # Read once, before the group's own returns are observed.
        rho = self.tether.rho if self.tether else 0.0
        advantages = advantages_of(group, credits, applied, rho=rho, use_critic=use_critic)
        baselines = baselines_of(group, applied, use_critic=use_critic)
        members = tuple(
            credited(trajectory, credit, column, group=group, baseline=baseline, estimator=applied, rho=rho)
            for trajectory, credit, column, baseline in zip(
                group.trajectories, credits, advantages, baselines, strict=True
            )
        )
        if self.tether is not None and (group.value_version or 0) >= self._warmup_updates:
            observe(self.tether, group, credits)
        return members

    def state(self) -> dict[str, Any]:
        """Controllers' state, for a checkpoint."""
        return {
            "tether": self.tether.state() if self.tether else None,
            "evpo": self.evpo.state() if self.evpo else None,
        }


def observe(controller: TetherController, group: ScoredGroup, credits: Sequence[TokenCredit]) -> None:
    """Give the group's (x, y) pairs to the Tether fit, one rollout at a time."""
    baselines_K = group_baselines(group.returns_K, "leave_one_out").tolist()
    for trajectory, credit, baseline in zip(group.trajectories, credits, baselines_K, strict=True):
        mask = torch.from_numpy(trajectory.action_mask.copy())
        controller.observe(
            *tether_pairs(torch.from_numpy(credit.advantages_T), torch.from_numpy(credit.values_T), baseline, mask)
        )


def value_fit_of(groups: Sequence[ScoredGroup], credits: Sequence[TokenCredit]) -> ValueFit:
    """Values against targets, pooled over all action tokens; empty without a critic."""
    fit = ValueFit()
    trajectories = [trajectory for group in groups if group.predictions for trajectory in group.trajectories]
    for trajectory, credit in zip(trajectories, credits, strict=bool(trajectories)):
        mask = trajectory.action_mask
        targets, values = credit.targets_T[mask], credit.values_T[mask]
        fit = fit.merge(ValueFit(error=Moments.of(targets - values), target=Moments.of(targets)))
    return fit


def metrics_of(credit: BatchCredit, crediting: Crediting) -> dict[str, float]:
    """The credit's metrics for the step."""
    metrics = {"groups_dropped": float(credit.groups_dropped)}
    if credit.fit.target.count:
        metrics |= {
            "explained_variance": credit.fit.value(),
            "value_bias": credit.fit.bias,
            "value_mse": credit.fit.mse,
        }
    if crediting.tether is not None and credit.rho is not None:
        fit = crediting.tether.last_fit
        metrics |= {
            "rho": credit.rho,
            "rho_fit": math.nan if fit is None else fit,
            "rho_skipped": float(crediting.tether.skipped),
        }
    if credit.evpo_uses_critic is not None:
        metrics["evpo_uses_critic"] = float(credit.evpo_uses_critic)
    return metrics


def _least_members(estimator: Estimator) -> int:
    return 2 if estimator.type in USES_GROUP else 1


def _tether_controller(estimator: Estimator, batch_size: int) -> TetherController | None:
    if not isinstance(estimator, Tether):
        return None
    gamma, lam = discounting(estimator)
    return TetherController(
        batch_size=batch_size,
        gamma=gamma,
        gae_lambda=lam,
        ridge=estimator.ridge,
        decay=estimator.decay,
        clip=estimator.clip,
    )
