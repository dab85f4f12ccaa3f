"""The compact PNG of a run or a comparison: reward and explained variance over steps, and reward at the end."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from lecritique.analysis.bar_figures import bar_plot, endpoint_bars
from lecritique.analysis.curve_figures import curve_plot, metric_curves
from lecritique.analysis.figures import frame, legend, style
from lecritique.analysis.read import Comparison
from lecritique.analysis.wording import shortened


def picture(comparison: Comparison, png: Path) -> None:
    """Write the PNG."""
    base = comparison.base_reward
    explained = metric_curves(comparison, "explained_variance")
    plots = [curve_plot(metric_curves(comparison, "reward"), label="reward", base=base, name="reward", title="")]
    if explained:
        label = "explained variance of the critic"
        plots.append(curve_plot(explained, label=label, floor=True, zero=True, name="critic", title=""))
    plots.append(
        bar_plot(endpoint_bars(comparison, "reward"), label="reward, last steps", base=base, name="end", title="")
    )
    names = [shortened(arm, 30) for arm in comparison.arms]
    wide = 11.6 if explained else 8.4
    columns = max(1, min(len(names), int(11 * wide) // (max(map(len, names)) + 8)))
    rows = math.ceil(len(names) / columns)
    tall = max(4.05, 1.6 + 0.32 * len(names)) + 0.22 * rows
    with style():
        figure = Figure(figsize=(wide, tall), facecolor="white")
        axes = figure.subplots(1, len(plots), gridspec_kw={"wspace": 0.24})
        figure.subplots_adjust(left=0.05, right=0.985, top=1 - (0.84 + 0.22 * rows) / tall, bottom=0.54 / tall)
        for ax, plot in zip(axes, plots, strict=True):
            if plot.draw is not None:
                plot.draw(ax)
            else:
                frame(ax, "nothing yet")
        figure.text(0.156 / wide, 1 - 0.15 / tall, shortened(comparison.recipe, 60), size=14, weight="bold", va="top")
        at = (0.03 / wide, 1 - 0.38 / tall)
        legend(figure, list(enumerate(comparison.arms)), names, columns, at, "upper left")
        figure.savefig(png, format="png", dpi=160, metadata={"Software": "lecritique"})
