"""Figures: one drawing for inline SVG that follows the page's colours and for PNG. The only user of matplotlib.

SVG is drawn in fixed placeholder colours which are then replaced by the page's CSS variables, so one drawing
serves light and dark pages.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from lecritique.analysis import page
from lecritique.analysis.arm_style import ARM_COLOURS, arm_colour, arm_dash, arm_marker
from lecritique.analysis.wording import MINUS, shortened

__all__ = ["ARM_COLOURS", "INK", "MUTED", "RULE", "Plot", "Row", "arm_colour", "frame", "legend", "png", "svg"]

INK, MUTED, RULE, PANEL = "#1c1e24", "#6a6d76", "#dedbd3", "#fefefd"
SIZE = (4.6, 2.9)
SMALL = (3.5, 2.35)
_FEW_ARMS = 6
_LOWEST_EV = -0.5
# What a broken run wrote beyond this runs off the picture: the length of an axis must be a number.
_FARTHEST = 1e100
_PRINT_DPI = 220
_LEGEND_ROW = 0.205  # inches
_LEGEND_NAME = 26
_UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Axes = Any
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


def bars_height(bars: int) -> float:
    """Inches of a figure of so many bars; many are closer together."""
    return max(0.75 + (0.5 if bars <= _FEW_ARMS else 0.4) * bars, 2.0)


def beside_bars(bars: int) -> tuple[float, float]:
    """Size of a figure that stands beside one of so many bars: as tall, within bounds."""
    return SIZE[0], min(max(SIZE[1], 0.92 * bars_height(bars)), 4.4)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a figure, as its CSV has it.

    `seed` is None for what is over seeds, `unsmoothed` the number before a moving average where one was drawn; NaN
    where there is nothing to say.
    """

    arm: str
    x: float | str
    y: float
    seed: int | None = None
    series: str = ""
    low: float = math.nan
    high: float = math.nan
    unsmoothed: float = math.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class Plot:
    """A figure before it is drawn: the same for the page, the PNG and the CSV.

    `draw` is None where the data does not allow it, and then `absent` says why. `arms` are the (index, name) pairs of
    its legend. `name` is unique on a page and a file name. `width` and `height` in inches.
    """

    name: str
    title: str
    caption: str
    absent: str
    draw: Callable[[Axes], None] | None
    rows: Sequence[Row]
    arms: Sequence[tuple[int, str]] = ()
    size: tuple[float, float] = SIZE
    x_label: str = ""
    y_label: str = ""

    def svg(self) -> str | None:
        """The figure for the page; None where there is none."""
        return None if self.draw is None else svg(self.draw, self.name, self.size, tight=True)

    def on_page(self) -> page.Figure:
        """The figure with its words as the page takes it."""
        return page.Figure(title=self.title, svg=self.svg(), caption=self.caption, absent=self.absent)


def svg(draw: Callable[[Axes], None], name: str, size: tuple[float, float] = SIZE, *, tight: bool = False) -> str:
    """What `draw` draws, as inline SVG in the page's colours; `name` keeps its ids apart from other figures'.

    `tight` sets fixed margins, at half the time, for what has numbers or nothing beside its left edge.
    """
    with _style():
        figure = Figure(figsize=size, layout=None if tight else "constrained")
        figure.patch.set_alpha(0)
        ax = figure.subplots()
        ax.patch.set_alpha(0)
        draw(ax)
        if tight:
            _margins(figure, ax, size, top=0.0, bottom=0.0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(buffer.getvalue(), name)


def png(plot: Plot, path: Path) -> None:
    """Write a figure for print: on white, with its title and a legend of its arms.

    Raises:
        ValueError: a plot without a drawing.
    """
    if plot.draw is None:
        raise ValueError(f"there is nothing to draw of {plot.name}")
    names = [shortened(name, _LEGEND_NAME) for _, name in plot.arms]
    size = (max(plot.size[0], SIZE[0]) + 0.6, max(plot.size[1], SIZE[1]) + 0.4)
    columns = max(1, min(len(names), int(size[0] * 14) // (max(map(len, names), default=0) + 9)))
    rows = math.ceil(len(names) / columns)
    top, bottom = 0.3, 0.04 + _LEGEND_ROW * rows if rows else 0.0
    whole = (size[0], size[1] + top + bottom)
    with _style():
        figure = Figure(figsize=whole, facecolor="white")
        ax = figure.subplots()
        plot.draw(ax)
        _margins(figure, ax, whole, top=top, bottom=bottom)
        figure.text(0.08 / whole[0], 1 - 0.09 / whole[1], plot.title, size=11.5, weight="bold", va="top", color=INK)
        if names:
            legend(figure, plot.arms, names, columns, (0.02 / whole[0], 0.0), "lower left", 8.5)
        figure.savefig(path, format="png", dpi=_PRINT_DPI, metadata={"Software": "lecritique"})


def legend(
    figure: Any,
    arms: Sequence[tuple[int, str]],
    names: Sequence[str],
    columns: int,
    at: tuple[float, float],
    corner: str,
    size: float = 9.5,
) -> None:
    """A legend of arms at a place in figure coordinates."""
    figure.legend(
        [_handle(index) for index, _ in arms],
        ["\u200b" + name for name in names],  # a leading "_" would hide the entry
        loc=corner,
        bbox_to_anchor=at,
        ncols=columns,
        frameon=False,
        fontsize=size,
        handlelength=3.4,
    )


def frame(ax: Axes, label: str, grid: str = "y") -> None:
    """The axes as every figure has them: a title on the left, no box, quiet grid lines."""
    ax.set_title(label, loc="left", size=9.5, color=MUTED, pad=8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(axis=grid, color=RULE, linewidth=0.7)
    ax.tick_params(length=0, labelsize=8.5, pad=4)
    ax.margins(x=0)


def number_ticks(ax: Axes, *, x: bool = True, y: bool = True, whole_x: bool = False) -> None:
    """Short numbers beside the axes: 12k, 3.5M, a true minus."""
    shown = FuncFormatter(lambda value, _: tick_text(value))
    if x:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole_x, steps=[1, 2, 2.5, 5, 10]))
        ax.xaxis.set_major_formatter(shown)
    if y:
        ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        ax.yaxis.set_major_formatter(shown)


def tick_text(value: float) -> str:
    """A tick in few characters."""
    size = abs(value)
    if size >= 1e21 or 0 < size < 1e-4:
        text = f"{value:.2g}".replace("e-0", "e-")
    elif size >= 1e4:
        unit, letter = next((unit, letter) for unit, letter in _UNITS if size >= unit)
        text = f"{value / unit:.4g}{letter}"
    else:
        text = f"{value:.5g}"
    return text.replace("-", MINUS)


def limit_y(ax: Axes, values: NDArray[np.float64], base: float | None = None, *, floor: bool = False) -> None:
    """Limits around the finite values and `base`; `floor` cuts off explained variances far below zero."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if base is not None:
        low, high = min(low, base), max(high, base)
    low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    if floor:  # an untrained critic can be arbitrarily bad; its first steps must not flatten the rest
        low, high = max(min(low, 0.0), _LOWEST_EV), max(high, 0.1)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1.0):  # a flat line gets an axis that says so
        low, high = low - max(0.05 * abs(low), 0.01), high + max(0.05 * abs(high), 0.01)
    pad = 0.06 * (high - low)
    ax.set_ylim(low - pad * (2 if base is not None else 1), high + pad)


def base_line(line: Callable[..., Any], base: float) -> None:
    """The dashed line of the policy before training."""
    line(base, color=MUTED, linewidth=1.1, linestyle=(0, (3, 3)))


def finite(values: Iterable[float]) -> list[float]:
    """Those that are finite."""
    return [value for value in values if math.isfinite(value)]


def _margins(figure: Any, ax: Axes, size: tuple[float, float], *, top: float, bottom: float) -> None:
    """Inches around the axes: room for the title above, ticks and their label below, numbers on the left."""
    low, high = sorted(ax.get_ylim())
    ticks = [tick for tick in ax.get_yticks() if low <= tick <= high]
    beside = ax.yaxis.get_major_formatter().format_ticks(ticks)
    left = max(0.5, 0.16 + 0.075 * max(map(len, beside))) if beside else 0.08
    below = 0.5 if ax.get_xlabel() else 0.3
    figure.subplots_adjust(
        left=left / size[0],
        right=1 - 0.12 / size[0],
        top=1 - (0.3 + top) / size[1],
        bottom=(below + bottom) / size[1],
    )


def _handle(index: int) -> Line2D:
    return Line2D(
        [0, 0.5, 1], [0, 0, 0], color=arm_colour(index), linewidth=2.4, linestyle=arm_dash(index),
        marker=arm_marker(index), markersize=5, markevery=[1],
    )  # fmt: skip


def _inlined(drawn: str, name: str) -> str:
    """`drawn` as part of an HTML page: no prologue, no foreign addresses, its own ids, the page's colours."""
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r' xmlns(:\w+)?="[^"]*"', "", drawn).replace("xlink:href", "href")
    drawn = re.sub(r'\bid="', f'id="{name}-', drawn)
    drawn = re.sub(r'url\(#|href="#', lambda found: f"{found.group()}{name}-", drawn)
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    variables = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PANEL: "--panel"}
    variables |= {colour: f"--arm-{index}" for index, colour in enumerate(ARM_COLOURS)}
    for colour, variable in variables.items():
        drawn = drawn.replace(colour, f"var({variable})")
    return drawn.strip()


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs of data that the font lacks
        yield


def style() -> Any:
    """The drawing style as a context, for a picture of several axes."""
    return _style()
