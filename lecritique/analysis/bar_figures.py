"""Bars of endpoints with their intervals and seeds, and differences from a reference arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lecritique.analysis.arm_style import arm_colour, arm_hatch
from lecritique.analysis.bootstrap import Interval
from lecritique.analysis.figures import (
    INK,
    MUTED,
    PANEL,
    SIZE,
    Axes,
    Plot,
    Row,
    bars_height,
    base_line,
    finite,
    frame,
    number_ticks,
)
from lecritique.analysis.read import Comparison
from lecritique.analysis.summary import arm_endpoint, endpoint, paired_endpoint
from lecritique.analysis.wording import number, shortened, signed


@dataclass(frozen=True, kw_only=True)
class Bar:
    """An arm's estimate with its interval, and the numbers of single seeds."""

    arm: str
    index: int
    found: Interval
    seeds: Mapping[int, float]
    series: str = ""


def endpoint_bars(comparison: Comparison, metric: str) -> list[Bar]:
    """A bar of each arm; its estimate is NaN where no run has an endpoint. Empty when no arm has one."""
    bars = []
    for index, arm in enumerate(comparison.arms):
        seeds = {}
        for run in comparison.runs_of(arm):
            end = None if run is None else endpoint(run.series(metric))
            if run is not None and end is not None:
                seeds[run.seed] = end
        bars.append(Bar(arm=arm, index=index, found=arm_endpoint(comparison, metric, arm), seeds=seeds))
    return bars if any(math.isfinite(bar.found.estimate) for bar in bars) else []


def difference_bars(comparison: Comparison, metric: str, reference: str) -> list[Bar]:
    """The paired difference of each other arm from `reference`; empty when there is none."""
    ends = {bar.arm: bar for bar in endpoint_bars(comparison, metric)}
    if reference not in ends:
        return []
    against, bars = ends[reference].seeds, []
    for arm, bar in ends.items():
        if arm != reference:
            seeds = {seed: value - against[seed] for seed, value in bar.seeds.items() if seed in against}
            found = paired_endpoint(comparison, metric, arm, reference)
            bars.append(Bar(arm=arm, index=bar.index, found=found, seeds=seeds))
    return bars if any(math.isfinite(bar.found.estimate) for bar in bars) else []


def bar_plot(
    bars: Sequence[Bar],
    *,
    name: str,
    title: str,
    label: str,
    caption: str = "",
    absent: str = "",
    base: float | None = None,
    differences: bool = False,
) -> Plot:
    """The figure of some bars: each from zero, its arm's name over it.

    Args:
        bars: of which there may be none.
        name: of the figure and its file.
        title: over it.
        label: of the numbers.
        caption: under it.
        absent: said instead when there is no bar.
        base: where the policy before training stands.
        differences: whether numbers have a sign and points stand for bars.
    """
    return Plot(
        name=name,
        title=title,
        caption=caption,
        absent=absent,
        draw=(lambda ax: _draw(ax, bars, label, base, differences)) if bars else None,
        rows=_rows(bars),
        size=(SIZE[0], bars_height(len(bars))),
        x_label=label,
    )


def _draw(ax: Axes, bars: Sequence[Bar], label: str, base: float | None, differences: bool) -> None:
    """The name stands over its bar, so long names cost no width."""
    ends: list[tuple[Interval, float]] = []
    left = ax.get_yaxis_transform()
    for place, bar in enumerate(bars):
        y, found = -place, bar.found
        said = shortened(bar.arm, 40) + (f" · {bar.series}" if bar.series else "")
        ax.text(0.0, y + 0.24, said, transform=left, ha="left", va="bottom", size=9)
        if not np.isfinite(found.estimate):
            ax.text(0.0, y, "undefined", transform=left, va="center", color=MUTED, size=9)
            continue
        if differences:
            ax.plot(found.estimate, y, "o", color=arm_colour(bar.index), markersize=7, zorder=3)
        else:
            _bar(ax, y, found.estimate, bar.index)
        known = list(bar.seeds.values())
        _draw_interval(ax, y, found)
        if len(known) > 1:
            ax.plot(known, [y - 0.13] * len(known), "o", markersize=3, color=INK, alpha=0.55, markeredgewidth=0)
        ends.append((found, max([found.estimate, *known, *finite([found.high])])))
        shown = signed(found.estimate) if differences else number(found.estimate)
        at = ends[-1][1] if differences else max(ends[-1][1], 0)
        ax.annotate(shown, (at, y), xytext=(6, 0), textcoords="offset points", va="center", size=9)
    frame(ax, label, grid="x")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_ylim(-len(bars) + 0.45, 0.78)
    highest = max([end for _, end in ends] + [base or 0.0, 1e-3])
    seeds = [value for bar in bars for value in bar.seeds.values()] if differences else []
    lowest = min([min(f.estimate, *finite([f.low]), 0.0) for f, _ in ends] + seeds + [base or 0.0, 0.0])
    ax.set_xlim(lowest * 1.1, highest + 0.17 * (highest - lowest))
    number_ticks(ax, y=False)
    if base is not None:
        base_line(ax.axvline, base)
    if lowest < 0 or differences:
        ax.axvline(0, color=MUTED, linewidth=0.8)


def _bar(ax: Axes, y: float, length: float, index: int) -> None:
    """A bar in the arm's colour; its hatch, where it has one, in the colour of what the page has behind figures."""
    look = {"facecolor": arm_colour(index), "edgecolor": PANEL, "hatch": arm_hatch(index)}
    ax.barh(y, length, height=0.38, alpha=0.85, linewidth=0, **look)


def _draw_interval(ax: Axes, y: float, found: Interval) -> None:
    if np.isfinite(found.low) and np.isfinite(found.high):
        ax.plot([found.low, found.high], [y, y], color=INK, linewidth=1.4, solid_capstyle="butt")
        ax.plot([found.low, found.high], [y, y], "|", color=INK, markersize=6, markeredgewidth=1.4)


def _rows(bars: Sequence[Bar]) -> list[Row]:
    rows = []
    for bar in bars:
        rows += [Row(arm=bar.arm, series=bar.series, seed=seed, x="", y=y) for seed, y in bar.seeds.items()]
        found = bar.found
        rows.append(Row(arm=bar.arm, series=bar.series, x="", y=found.estimate, low=found.low, high=found.high))
    return rows
