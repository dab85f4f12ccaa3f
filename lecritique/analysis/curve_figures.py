"""Curves of a metric by arm, over steps or over what the steps cost, with every seed and the band that spans them.

N points of a curve, S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.arm_style import arm_colour, arm_dash, arm_marker
from lecritique.analysis.bootstrap import finite_mean
from lecritique.analysis.figures import MUTED, PANEL, SIZE, Axes, Plot, Row, base_line, frame, limit_y, number_ticks
from lecritique.analysis.read import Comparison, Run
from lecritique.analysis.wording import shortened

Floats = NDArray[np.float64]
# A curve is drawn with at most so many points; its CSV has all.
_POINTS_DRAWN = 240
# With more arms than this the single seeds would hide the means; the bands still span them.
_ARMS_WITH_SEEDS = 5
_NAMED_ABSENT = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedCurve:
    """One run's curve: x, y [N] as drawn and `raw` [N] before smoothing."""

    seed: int | None
    x: Floats
    y: Floats
    raw: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """An arm's curve: the mean over seeds [N] with `low` and `high` over them, and each seed.

    `series` tells curves of one arm apart; a `light` one is the thinner.
    """

    arm: str
    index: int
    x: Floats
    y: Floats
    low: Floats
    high: Floats
    raw: Floats
    seeds: Sequence[SeedCurve] = ()
    series: str = ""
    light: bool = False


@dataclass(frozen=True, kw_only=True)
class XAxis:
    """What a curve runs over: its label, and its value at every step of a run [N], None where that is not recorded."""

    label: str
    of: Callable[[Run], Floats | None]
    by_step: bool = False


STEPS = XAxis(label="policy step", of=lambda run: run.steps.astype(np.float64), by_step=True)


def metric_curves(
    comparison: Comparison,
    metric: str | Callable[[Run], tuple[Floats, Floats] | None],
    axis: XAxis = STEPS,
    *,
    series: str = "",
    light: bool = False,
) -> list[Curve]:
    """A curve of each arm that has a finite value, smoothed where most steps have one.

    Args:
        comparison: its runs.
        metric: the name of a metric, or what gives steps and values [N] of a run, None where it has none.
        axis: by steps the mean is over the seeds that have the step; otherwise over seeds at the same place, by linear
            interpolation, as far as all of them came.
        series: of all curves.
        light: whether they are the thinner ones.
    """
    width = smoothing_width(comparison)
    found = []
    for index, arm in enumerate(comparison.arms):
        seeds = [
            curve
            for run in comparison.runs_of(arm)
            if run is not None and (curve := _seed_curve(run, metric, axis, width)) is not None
        ]
        if seeds:
            found.append(_over_seeds(arm, index, seeds, by_step=axis.by_step, series=series, light=light))
    return found


def curve_plot(
    curves: Sequence[Curve],
    *,
    name: str,
    title: str,
    label: str,
    caption: str = "",
    absent: str = "",
    x_label: str = STEPS.label,
    base: float | None = None,
    floor: bool = False,
    zero: bool = False,
    dots: bool = False,
    size: tuple[float, float] = SIZE,
    places: bool = False,
    whole_x: bool = True,
) -> Plot:
    """The figure of some curves.

    Args:
        curves: of which there may be none.
        name: of the figure and its file.
        title: over it.
        label: of the y axis.
        caption: under it.
        absent: said instead when there is no curve.
        x_label: of the x axis.
        base: where the policy before training stands.
        floor: whether what lies far below zero may run off the lower edge.
        zero: whether zero is drawn.
        dots: whether points are marked, as of few bins.
        size: in inches.
        places: whether x is a place in the response, from 0 to 1.
        whole_x: whether ticks of x are whole numbers.
    """

    def draw(ax: Axes) -> None:
        _draw(ax, curves, dots=dots)
        frame(ax, label)
        ax.set_xlabel(x_label)
        if places:
            ax.set_xlim(0, 1)
        else:
            _limit_x(ax, curves, dots=dots)
        number_ticks(ax, x=not places, whole_x=whole_x)
        if places:
            ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["start", "25%", "50%", "75%", "end"])
        values = [v for c in curves for v in (c.y, c.low, c.high, *(s.y for s in c.seeds))]
        limit_y(ax, np.concatenate(values), base, floor=floor)
        if zero:
            ax.axhline(0, color=MUTED, linewidth=0.8)
        if base is not None:
            _draw_base(ax, base)

    return Plot(
        name=name,
        title=title,
        caption=caption,
        absent=absent,
        draw=draw if curves else None,
        rows=_rows(curves),
        arms=tuple(dict.fromkeys((c.index, c.arm) for c in curves)),
        size=size,
        x_label=x_label,
        y_label=label,
    )


def without(comparison: Comparison, curves: Iterable[Curve]) -> str:
    """A sentence that names the arms without a curve; empty when all have one, or none."""
    drawn = {curve.arm for curve in curves}
    lacking = [arm for arm in comparison.arms if arm not in drawn]
    if not lacking or not drawn:
        return ""
    named = ", ".join(shortened(arm, 24) for arm in lacking[:_NAMED_ABSENT])
    more = f" and {len(lacking) - _NAMED_ABSENT} more" if len(lacking) > _NAMED_ABSENT else ""
    return f" Not recorded by {named}{more}."


def smoothed(values: Floats, width: int) -> Floats:
    """Centred moving average [N] over the finite values among `width` (odd) steps, NaN where there are none."""
    half = width // 2
    padded = np.pad(values, half, constant_values=np.nan)
    return finite_mean(np.lib.stride_tricks.sliding_window_view(padded, width)) if len(values) else values


def smoothing_width(comparison: Comparison) -> int:
    """Odd number of steps that curves are averaged over: about a twentieth of the longest run."""
    longest = max((len(run.steps) for run in comparison.runs.values()), default=0)
    return 2 * (longest // 40) + 1


def plain_curve(
    arm: str,
    index: int,
    x: Floats,
    y: Floats,
) -> Curve:
    """A curve of points [N] as they are, without seeds or a band."""
    none = np.full(len(x), np.nan)
    return Curve(arm=arm, index=index, x=x, y=y, low=none, high=none, raw=none)


def _seed_curve(
    run: Run, metric: str | Callable[[Run], tuple[Floats, Floats] | None], axis: XAxis, width: int
) -> SeedCurve | None:
    if isinstance(metric, str):
        x, raw = axis.of(run), run.series(metric)
    else:
        x, raw = metric(run) or (None, np.zeros(0))
    known = np.isfinite(raw)
    if x is None or not known.any():
        return None
    if 2 * known.sum() < len(raw) or not isinstance(metric, str):  # measured now and then: joined as it is
        return SeedCurve(seed=run.seed, x=x[known], y=raw[known], raw=np.full(int(known.sum()), np.nan))
    even = np.full(len(raw), np.nan) if width == 1 else raw
    return SeedCurve(seed=run.seed, x=x, y=smoothed(raw, width), raw=even)


def _over_seeds(arm: str, index: int, seeds: Sequence[SeedCurve], *, by_step: bool, series: str, light: bool) -> Curve:
    counts = {len(seed.x) for seed in seeds}
    if by_step and len(counts) == 1 and not any(np.isin(seeds[0].x, seed.x).any() for seed in seeds[1:]):
        # Runs of a budget end, and are measured, at steps of their own: the i-th measurements belong together.
        x = np.mean([seed.x for seed in seeds], axis=0)
        y_SN, raw_SN = np.stack([seed.y for seed in seeds]), np.stack([seed.raw for seed in seeds])
    elif by_step:
        x = np.unique(np.concatenate([seed.x for seed in seeds]))
        y_SN, raw_SN = np.full((2, len(seeds), len(x)), np.nan)
        for row, seed in enumerate(seeds):
            places = np.searchsorted(x, seed.x)
            y_SN[row, places], raw_SN[row, places] = seed.y, seed.raw
    else:
        first, last = max(seed.x[0] for seed in seeds), min(seed.x[-1] for seed in seeds)
        x = np.linspace(first, max(first, last), max(len(seed.x) for seed in seeds))
        y_SN = np.stack([_interpolated(x, seed.x, seed.y) for seed in seeds])
        raw_SN = np.full_like(y_SN, np.nan)
    low, high = _extent(y_SN) if len(seeds) > 1 else np.full((2, len(x)), np.nan)
    return Curve(
        arm=arm, index=index, x=x, y=finite_mean(y_SN, axis=0), low=low, high=high,
        raw=finite_mean(raw_SN, axis=0), seeds=seeds, series=series, light=light,
    )  # fmt: skip


def _interpolated(x: Floats, at: Floats, y: Floats) -> Floats:
    known = np.isfinite(y) & np.isfinite(at)
    return np.interp(x, at[known], y[known], left=math.nan, right=math.nan) if known.any() else np.full(len(x), np.nan)


def _extent(y_SN: Floats) -> tuple[Floats, Floats]:
    low = np.where(np.isfinite(y_SN), y_SN, np.inf).min(axis=0)
    high = np.where(np.isfinite(y_SN), y_SN, -np.inf).max(axis=0)
    return np.where(np.isfinite(low), low, np.nan), np.where(np.isfinite(high), high, np.nan)


def _draw(ax: Axes, curves: Sequence[Curve], *, dots: bool) -> None:
    arms = len({curve.index for curve in curves})
    for curve in curves:
        colour, dash = arm_colour(curve.index), arm_dash(curve.index)
        if np.isfinite(curve.low).any() and not curve.light:
            x, low, high = _thinned(curve.x, curve.low, curve.high)
            ax.fill_between(x, low, high, color=colour, alpha=0.16 if arms <= _ARMS_WITH_SEEDS else 0.07, linewidth=0)
        if len(curve.seeds) > 1 and arms <= _ARMS_WITH_SEEDS and not curve.light:
            for seed in curve.seeds:
                ax.plot(*_thinned(seed.x, seed.y), color=colour, linewidth=0.7, alpha=0.45)
        x, y = _thinned(curve.x, curve.y)
        few = dots or np.isfinite(curve.y).sum() < 2
        look: dict[str, Any] = {"linewidth": 2.0, "linestyle": dash, "solid_capstyle": "round"}
        if curve.light:
            look = {"linewidth": 1.2, "linestyle": (0, (1, 1.6)), "alpha": 0.9}
        marker = (None if curve.light else arm_marker(curve.index)) or ("o" if few else None)
        every = 1 if few else max(1, len(x) // 7)
        ax.plot(x, y, color=colour, marker=marker, markersize=4 if few else 4.5, markevery=every, **look)


def _draw_base(ax: Axes, base: float) -> None:
    base_line(ax.axhline, base)
    ax.annotate(
        f"before training {base:.3f}", (1, base), xycoords=("axes fraction", "data"), xytext=(-2, -4),
        textcoords="offset points", ha="right", va="top", color=MUTED, size=8, zorder=5,
        bbox={"facecolor": PANEL, "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    )  # fmt: skip


def _limit_x(ax: Axes, curves: Sequence[Curve], *, dots: bool) -> None:
    ends = [x for curve in curves for x in (curve.x, *(seed.x for seed in curve.seeds)) if len(x)]
    last = max((float(x[-1]) for x in ends), default=1.0)
    first = 0.0 if not dots else min((float(x[0]) for x in ends), default=0.0)
    room = 0.03 * max(last - first, 1.0) if dots else 0.0
    ax.set_xlim(first - room, last + room if last > first else first + 1.0)


def _thinned(x: Floats, *columns: Floats) -> tuple[Floats, ...]:
    """The same with at most so many points, the last among them."""
    step = math.ceil(len(x) / _POINTS_DRAWN)
    if step < 2:
        return (x, *columns)
    chosen = np.unique(np.append(np.arange(0, len(x), step), len(x) - 1))
    return tuple(column[chosen] for column in (x, *columns))


def _rows(curves: Sequence[Curve]) -> list[Row]:
    rows = []
    for c in curves:
        for seed in c.seeds:
            points = zip(seed.x.tolist(), seed.y.tolist(), seed.raw.tolist(), strict=True)
            rows += [Row(arm=c.arm, series=c.series, seed=seed.seed, x=x, y=y, unsmoothed=raw) for x, y, raw in points]
        columns = (c.x, c.y, c.low, c.high, c.raw)
        rows += [
            Row(arm=c.arm, series=c.series, x=x, y=y, low=low, high=high, unsmoothed=raw)
            for x, y, low, high, raw in zip(*(column.tolist() for column in columns), strict=True)
        ]
    return rows
