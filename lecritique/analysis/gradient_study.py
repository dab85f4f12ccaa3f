"""How much variance each estimator leaves in the policy gradient, on one set of trajectories.

The policy stays as it is; every estimator turns the same trajectories into advantages, and each trajectory's gradient
g = sum_t A_t grad log p(token t) is made under all of them. What is compared is the trace of the covariance of g,
relative to no baseline (A = R) and to each other on the same resamples of problems.

What "no baseline" is depends on where the rewards have their zero: with rewards of 0 and 1 a failure has no gradient
at all, with the same rewards written as -1/2 and +1/2 it has as much as a success. Baselines do not depend on it. So
A = R stands beside A = R - m with m the middle of the task's reward range, which is what frameworks with rewards of -1
and +1 do without a baseline, up to scale.

Shapes: P problems, R replicates, E estimators, T tokens of a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.analysis.gradient_statistics import GradientSums, ratio_interval
from lecritique.analysis.score_gradients import ProblemSums, ScoreGradients, cells_for
from lecritique.analysis.score_norms import study_score_norms
from lecritique.analysis.study_subject import Critic, Subject, is_clean
from lecritique.analysis.value_statistics import Resampling
from lecritique.analysis.variance_ratios import NONE, NONE_CENTRED, contrasts, record, traces_of, variance_ratios
from lecritique.config.estimators import Discounting, Estimator, Evpo, GroupMean, LeaveOneOut, Tether, Value
from lecritique.core.errors import DataError
from lecritique.credit.crediting import value_fit_of
from lecritique.credit.estimators import ScoredGroup, TokenCredit, advantages_of, token_credits
from lecritique.numerics.evpo import evpo_uses_critic
from lecritique.numerics.statistics.bootstrap import REPLICATES
from lecritique.numerics.tether import TetherSums, score_norm_optimum, tether_fit, tether_pairs, tether_sums

GRADIENTS_SCHEMA = 3
# All that is compared, critics apart: baselines of rewards alone, and mixtures of these with a critic.
_WITHOUT_CRITIC = (NONE, NONE_CENTRED, "mean", "leave_one_out")
_MIXTURES = ("tether", "evpo")
# Tokens of a trajectory whose score norms are measured, drawn evenly: each costs a backward pass.
_SCORED_TOKENS = 4
_RNG_SEED = 2016

Columns = list[NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class TetherPairs:
    """x_t = V_t - B and y_t = Q_t - B of the action tokens of one trajectory, and the problem that it is of."""

    problem: int
    x_N: NDArray[np.float64]
    y_N: NDArray[np.float64]


def study_gradients(subject: Subject, *, problems: int, replicates: int = REPLICATES) -> dict[str, Any]:
    """Compare the estimators on fresh rollouts of the subject's policy.

    Args:
        subject: policy, critics and where rollouts come from.
        problems: rows, one group of rollouts each.
        replicates: of the bootstrap over problems.

    Returns:
        a JSON object; what is undefined is null.

    Raises:
        DataError: fewer than two problems have two rollouts with a reward.
    """
    groups = [group for group in subject.problems(problems) if len(group.trajectories) > 1]
    scored = {name: {g.group_id: g for g in critic.scored(groups)} for name, critic in subject.critics.items()}
    kept = [group for group in groups if all(group.group_id in of for of in scored.values())]
    if len(kept) < 2:
        raise DataError(f"a gradient study needs two problems with two rollouts each, got {len(kept)}.")
    plain = [ScoredGroup(group_id=g.group_id, trajectories=g.trajectories, predictions=None) for g in kept]
    by_critic = {name: [of[g.group_id] for g in kept] for name, of in scored.items()}
    middle = sum(subject.parts.environment.reward_range) / 2.0
    estimators, tether = _advantages(subject, plain, by_critic, middle=middle)
    gradients = _gradients_of(subject, problems=len(plain), weightings=len(estimators))
    sums = gradient_sums(gradients, plain, estimators)
    draws = Resampling(len(plain), replicates=replicates)
    traces = traces_of(sums, draws)
    return {
        "schema": GRADIENTS_SCHEMA,
        "origin": subject.origin,
        "problems": len(plain),
        "rollouts": sum(len(group.trajectories) for group in plain),
        "parameters": gradients.parameters,
        "numbers_kept": gradients.width,
        "relative_error_of_a_norm": gradients.relative_error,
        "replicates": replicates,
        "reward_middle": middle,
        "critics": [name for name in estimators if name not in (*_WITHOUT_CRITIC, *_MIXTURES)],
        "estimators": variance_ratios(traces),
        "contrasts": contrasts(traces),
        "score_norms": study_score_norms(gradients, plain, draws, middle=middle),
        "tether": None if tether is None else _rhos(subject, plain, tether, draws),
    }


def gradient_sums(
    gradients: ScoreGradients, groups: Sequence[ScoredGroup], estimators: dict[str, list[Columns]]
) -> dict[str, GradientSums]:
    """What is kept of each estimator's gradients.

    Args:
        gradients: of the policy.
        groups: P groups, one a problem.
        estimators: advantages by name, for each group one column [T] a member.
    """
    sums = ProblemSums(len(groups), len(estimators), gradients.width)
    for problem, group in enumerate(groups):
        for index, trajectory in enumerate(group.trajectories):
            if trajectory.action_tokens:
                sums.add(problem, gradients.weighted(trajectory, [c[problem][index] for c in estimators.values()]))
    return dict(zip(estimators, sums.sums(), strict=True))


def _advantages(
    subject: Subject, plain: list[ScoredGroup], by_critic: dict[str, list[ScoredGroup]], *, middle: float
) -> tuple[dict[str, list[Columns]], list[TetherPairs] | None]:
    """Advantages under every estimator that the critics at hand allow, and what Tether's fit sees."""
    found: dict[str, list[Columns]] = {
        NONE: [less_constant(g, 0.0) for g in plain],
        NONE_CENTRED: [less_constant(g, middle) for g in plain],
        "mean": [advantages_of(g, [], GroupMean(), rho=0.0, use_critic=False) for g in plain],
        "leave_one_out": [advantages_of(g, [], LeaveOneOut(), rho=0.0, use_critic=False) for g in plain],
    }
    credits = {}
    for name, scored in by_critic.items():
        value = _value_of(subject.critics[name].config.estimator)
        credits[name] = _by_group(scored, value)
        label = name if name not in (*found, *_MIXTURES) else f"critic of {name}"
        found[label] = [
            advantages_of(g, c, value, rho=0.0, use_critic=True) for g, c in zip(scored, credits[name], strict=True)
        ]
    tethered = _tethered(subject)
    if tethered is None:
        return found, None
    scored, own = by_critic[tethered], credits[tethered]
    pairs = tether_pairs_of(scored, own)
    halves = [_fit(pairs, lambda p, half=half: p % 2 != half) for half in (0, 1)]
    found["tether"] = [
        advantages_of(g, c, Tether(), rho=halves[p % 2], use_critic=True)
        for p, (g, c) in enumerate(zip(scored, own, strict=True))
    ]
    use_critic = evpo_uses_critic(value_fit_of(scored, [credit for group in own for credit in group]).value())
    found["evpo"] = [
        advantages_of(g, c, Evpo(), rho=0.0, use_critic=use_critic) for g, c in zip(scored, own, strict=True)
    ]
    return found, pairs


def less_constant(group: ScoredGroup, constant: float) -> Columns:
    """Advantages of a baseline that is the same everywhere, one column [T] a member; 0 off the action mask.

        A_t = R - b

    b = 0 is no baseline. b = (lowest + highest reward) / 2 is no baseline either, for rewards that are centred:
    R - 1/2 is -1/2 and +1/2 where R is 0 and 1. With s the sum of the scores, E s = 0 leaves the expected gradient as
    it is and

        E|(R - b) s|^2 = E[R^2 |s|^2] - 2 b E[R |s|^2] + b^2 E|s|^2

    Args:
        group: its trajectories' returns in reward units.
        constant: b, reward units.

    Source: Greensmith et al. 2004; method sheet section 5.
    """
    return [np.where(t.action_mask, t.episode_return - constant, 0.0) for t in group.trajectories]


def tether_pairs_of(groups: Sequence[ScoredGroup], credits: Sequence[Sequence[TokenCredit]]) -> list[TetherPairs]:
    """What Tether's fit sees of every member, group by group."""
    found = []
    for problem, (group, of_group) in enumerate(zip(groups, credits, strict=True)):
        for trajectory, credit, baseline in zip(group.trajectories, of_group, group.leave_one_out_K, strict=True):
            x, y = tether_pairs(
                torch.from_numpy(np.array(credit.advantages_T)),
                torch.from_numpy(np.array(credit.values_T)),
                baseline,
                torch.from_numpy(np.array(trajectory.action_mask)),
            )
            found.append(TetherPairs(problem=problem, x_N=x.numpy(), y_N=y.numpy()))
    return found


def _fit(pairs: Sequence[TetherPairs], chosen: Any) -> float:
    """Tether's coefficient, clipped, fitted on some of the problems; 0 where it is undefined."""
    sums = TetherSums()
    for each in pairs:
        if chosen(each.problem):
            sums = sums.merge(tether_sums(torch.from_numpy(each.x_N), torch.from_numpy(each.y_N)))
    return min(max(tether_fit(sums) or 0.0, 0.0), 1.0)


def _rhos(
    subject: Subject, groups: Sequence[ScoredGroup], pairs: Sequence[TetherPairs], draws: Resampling
) -> dict[str, Any]:
    """Tether's rho beside the optimum that weighs tokens by their score norm, both unclipped, on the same tokens."""
    gradients = _gradients_of(subject, problems=1, weightings=1)
    rng = np.random.default_rng(_RNG_SEED)
    members = [trajectory for group in groups for trajectory in group.trajectories]
    x, y, norms, shares, problem = [], [], [], [], []
    for trajectory, each in zip(members, pairs, strict=True):
        N = trajectory.action_tokens
        chosen = np.sort(rng.choice(N, size=min(N, _SCORED_TOKENS), replace=False))
        if len(chosen):
            norms.append(gradients.token_norms_sq(trajectory, chosen.tolist()))
            x.append(each.x_N[chosen])
            y.append(each.y_N[chosen])
            shares.append(np.full(len(chosen), N / len(chosen)))
            problem.append(np.full(len(chosen), each.problem))
    columns = [np.concatenate(column) for column in (x, y, norms, shares, problem)]
    return {
        "critic": _tethered(subject),
        "cross_fitted": [_fit(pairs, lambda p, half=half: p % 2 != half) for half in (0, 1)],
        **rho_intervals(*columns[:4], problem_N=columns[4].astype(np.int64), draws=draws),
        "tokens": len(columns[0]),
    }


def rho_intervals(
    x_N: NDArray[np.float64],
    y_N: NDArray[np.float64],
    score_norm_sq_N: NDArray[np.float64],
    shares_N: NDArray[np.float64],
    *,
    problem_N: NDArray[np.int64],
    draws: Resampling,
) -> dict[str, Any]:
    """Tether's rho and the score-norm-weighted optimum, with intervals; each token stands for `shares` tokens."""
    found = {}
    for name, weights in (("rho", shares_N), ("score_norm_optimum", shares_N * score_norm_sq_N)):
        best = score_norm_optimum(torch.from_numpy(x_N), torch.from_numpy(y_N), torch.from_numpy(weights))
        sums = [
            np.bincount(problem_N, weights=weights * column, minlength=draws.problems) for column in (x_N * y_N, x_N**2)
        ]
        above, below = (draws.counts_RC @ column for column in sums)
        estimate = math.nan if best is None else best
        found[name] = record(ratio_interval(above, below, estimate=estimate, units=draws.problems))
    return found


def _gradients_of(subject: Subject, *, problems: int, weightings: int) -> ScoreGradients:
    temperature = subject.parts.config.sampling.temperature
    exact = ScoreGradients(subject.model, temperature=temperature)
    cells = cells_for(exact.parameters, problems=problems, weightings=weightings)
    return exact if cells is None else ScoreGradients(subject.model, temperature=temperature, cells=cells)


def _by_group(scored: Sequence[ScoredGroup], value: Value) -> list[list[TokenCredit]]:
    flat = iter(token_credits(scored, value, value_target_lambda=1.0))
    return [[next(flat) for _ in group.trajectories] for group in scored]


def _value_of(estimator: Estimator) -> Value:
    """The critic's own estimator with the discounting of the arm that it is from."""
    if isinstance(estimator, Value):
        return estimator
    if isinstance(estimator, Discounting):
        return Value(gamma=estimator.gamma, gae_lambda=estimator.gae_lambda)
    return Value()


def _tethered(subject: Subject) -> str | None:
    """The critic that Tether and EVPO use: the first clean one, else the first."""
    critics: list[Critic] = list(subject.critics.values())
    return next((critic.name for critic in critics if is_clean(critic)), critics[0].name if critics else None)
