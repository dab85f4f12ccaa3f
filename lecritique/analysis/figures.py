"""Figures of a comparison: inline SVG that follows the page's colours, and one PNG. The only user of matplotlib.

SVG is drawn in fixed placeholder colours which are then replaced by the page's CSS variables, so one drawing
serves light and dark pages. N steps, S seeds.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from lecritique.analysis.bootstrap import Interval, finite_mean
from lecritique.analysis.read import Comparison
from lecritique.analysis.summary import arm_endpoint, endpoint
from lecritique.analysis.wording import number, shortened
from lecritique.core.metrics import ValueFit

INK, MUTED, RULE = "#1c1e24", "#6a6d76", "#dedbd3"
# Okabe and Ito's colour-blind-safe set, yellow left out (too pale on white); grey closes the round.
ARM_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b7f88")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_LOWEST_EV = -0.5
_SIZE = (4.6, 2.9)

_Axes = Any
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lecritique",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.linewidth": 0.8,
}


def arm_colour(index: int) -> str:
    """Colour of arm `index`, the same in every figure and on the page."""
    return ARM_COLOURS[index % len(ARM_COLOURS)]


def smoothed(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Centred moving average [N] over the finite values among `width` (odd) steps, NaN where there are none."""
    half = width // 2
    padded = np.pad(values, half, constant_values=np.nan)
    return finite_mean(np.lib.stride_tricks.sliding_window_view(padded, width)) if len(values) else values


def smoothing_width(comparison: Comparison) -> int:
    """Odd number of steps that curves are averaged over: about a twentieth of the longest run."""
    longest = max((len(run.steps) for run in comparison.runs.values()), default=0)
    return 2 * (longest // 40) + 1


def curve_figure(comparison: Comparison, metric: str, label: str, *, base: float | None = None) -> str | None:
    """SVG of a metric over steps, None when no run has a finite value."""
    if not _any_finite(comparison, metric):
        return None
    return svg(lambda ax: _draw_curves(ax, comparison, metric, label, base), f"{metric}-curve")


def endpoint_figure(comparison: Comparison, metric: str, label: str, *, base: float | None = None) -> str | None:
    """SVG of endpoint bars with intervals and a dot a seed, None when no run has an endpoint."""
    if not _any_finite(comparison, metric):
        return None
    height = 0.9 + 0.5 * len(comparison.arms)
    return svg(
        lambda ax: _draw_endpoints(ax, comparison, metric, label, base), f"{metric}-bars", (_SIZE[0], max(height, 2.0))
    )


def position_figure(comparison: Comparison, fits: Mapping[str, Sequence[ValueFit]]) -> str | None:
    """SVG of explained variance by position in the response, None when no bin of any arm has one."""
    if not any(np.isfinite(fit.value()) for bins in fits.values() for fit in bins):
        return None
    return svg(lambda ax: _draw_positions(ax, comparison, fits), "positions")


def picture(comparison: Comparison, png: Path) -> None:
    """Write the PNG: reward and explained variance over steps, and reward endpoints."""
    critic = _any_finite(comparison, "explained_variance")
    names = ["\u200b" + shortened(arm, 30) for arm in comparison.arms]  # a leading "_" would hide the entry
    wide = 11.6 if critic else 8.4
    columns = max(1, min(len(names), int(11 * wide) // (max(map(len, names)) + 8)))
    rows = math.ceil(len(names) / columns)
    tall = 4.05 + 0.22 * rows
    with _style():
        figure = Figure(figsize=(wide, tall), facecolor="white")
        axes = figure.subplots(1, 3 if critic else 2, gridspec_kw={"wspace": 0.24})
        figure.subplots_adjust(left=0.05, right=0.985, top=1 - (0.84 + 0.22 * rows) / tall, bottom=0.54 / tall)
        _draw_curves(axes[0], comparison, "reward", "reward", comparison.base_reward)
        if critic:
            _draw_curves(axes[1], comparison, "explained_variance", "explained variance of the critic", None)
        _draw_endpoints(axes[-1], comparison, "reward", "reward, last steps", comparison.base_reward)
        figure.text(0.156 / wide, 1 - 0.15 / tall, shortened(comparison.recipe, 60), size=14, weight="bold", va="top")
        figure.legend(
            [_handle(index) for index in range(len(names))],
            names,
            loc="upper left",
            bbox_to_anchor=(0.03 / wide, 1 - 0.38 / tall),
            ncols=columns,
            frameon=False,
            fontsize=9.5,
        )
        figure.savefig(png, format="png", dpi=160, metadata={"Software": "lecritique"})


def _draw_curves(ax: _Axes, comparison: Comparison, metric: str, label: str, base: float | None) -> None:
    width = smoothing_width(comparison)
    drawn: list[NDArray[np.float64]] = []
    last = 1
    for index, arm in enumerate(comparison.arms):
        steps, curves_SN = _aligned(comparison, arm, metric, width)
        if not np.isfinite(curves_SN).any():
            continue
        colour, dash = arm_colour(index), _DASHES[index // len(ARM_COLOURS) % len(_DASHES)]
        if len(curves_SN) > 1:
            low, high = _extent(curves_SN)
            ax.fill_between(steps, low, high, color=colour, alpha=0.16, linewidth=0)
            for curve in curves_SN:
                ax.plot(steps, curve, color=colour, linewidth=0.7, alpha=0.45)
        mean = finite_mean(curves_SN, axis=0)
        marker = "o" if np.isfinite(mean).sum() < 2 else None
        ax.plot(steps, mean, color=colour, linewidth=2.0, linestyle=dash, marker=marker, solid_capstyle="round")
        drawn.append(curves_SN.ravel())
        last = max(last, int(steps[-1]))
    frame(ax, label)
    ax.set_xlabel("policy step")
    ax.set_xlim(0, last)
    _limit_y(ax, np.concatenate(drawn) if drawn else np.zeros(1), base, floor=metric == "explained_variance")
    if metric == "explained_variance":
        ax.axhline(0, color=MUTED, linewidth=0.8)
    if base is not None:
        _base_line(ax.axhline, base)
        ax.annotate(
            f"before training {base:.3f}",
            (last, base),
            xytext=(-2, -4),
            textcoords="offset points",
            ha="right",
            va="top",
            color=MUTED,
            size=8,
        )


def _draw_endpoints(ax: _Axes, comparison: Comparison, metric: str, label: str, base: float | None) -> None:
    """Bars from zero; the name stands over its bar, so long names cost no width."""
    ends = []
    for index, arm in enumerate(comparison.arms):
        y, found = -index, arm_endpoint(comparison, metric, arm)
        ax.text(0.0, y + 0.27, shortened(arm, 40), transform=ax.get_yaxis_transform(), ha="left", va="bottom", size=9)
        if not np.isfinite(found.estimate):
            ax.text(0.0, y, "undefined", transform=ax.get_yaxis_transform(), va="center", color=MUTED, size=9)
            continue
        ax.barh(y, found.estimate, height=0.4, color=arm_colour(index), alpha=0.85, linewidth=0)
        seeds = [endpoint(run.series(metric)) for run in comparison.runs_of(arm) if run is not None]
        known = [value for value in seeds if value is not None]
        _draw_interval(ax, y, found)
        if len(known) > 1:
            ax.plot(known, [y - 0.13] * len(known), "o", markersize=3, color=INK, alpha=0.55, markeredgewidth=0)
        ends.append((found, max([found.estimate, *known, *_finite(found.high)])))
        ax.annotate(
            number(found.estimate),
            (max(ends[-1][1], 0), y),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=9,
        )
    frame(ax, label, grid="x")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_ylim(-len(comparison.arms) + 0.45, 0.75)
    highest = max([end for _, end in ends] + [base or 0.0, 1e-3])
    lowest = min([min(f.estimate, *_finite(f.low), 0.0) for f, _ in ends] + [base or 0.0, 0.0])
    ax.set_xlim(lowest * 1.1, highest + 0.17 * (highest - lowest))
    if base is not None:
        _base_line(ax.axvline, base)
    if lowest < 0:
        ax.axvline(0, color=MUTED, linewidth=0.8)


def _draw_interval(ax: _Axes, y: float, found: Interval) -> None:
    if np.isfinite(found.low) and np.isfinite(found.high):
        ax.plot([found.low, found.high], [y, y], color=INK, linewidth=1.4, solid_capstyle="butt")
        ax.plot([found.low, found.high], [y, y], "|", color=INK, markersize=6, markeredgewidth=1.4)


def _draw_positions(ax: _Axes, comparison: Comparison, fits: Mapping[str, Sequence[ValueFit]]) -> None:
    seen = []
    for index, arm in enumerate(comparison.arms):
        bins = fits.get(arm, ())
        explained = np.array([fit.value() for fit in bins])
        if not np.isfinite(explained).any():
            continue
        centres = (np.arange(len(bins)) + 0.5) / len(bins)
        dash = _DASHES[index // len(ARM_COLOURS) % len(_DASHES)]
        ax.plot(centres, explained, color=arm_colour(index), linewidth=2, linestyle=dash, marker="o", markersize=4)
        seen.append(explained)
    frame(ax, "explained variance")
    ax.axhline(0, color=MUTED, linewidth=0.8)
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["start", "25%", "50%", "75%", "end"])
    ax.set_xlabel("place in the response")
    _limit_y(ax, np.concatenate(seen), None, floor=True)


def _aligned(
    comparison: Comparison, arm: str, metric: str, width: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps [N] and smoothed curves [S, N] of the arm's runs, NaN where a run has no such step."""
    runs = [run for run in comparison.runs_of(arm) if run is not None and len(run.steps)]
    steps = np.unique(np.concatenate([run.steps for run in runs])) if runs else np.zeros(0, dtype=np.int64)
    curves_SN = np.full((len(runs), len(steps)), np.nan)
    for row, run in enumerate(runs):
        curves_SN[row, np.searchsorted(steps, run.steps)] = smoothed(run.series(metric), width)
    return steps, curves_SN


def _extent(curves_SN: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    low = np.where(np.isfinite(curves_SN), curves_SN, np.inf).min(axis=0)
    high = np.where(np.isfinite(curves_SN), curves_SN, -np.inf).max(axis=0)
    return np.where(np.isfinite(low), low, np.nan), np.where(np.isfinite(high), high, np.nan)


def _limit_y(ax: _Axes, values: NDArray[np.float64], base: float | None, *, floor: bool) -> None:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if base is not None:
        low, high = min(low, base), max(high, base)
    if floor:  # an untrained critic can be arbitrarily bad; its first steps must not flatten the rest
        low, high = max(min(low, 0.0), _LOWEST_EV), max(high, 0.1)
    pad = 0.06 * max(high - low, 1e-3)
    ax.set_ylim(low - pad * (2 if base is not None else 1), high + pad)


def frame(ax: _Axes, label: str, grid: str = "y") -> None:
    """The axes as every figure has them: a title on the left, no box, quiet grid lines."""
    ax.set_title(label, loc="left", size=9.5, color=MUTED, pad=8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(axis=grid, color=RULE, linewidth=0.7)
    ax.tick_params(length=0, labelsize=8.5, pad=4)
    ax.margins(x=0)


def _base_line(line: Callable[..., Any], base: float) -> None:
    line(base, color=MUTED, linewidth=1.1, linestyle=(0, (3, 3)))


def _handle(index: int) -> Line2D:
    return Line2D([], [], color=arm_colour(index), linewidth=3, linestyle=_DASHES[index // len(ARM_COLOURS) % 4])


def _any_finite(comparison: Comparison, metric: str) -> bool:
    return any(np.isfinite(run.series(metric)).any() for run in comparison.runs.values())


def _finite(*values: float) -> list[float]:
    return [value for value in values if np.isfinite(value)]


def svg(draw: Callable[[_Axes], None], name: str, size: tuple[float, float] = _SIZE) -> str:
    """What `draw` draws, as inline SVG in the page's colours; `name` keeps its ids apart from other figures'."""
    with _style():
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_alpha(0)
        ax = figure.subplots()
        ax.patch.set_alpha(0)
        draw(ax)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(buffer.getvalue(), name)


def _inlined(drawn: str, name: str) -> str:
    """`drawn` as part of an HTML page: no prologue, no foreign addresses, its own ids, the page's colours."""
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r' xmlns(:\w+)?="[^"]*"', "", drawn).replace("xlink:href", "href")
    drawn = re.sub(r'\bid="', f'id="{name}-', drawn)
    drawn = re.sub(r'url\(#|href="#', lambda found: f"{found.group()}{name}-", drawn)
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    variables = {INK: "--ink", MUTED: "--muted", RULE: "--rule"}
    variables |= {colour: f"--arm-{index}" for index, colour in enumerate(ARM_COLOURS)}
    for colour, variable in variables.items():
        drawn = drawn.replace(colour, f"var({variable})")
    return drawn.strip()


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs of data that the font lacks
        yield
