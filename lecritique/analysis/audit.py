"""Is what the critic is told admissible (LC eq. 5)? Structurally, and by what the baseline does to the gradient.

Structural: contexts and values are made again with another future of the same rollout, see `context_audit.py`.
Statistical: an admissible baseline b_t leaves the expected gradient as it is, so the paired difference of a
trajectory's gradients without and with it, D = sum_t b_t grad log p(token t), has mean zero over problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.context_audit import audit_contexts, audit_values
from lecritique.analysis.gradient_statistics import ALPHA, POWER, GradientSums, mean_is_zero
from lecritique.analysis.score_gradients import ProblemSums, ScoreGradients, cells_for
from lecritique.analysis.study_subject import Critic, Subject
from lecritique.config.schema import Context, EnvContext, ReferenceContext, RubricContext, SiblingsContext
from lecritique.core.errors import DataError
from lecritique.core.metrics import null_if_undefined
from lecritique.core.trajectory import Trajectory
from lecritique.credit.schedules import Group, group_contexts
from lecritique.critic.context import ContextBuilder, context_text

AUDIT_SCHEMA = 1
# Structural checks need no numbers: a few groups show a dependence that is there.
_STRUCTURAL_GROUPS = 8

Columns = Sequence[Sequence[NDArray[np.float64]]]


def audit(subject: Subject, *, problems: int) -> dict[str, Any]:
    """Audit every critic of the subject, and every kind of context that the task can supply.

    Args:
        subject: policy, critics and where rollouts come from.
        problems: rows that the statistical test is made over.

    Returns:
        a JSON object; `flagged` is whether anything was found.

    Raises:
        DataError: there is no critic or no rollout.
    """
    if not subject.critics:
        raise DataError("there is no critic to audit: the estimator uses none.")
    groups = subject.problems(problems)
    if not groups:
        raise DataError("no rollout has a reward: there is nothing to audit.")
    few = groups[:_STRUCTURAL_GROUPS]
    vocabulary = len(subject.parts.tokenizer)
    kinds = {
        label: audit_contexts(builder_contexts(builder), few, vocabulary=vocabulary).record()
        for label, builder in _builders(subject, few[0]).items()
    }
    critics = {name: _critic(subject, critic, groups, vocabulary) for name, critic in subject.critics.items()}
    flagged = any(kind["flagged"] for kind in kinds.values()) or any(each["flagged"] for each in critics.values())
    return {
        "schema": AUDIT_SCHEMA,
        "origin": subject.origin,
        "problems": len(groups),
        "rollouts": sum(len(group.trajectories) for group in groups),
        "level": ALPHA,
        "power": POWER,
        "contexts": kinds,
        "critics": critics,
        "flagged": flagged,
    }


def builder_contexts(builder: ContextBuilder) -> Any:
    """The contexts that a builder makes for a group."""
    return lambda group: group_contexts(builder, group)


def without_mean(columns: Columns, masks: Sequence[Sequence[NDArray[np.bool_]]]) -> list[list[NDArray[np.float64]]]:
    """Baselines less the mean over the action tokens of all other problems, [T] each.

    A number that the rollout has no part in is admissible whatever the baseline is, and takes most of the noise out of
    the test.
    """
    totals = np.array(
        [sum(float(c[m].sum()) for c, m in zip(*pair, strict=True)) for pair in zip(columns, masks, strict=True)]
    )
    counts = np.array([sum(int(m.sum()) for m in group) for group in masks])
    found = []
    for p, group in enumerate(columns):
        rest = counts.sum() - counts[p]
        centre = (totals.sum() - totals[p]) / rest if rest else 0.0
        found.append([column - centre for column in group])
    return found


def _critic(subject: Subject, critic: Critic, groups: Sequence[Group], vocabulary: int) -> dict[str, Any]:
    structural = audit_contexts(
        subject.contexts_of(critic), groups[:_STRUCTURAL_GROUPS], vocabulary=vocabulary
    ).record()
    causal = audit_values(
        lambda group: _values(critic, group), groups[:_STRUCTURAL_GROUPS], vocabulary=vocabulary
    ).record()
    statistical = _statistical(subject, critic, groups)
    return {
        "context": critic.config.critic.context.type,
        "contexts": structural,
        "values": causal,
        "gradients": statistical,
        "flagged": bool(structural["flagged"] or causal["flagged"] or statistical["flagged"]),
    }


def _values(critic: Critic, group: Group) -> list[NDArray[np.float64]] | None:
    scored = critic.scored([group])
    return [prediction.values for prediction in scored[0].predictions or ()] if scored else None


def _statistical(subject: Subject, critic: Critic, groups: Sequence[Group]) -> dict[str, Any]:
    """The test of the critic's values, and of two controls on the same rollouts: no baseline, and the outcome."""
    scored = critic.scored(groups)
    trajectories = [group.trajectories for group in scored]
    masks = [[t.action_mask for t in members] for members in trajectories]
    values = [[p.values for p in group.predictions or ()] for group in scored]
    returns = [[np.full(len(t), t.episode_return) for t in members] for members in trajectories]
    of_values, of_outcome = baseline_sums(
        subject, trajectories, [without_mean(values, masks), without_mean(returns, masks)]
    )
    test, control = mean_is_zero(of_values.gram), mean_is_zero(of_outcome.gram)
    # The sums are of D / (members of the group), so that problems count equally.
    members = np.square(of_outcome.trajectories)
    size = math.sqrt(float(of_outcome.norms_sq @ members) / float(of_outcome.trajectories.sum()))
    gradient = math.sqrt(max(control.mean_norm_sq, 0.0))
    return {
        "problems": test.problems,
        "difference_norm_sq": null_if_undefined(test.mean_norm_sq),
        "p_value": null_if_undefined(test.p_value),
        "detectable_norm": null_if_undefined(test.detectable_norm),
        "trajectory_gradient_norm": null_if_undefined(size),
        "policy_gradient_norm": null_if_undefined(gradient),
        "outcome_control_p_value": null_if_undefined(control.p_value),
        "flagged": test.flagged,
    }


def baseline_sums(
    subject: Subject, trajectories: Sequence[Sequence[Trajectory]], baselines: Sequence[Columns]
) -> list[GradientSums]:
    """What is kept of sum_t b_t grad log p(token t), of the mean over the trajectories of each problem."""
    temperature = subject.parts.config.sampling.temperature
    exact = ScoreGradients(subject.model, temperature=temperature)
    cells = cells_for(exact.parameters, problems=len(trajectories), weightings=len(baselines))
    gradients = ScoreGradients(subject.model, temperature=temperature, cells=cells)
    sums = ProblemSums(len(trajectories), len(baselines), gradients.width)
    for problem, members in enumerate(trajectories):
        for index, trajectory in enumerate(members):
            if trajectory.action_tokens:
                columns = [baseline[problem][index] / len(members) for baseline in baselines]
                sums.add(problem, gradients.weighted(trajectory, columns))
    return sums.sums()


def _builders(subject: Subject, group: Group) -> dict[str, ContextBuilder]:
    """A builder of every kind of context that the task has something for."""
    length = next(iter(subject.critics.values())).context.context_length
    candidates: dict[str, Context] = {"siblings": SiblingsContext(on_overflow="skip")}
    for placement in ("system_prefix", "user_suffix"):
        candidates |= {
            f"rubric, {placement}": RubricContext(placement=placement),
            f"env, {placement}": EnvContext(placement=placement),
            **{
                f"reference {content}, {placement}": ReferenceContext(content=content, placement=placement)
                for content in ("answer", "solution", "both")
            },
        }
    found = {}
    for label, context in candidates.items():
        try:
            if not isinstance(context, SiblingsContext):
                context_text(group.task, context)
        except DataError:
            continue
        found[label] = ContextBuilder(context, subject.parts.renderer, context_length=length)
    return found
