"""How training went: VP's training dynamics and its teacher, one small figure a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.curve_figures import Curve, curve_plot, metric_curves, without
from lecritique.analysis.figures import SMALL, Plot
from lecritique.analysis.read import Comparison, Run
from lecritique.analysis.saved_rollouts import read_rollouts
from lecritique.core.errors import DataError

# At most so many files of saved rollouts are read for a run's log-probs, evenly spaced.
_FILES_READ = 40
_LOGPROB_COLUMNS = ("step", "row", "attempt", "member", "segment_index", "action_mask", "sampler_logprobs")


@dataclass(frozen=True, kw_only=True)
class _Shown:
    metric: str
    title: str
    label: str
    caption: str


_POLICY = (
    _Shown(
        metric="response_tokens",
        title="Response length",
        label="action tokens of a rollout",
        caption="Mean over the step's valid rollouts.",
    ),
    _Shown(
        metric="truncated_fraction",
        title="Responses cut by a limit",
        label="share of rollouts",
        caption="Rollouts that a token limit ended.",
    ),
    _Shown(
        metric="dropped_fraction",
        title="Clip fraction",
        label="share of action tokens",
        caption="Tokens whose policy term was clipped (PPO) or dropped (DPPO).",
    ),
    _Shown(
        metric="policy_grad_norm",
        title="Gradient norm of the policy",
        label="norm before clipping",
        caption="Of the batch's last optimizer step.",
    ),
    _Shown(
        metric="update_gap_nats",
        title="How far a batch moves the policy",
        label="nats",
        caption="Largest change of a token's log-prob since the batch's first step.",
    ),
    _Shown(
        metric="sampler_gap_nats",
        title="Trainer against sampler",
        label="nats",
        caption="Largest difference of a token's log-prob between trainer and sampler.",
    ),
    _Shown(
        metric="advantage_std",
        title="Spread of the advantages",
        label="standard deviation, in reward",
        caption="Before modulation and whitening.",
    ),
    _Shown(
        metric="value_loss",
        title="Value loss",
        label="mean loss of the step's updates",
        caption="Arms with different value losses are not comparable.",
    ),
    _Shown(
        metric="value_clip_fraction",
        title="Clip fraction of the critic",
        label="share of action tokens",
        caption="Tokens whose clipped value loss was strictly the larger.",
    ),
)
_TEACHER = (
    _Shown(
        metric="fusion_strength",
        title="Fusion strength",
        label="change by the teacher",
        caption="Sum of the teacher's changes of the advantages over the sum of their sizes.",
    ),
    _Shown(
        metric="gate_open_fraction",
        title="Open gates",
        label="share of action tokens",
        caption="Tokens on which the fusion gate is open.",
    ),
    _Shown(
        metric="modulation_weight_mean",
        title="Modulation weight",
        label="factor on the advantage",
        caption="Mean over the advantages that are not 0.",
    ),
    _Shown(
        metric="teacher_gap_abs_nats",
        title="Size of the teacher gap",
        label="nats",
        caption="Mean of |teacher minus student log-prob| of the sampled tokens.",
    ),
    _Shown(
        metric="teacher_gap_mean_nats",
        title="Teacher gap",
        label="nats",
        caption="Mean of teacher minus student log-prob; minus it estimates KL(student, teacher) a token.",
    ),
    _Shown(
        metric="opsd_divergence",
        title="Distillation divergence",
        label="nats",
        caption="Mean divergence from the teacher over action tokens.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """Figures of metrics that moved, and the titles of those that never did, with their value."""

    plots: Sequence[Plot]
    still: Sequence[tuple[str, float]]


def policy_dynamics(comparison: Comparison, damaged: list[str]) -> Dynamics:
    """Length, log-prob, clipping, gradients and gaps over training; damaged files are left out and named."""
    found = _dynamics(comparison, _POLICY)
    surprise = _surprise(comparison, damaged)
    plots = list(found.plots)
    if surprise is not None:
        plots.insert(min(1, len(plots)), surprise)
    return Dynamics(plots=plots, still=found.still)


def teacher_dynamics(comparison: Comparison) -> Dynamics:
    """Fusion strength, gate and gaps of arms with a teacher; nothing where no arm has one."""
    return _dynamics(comparison, _TEACHER)


def _dynamics(comparison: Comparison, metrics: Sequence[_Shown]) -> Dynamics:
    plots, still = [], []
    for shown in metrics:
        curves = metric_curves(comparison, shown.metric)
        if not curves:
            continue
        values = np.concatenate([run.series(shown.metric) for run in comparison.runs.values()])
        known = values[np.isfinite(values)]
        if len(known) > 1 and known.min() == known.max():
            still.append((shown.title, float(known[0])))
            continue
        plots.append(_plot(comparison, shown, curves))
    return Dynamics(plots=plots, still=still)


def _plot(comparison: Comparison, shown: _Shown, curves: Sequence[Curve]) -> Plot:
    return curve_plot(
        curves,
        name=shown.metric.replace("_", "-"),
        title=shown.title,
        label=shown.label,
        caption=shown.caption + without(comparison, curves),
        absent="",
        size=SMALL,
    )


def _surprise(comparison: Comparison, damaged: list[str]) -> Plot | None:
    curves = metric_curves(comparison, lambda run: _mean_surprise(run, damaged))
    if not curves:
        return None
    return curve_plot(
        curves,
        name="sampled-surprise",
        title="Entropy, estimated",
        label="nats a token",
        caption="Mean of minus the log-prob of the sampled tokens in the saved rollouts: its expectation is the "
        "entropy of what was sampled from." + without(comparison, curves),
        absent="",
        dots=True,
        size=SMALL,
    )


def _mean_surprise(run: Run, damaged: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    files = run.rollout_files
    if not files:
        return None
    chosen = [files[i] for i in np.unique(np.linspace(0, len(files) - 1, _FILES_READ).round().astype(int))]
    points: dict[float, float] = {}
    for path in chosen:
        try:
            table = read_rollouts(path, _LOGPROB_COLUMNS)
        except DataError as error:
            damaged.append(f"Left out: {error}.")
            continue
        pairs = zip(table.per_token("sampler_logprobs"), table.per_token("action_mask"), strict=True)
        sampled = [column[mask == 1] for column, mask in pairs if column is not None and mask is not None]
        known = np.concatenate(sampled) if sampled else np.zeros(0)
        known = known[np.isfinite(known)]
        steps = table.scalars("step")
        if len(known) and np.isfinite(steps[:1]).any():
            points[float(steps[0])] = -float(known.mean())
    steps_and_means = sorted(points.items())
    if not steps_and_means:
        return None
    x, y = np.array(steps_and_means).T
    return x, y
