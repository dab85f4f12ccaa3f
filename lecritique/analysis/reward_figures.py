"""Reward by arm: while training, at the end, on evaluation problems, and over what the steps cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.bar_figures import bar_plot, difference_bars, endpoint_bars
from lecritique.analysis.curve_figures import XAxis, curve_plot, metric_curves, smoothing_width, without
from lecritique.analysis.figures import SMALL, Plot, beside_bars
from lecritique.analysis.read import Comparison, Run
from lecritique.analysis.wording import shortened

Floats = NDArray[np.float64]


def reward_plots(comparison: Comparison, reference: str) -> list[Plot]:
    """Reward while training and at the end, evaluation, and differences from the reference arm."""
    base = comparison.base_reward
    line = " The dashed line is the policy before training." if base is not None else ""
    found = [
        curve_plot(
            metric_curves(comparison, "reward"),
            name="reward-curve",
            title="Reward while training",
            label="mean reward of the batch",
            caption="LC's reward panel: training reward by arm over policy steps. " + _seeds(comparison) + line,
            absent="No step has recorded a reward yet.",
            base=base,
            size=beside_bars(len(comparison.arms)),
        ),
        bar_plot(
            endpoint_bars(comparison, "reward"),
            name="reward-bars",
            title="Reward at the end",
            label="mean reward of the last steps",
            caption="Bars start at zero. The bracket is a 95% interval, each dot one seed"
            + (", the dashed line the policy before training." if base is not None else "."),
            absent="No run has an endpoint yet.",
            base=base,
        ),
    ]
    evaluated = metric_curves(comparison, "evaluation_score")
    if evaluated:
        found.append(
            curve_plot(
                evaluated,
                name="evaluation-curve",
                title="Score on evaluation problems",
                label="avg@K, sets weighted equally",
                caption="Validation while training, at the steps that evaluate; K samples of each problem with the "
                "evaluation's own sampling settings." + without(comparison, evaluated),
                absent="",
                dots=True,
            )
        )
    differences = difference_bars(comparison, "reward", reference)
    if differences:
        found.append(
            bar_plot(
                differences,
                name="reward-differences",
                title=f"Reward against {shortened(reference, 30)}",
                label="paired difference of the last steps",
                caption=f"Each arm minus {shortened(reference, 30)} over the seeds they share: the point is the mean, "
                "the bracket its 95% interval, each dot one seed.",
                absent="",
                differences=True,
            )
        )
    return found


def budget_plots(comparison: Comparison) -> list[Plot]:
    """Reward over rollouts, generated tokens, FLOPs and seconds; of each only where it was recorded."""
    axes = {
        "rollouts": XAxis(label="rollouts", of=_rollouts),
        "tokens": XAxis(label="generated tokens", of=_tokens),
        "flops": XAxis(label="estimated FLOPs", of=lambda run: _recorded(run, "flops_total")),
        "seconds": _seconds_axis(comparison),
    }
    captions = {
        "rollouts": "All rollouts of a step count, failed ones and those that dynamic sampling replaced too.",
        "tokens": "Sampled tokens, environment turns and prompts apart.",
        "flops": "Arithmetic of all roles, estimated from model sizes and sequence lengths.",
        "seconds": "Wall time of the steps, as measured on this machine with whatever else it was doing.",
    }
    titles = {"rollouts": "rollouts", "tokens": "generated tokens", "flops": "arithmetic", "seconds": "time"}
    found = []
    for name, axis in axes.items():
        curves = metric_curves(comparison, "reward", axis)
        if curves:
            found.append(
                curve_plot(
                    curves,
                    name=f"reward-by-{name}",
                    title=f"Reward by {titles[name]}",
                    label="mean reward of the batch",
                    caption=captions[name] + without(comparison, curves),
                    absent="",
                    x_label=axis.label,
                    base=comparison.base_reward,
                    size=SMALL,
                    whole_x=False,
                )
            )
    return found


def _seeds(comparison: Comparison) -> str:
    width = smoothing_width(comparison)
    if len(comparison.seeds) == 1:
        said = "One seed: there is no band, because nothing shows how far another seed would differ."
    elif len(comparison.arms) > 5:
        said = "The line is the mean over seeds, the band spans them."
    else:
        said = "The heavy line is the mean over seeds, thin lines are single seeds, the band spans them."
    return said if width == 1 else f"{said} Curves are centred averages over {width} steps."


def _recorded(run: Run, metric: str) -> Floats | None:
    series = run.series(metric)
    return series if len(series) and np.isfinite(series).all() else None


def _rollouts(run: Run) -> Floats | None:
    found = _recorded(run, "rollouts_total")
    return found if found is not None else _summed(run.series("rollouts"))


def _tokens(run: Run) -> Floats | None:
    found = _recorded(run, "generated_tokens_total")
    if found is not None:
        return found
    valid = run.series("rollouts") - np.nan_to_num(run.series("rollouts_failed"))
    return _summed(valid * run.series("response_tokens"))


def _seconds(run: Run) -> Floats | None:
    found = _recorded(run, "seconds_total")
    return found if found is not None else _summed(run.series("seconds"))


def _seconds_axis(comparison: Comparison) -> XAxis:
    longest = 0.0
    for run in comparison.runs.values():
        spent = _seconds(run)
        longest = max(longest, 0.0 if spent is None else float(spent[-1]))
    for unit, seconds in (("hours", 3600.0), ("minutes", 60.0)):
        if longest > 3 * seconds:
            return XAxis(label=unit, of=_scaled(_seconds, seconds))
    return XAxis(label="seconds", of=_seconds)


def _scaled(of: Callable[[Run], Floats | None], by: float) -> Callable[[Run], Floats | None]:
    def scaled(run: Run) -> Floats | None:
        found = of(run)
        return None if found is None else found / by

    return scaled


def _summed(series: Floats) -> Floats | None:
    """Running sum [N], steps without a number adding nothing; None where none has one."""
    return np.nancumsum(series) if np.isfinite(series).any() else None
