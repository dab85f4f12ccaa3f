"""Credits a batch of groups and keeps the controllers' state (Tether, EVPO) across batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from lecritique.config.estimators import (
    USES_CRITIC,
    USES_GROUP,
    AdaptiveLambda,
    Estimator,
    Evpo,
    LeaveOneOut,
    LengthLambda,
    Tether,
)
from lecritique.core.errors import CheckpointError
from lecritique.core.ids import GroupId
from lecritique.core.metrics import Mean, ValueFit
from lecritique.core.moments import Moments
from lecritique.core.trajectory import CreditedTrajectory, Trajectory
from lecritique.credit.adaptive_lambda import LambdaController, Measured, measured
from lecritique.credit.estimators import (
    Rho,
    ScoredGroup,
    TokenCredit,
    advantages_of,
    baselines_of,
    credited,
    discounting,
    one_per_member,
    token_credits,
)
from lecritique.credit.evpo import EvpoController
from lecritique.credit.tether import BucketedTetherController, TetherController
from lecritique.numerics.tether import tether_buckets, tether_pairs

AnyTether = TetherController | BucketedTetherController


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchCredit:
    """The credit of one batch, and how well the values fitted before the critic trained on it.

    `critic_only` are the groups that the critic may learn from and the policy may not: while the critic is cold,
    those too small for the group baseline that stands in for it. `gae_lambda` is the mean over responses, NaN of
    none; None without a critic. `rho` is that of the first group; by position the mean over the batch's action tokens.
    `post_update_fit` is of the values that credited, where the critic had trained on the batch before them.
    """

    groups: tuple[tuple[CreditedTrajectory, ...], ...]
    fit: ValueFit
    gae_lambda: float | None
    rho: float | None
    evpo_uses_critic: bool | None
    groups_dropped: int
    critic_only: frozenset[GroupId] = frozenset()
    post_update_fit: ValueFit | None = None

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
        value_target_lambda: lambda of the value targets, or one by length.
        batch_size: rollouts of a Tether window: the policy batch (LC).
        warmup_updates: groups scored by an older critic version enter neither the Tether fit nor what lambda adapts to.
    """

    def __init__(
        self,
        estimator: Estimator,
        *,
        value_target_lambda: float | LengthLambda,
        batch_size: int,
        warmup_updates: int,
    ) -> None:
        self._estimator = estimator
        self._value_target_lambda = value_target_lambda
        self._warmup_updates = warmup_updates
        self.tether = _tether_controller(estimator, batch_size)
        self.evpo = EvpoController(lagged=estimator.lagged) if isinstance(estimator, Evpo) else None
        own_lambda = discounting(estimator)[1]
        self.adapting = LambdaController(own_lambda) if isinstance(own_lambda, AdaptiveLambda) else None

    def targets(self, groups: Sequence[ScoredGroup]) -> list[TokenCredit]:
        """Values and value targets of every trajectory of the groups that are not too small; no state moves."""
        return token_credits(self.large_enough(groups), self._estimator, value_target_lambda=self._value_target_lambda)

    def large_enough(self, groups: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """The groups that have as many members as the estimator's group baseline needs."""
        return [group for group in groups if len(group.trajectories) >= _least_members(self._estimator)]

    def credit(
        self, groups: Sequence[ScoredGroup], *, warm: bool, before: Sequence[TokenCredit] | None = None
    ) -> BatchCredit:
        """Advantages and targets of the batch.

        `warm = False` credits the policy by leave-one-out, whatever the estimator; targets and fit
        are the estimator's. Groups too small for the estimator's group baseline are dropped and counted.
        `before` are the `targets` of the same groups from before a critic was trained on them: these targets stay, the
        fit is of these values, and so is EVPO's decision; the groups' own values credit.
        """
        estimator = self._estimator
        kept = self.large_enough(groups)
        cold = [] if warm else [group for group in kept if len(group.trajectories) >= _least_members(LeaveOneOut())]
        by_group_alone = {group.group_id for group in cold}
        credits = token_credits(
            kept,
            estimator,
            value_target_lambda=self._value_target_lambda,
            adapted_lambda=self.adapting.gae_lambda if self.adapting else 1.0,
        )
        if before is not None:
            credits = [replace(own, targets_T=old.targets_T) for own, old in zip(credits, before, strict=True)]
        fit = value_fit_of(kept, credits if before is None else before)
        use_critic = self.evpo.decide(fit.value()) if self.evpo else False
        rho = self.tether.rho if isinstance(self.tether, TetherController) else None
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
        if self.adapting:
            self.adapting.observe([measured_group(group) for group in kept if self._is_warm(group)])
        return BatchCredit(
            groups=done,
            fit=fit,
            gae_lambda=_mean_lambda(credits) if estimator.type in USES_CRITIC else None,
            rho=_mean_rho(done) if isinstance(self.tether, BucketedTetherController) else rho,
            evpo_uses_critic=use_critic if self.evpo else None,
            groups_dropped=len(groups) - len(kept),
            post_update_fit=None if before is None else value_fit_of(kept, credits),
            critic_only=frozenset() if warm else frozenset({group.group_id for group in kept} - by_group_alone),
        )

    def _credit_group(
        self, group: ScoredGroup, credits: list[TokenCredit], applied: Estimator, use_critic: bool
    ) -> tuple[CreditedTrajectory, ...]:
        # Read once, before the group's own returns are observed.
        rho = rho_of(self.tether, group)
        advantages = advantages_of(group, credits, applied, rho=rho, use_critic=use_critic)
        baselines = baselines_of(group, applied, use_critic=use_critic)
        rhos = one_per_member(rho, group)
        members = tuple(
            credited(
                trajectory,
                credit,
                column,
                group=group,
                baseline=baseline,
                estimator=applied,
                rho=own if isinstance(own, float) else _mean_on(own, trajectory),
                token_rho=None if isinstance(own, float) else own.numpy(),
            )
            for trajectory, credit, column, baseline, own in zip(
                group.trajectories, credits, advantages, baselines, rhos, strict=True
            )
        )
        if self.tether is not None and self._is_warm(group):
            observe(self.tether, group, credits)
        return members

    def _is_warm(self, group: ScoredGroup) -> bool:
        return (group.value_version or 0) >= self._warmup_updates

    def state(self) -> dict[str, Any]:
        """Controllers' state, for a checkpoint."""
        return {name: controller and controller.state() for name, controller in self._controllers().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state.

        Raises:
            CheckpointError: it is of another estimator, or was saved under another contract.
        """
        for name, controller in self._controllers().items():
            saved = state.get(name)
            if (saved is None) != (controller is None):
                has, lacks = ("this run has", "the checkpoint") if saved is None else ("the checkpoint has", "this run")
                raise CheckpointError(f"{has} state of '{name}' and {lacks} has none: they are of different estimators")
            if controller is not None:
                controller.restore(saved)

    def _controllers(self) -> dict[str, Any]:
        return {"tether": self.tether, "evpo": self.evpo, "gae_lambda": self.adapting}


def contract_lambda(own: float | LengthLambda | AdaptiveLambda) -> float:
    """What a contract says of a lambda: itself in [0, 1]; 1 + alpha by length.

    -1 where it adapts, whose own controller has a contract too.
    """
    match own:
        case LengthLambda():
            return 1.0 + own.alpha
        case AdaptiveLambda():
            return -1.0
        case _:
            return own


def rho_of(controller: AnyTether | None, group: ScoredGroup) -> Rho:
    """The coefficient that credits the group, or one [T] per member by position; 0 without a controller."""
    if isinstance(controller, BucketedTetherController):
        return [controller.rho_T(torch.from_numpy(t.action_mask.copy())) for t in group.trajectories]
    return controller.rho if controller else 0.0


def measured_group(group: ScoredGroup) -> Measured:
    """What the group says of the critic's error and of the noise in returns."""
    predictions = group.predictions or ()
    values = [p.values[t.action_mask] for p, t in zip(predictions, group.trajectories, strict=True)]
    return measured(group.returns_K, values)


def observe(controller: AnyTether, group: ScoredGroup, credits: Sequence[TokenCredit]) -> None:
    """Give the group's (x, y) pairs to the Tether fit, one rollout at a time."""
    for trajectory, credit, baseline in zip(group.trajectories, credits, group.leave_one_out_K, strict=True):
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
    if credit.post_update_fit is not None and credit.post_update_fit.target.count:
        metrics["explained_variance_post_update"] = credit.post_update_fit.value()
    if credit.gae_lambda is not None:
        metrics["gae_lambda"] = credit.gae_lambda
    if crediting.tether is not None and credit.rho is not None:
        metrics |= {"rho": credit.rho, **_fit_metrics(crediting.tether)}
    if credit.evpo_uses_critic is not None:
        metrics["evpo_uses_critic"] = float(credit.evpo_uses_critic)
    return metrics


def _fit_metrics(controller: AnyTether) -> dict[str, float]:
    if isinstance(controller, BucketedTetherController):
        fits, skipped = controller.last_fits, sum(controller.skipped)
    else:
        fits, skipped = (controller.last_fit,), controller.skipped
    defined = [fit for fit in fits if fit is not None]
    return {"rho_fit": Mean(math.fsum(defined), len(defined)).value(), "rho_skipped": float(skipped)}


def _mean_on(column_T: torch.Tensor, trajectory: Trajectory) -> float:
    """Mean over action tokens, 0 without any."""
    chosen = column_T.numpy()[trajectory.action_mask]
    return float(chosen.mean()) if len(chosen) else 0.0


def _mean_rho(groups: Sequence[Sequence[CreditedTrajectory]]) -> float:
    members = [member for group in groups for member in group if member.rho is not None]
    tokens = [member.trajectory.action_tokens for member in members]
    total = math.fsum((member.rho or 0.0) * count for member, count in zip(members, tokens, strict=True))
    return Mean(total, sum(tokens)).value()


def _mean_lambda(credits: Sequence[TokenCredit]) -> float:
    return Mean(math.fsum(credit.gae_lambda for credit in credits), len(credits)).value()


def _least_members(estimator: Estimator) -> int:
    return 2 if estimator.type in USES_GROUP else 1


def _tether_controller(estimator: Estimator, batch_size: int) -> AnyTether | None:
    if not isinstance(estimator, Tether):
        return None
    gamma, own_lambda = discounting(estimator)
    lam = contract_lambda(own_lambda)
    make: Callable[..., AnyTether] = TetherController
    if estimator.horizon:
        make = partial(BucketedTetherController, buckets=tether_buckets(estimator.horizon))
    return make(
        batch_size=batch_size,
        gamma=gamma,
        gae_lambda=lam,
        ridge=estimator.ridge,
        decay=estimator.decay,
        clip=estimator.clip,
    )
