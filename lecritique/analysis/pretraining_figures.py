"""The report of `pretrain-value`: how held-out explained variance and loss developed, and how the critics compare."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import lecritique
from lecritique.analysis import page
from lecritique.analysis.arm_style import swatch
from lecritique.analysis.bar_figures import Bar, bar_plot
from lecritique.analysis.bootstrap import Interval
from lecritique.analysis.curve_figures import curve_plot, plain_curve
from lecritique.analysis.figures import Plot
from lecritique.analysis.read import json_object
from lecritique.analysis.tables import table
from lecritique.analysis.wording import counted, number, shortened, signed
from lecritique.core.errors import DataError

# As `runtime.pretraining_plan` names them, which imports torch.
SETTINGS, SUMMARY = "pretrain.json", "summary.json"

_COLUMNS = {
    "update": "update", "explained_variance": "explained variance", "loss": "held-out loss",
    "train_loss": "training loss", "bias": "bias", "mse": "mean squared error", "seconds": "seconds",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Pretraining:
    """A folder of `pretrain-value`: its settings, each critic's curve, and the summary once all are fitted.

    `curves` hold a list of numbers a column, NaN where undefined.
    """

    path: Path
    settings: Mapping[str, Any]
    curves: Mapping[str, Mapping[str, Sequence[float]]]
    summary: Mapping[str, Any] | None


def is_pretraining(directory: Path) -> bool:
    """Whether the directory is a folder of `pretrain-value`."""
    return (directory / SETTINGS).is_file()


def load_pretraining(directory: Path) -> Pretraining:
    """Read the folder, finished or not.

    Raises:
        DataError: a file does not hold what it should.
    """
    settings = json_object(directory / SETTINGS)
    if settings is None:
        raise DataError(f"{directory} is no folder of pretrain-value: it has no {SETTINGS}")
    summary = json_object(directory / SUMMARY)
    wanted = settings.get("wanted")
    names = wanted.get("variants") if isinstance(wanted, dict) else None
    curves = {}
    for name in names if isinstance(names, list) else []:
        file = directory / Path(str(name)).name / "curve.json"
        if file.is_file():
            curves[str(name)] = _columns(_points(file), file)
    return Pretraining(path=directory, settings=settings, curves=curves, summary=summary)


def pretraining_plots(found: Pretraining) -> list[Plot]:
    """EV and losses over updates, and EV at the end."""
    index = {name: i for i, name in enumerate(found.curves)}
    updates = [
        ("explained_variance", "pretraining-explained-variance", "Explained variance on held-out problems",
         "VP's pretraining curve, on the natural distribution: nothing is balanced there. 1 is perfect, 0 no better "
         "than a constant.", True),
        ("loss", "pretraining-loss", "Loss on held-out problems", "The loss that is trained, on the same responses.",
         False),
        ("mse", "pretraining-mse", "Squared error on held-out problems", "Mean squared error of the values, in reward "
         "squared.", False),
        ("train_loss", "pretraining-train-loss", "Loss while fitting",
         "Mean over the updates since the point before, on the responses that are fitted (upsampled where the settings "
         "say so).", False),
    ]  # fmt: skip
    plots = []
    for column, name, title, caption, is_ev in updates:
        curves = []
        for variant, i in index.items():
            x, y = (np.asarray(found.curves[variant][key], dtype=np.float64) for key in ("update", column))
            known = np.isfinite(x) & np.isfinite(y)
            if known.any():
                curves.append(plain_curve(variant, i, x[known], y[known]))
        plots.append(
            curve_plot(
                curves,
                name=name,
                title=title,
                label=_COLUMNS[column],
                caption=caption,
                absent="Nothing has been measured yet.",
                x_label="critic update",
                floor=is_ev,
                zero=is_ev,
                dots=True,
            )
        )
    bars = [
        Bar(arm=variant, index=index.get(variant, 0), found=interval, seeds={})
        for variant, interval in _intervals(found).items()
    ]
    plots.insert(
        1,
        bar_plot(
            bars,
            name="pretraining-bars",
            title="Explained variance at the end",
            label="explained variance on held-out problems",
            caption="The bracket is a 95% interval over held-out problems.",
            absent="The critics are not all fitted yet.",
        ),
    )
    return plots


def pretraining_html(found: Pretraining) -> str:
    """The page."""
    title, lede = _headline(found)
    names = [
        f'<span class="arm">{swatch(i)}<span>{page.text(name)}</span></span>' for i, name in enumerate(found.curves)
    ]
    body = [
        page.opening(kicker=f"{found.path.resolve().name} · pretraining", title=title, lede=lede, cautions=()),
        page.legend(names) if len(names) > 1 else "",
        page.section("Curves", "", page.figures([plot.on_page() for plot in pretraining_plots(found)])),
        page.section("Numbers", "Of the held-out problems, at each point of the curve.", _table(found)),
        f"<footer>lecritique {escape(lecritique.__version__)}</footer>",
    ]
    return page.document(title=f"{found.path.resolve().name} · pretraining", body=body, tokens={"arms": []})


def _headline(found: Pretraining) -> tuple[str, str]:
    intervals = _intervals(found)
    if not intervals:
        return "Critics that are being fitted", "There is no summary yet; curves show what is finished."
    best = max(intervals, key=lambda name: intervals[name].estimate)
    title = (
        f"The {shortened(best, 40)} critic explains {number(intervals[best].estimate)} of the variance of returns of "
        "problems it has not seen"
    )
    gain = _interval((found.summary or {}).get("privileged_minus_clean"))
    problems = f"{counted(intervals[best].seeds, 'held-out problem')}"
    if gain is None:
        return title, f"Measured on {problems}."
    return title, (
        f"Privileged minus clean: {signed(gain.estimate)} (95% interval {signed(gain.low)} to {signed(gain.high)}, "
        f"over {problems})."
    )


def _intervals(found: Pretraining) -> dict[str, Interval]:
    variants = (found.summary or {}).get("variants")
    if not isinstance(variants, dict):
        return {}
    known = {
        str(name): _interval(record.get("explained_variance") if isinstance(record, dict) else None)
        for name, record in variants.items()
    }
    return {name: interval for name, interval in known.items() if interval is not None}


def _interval(record: Any) -> Interval | None:
    if not isinstance(record, dict):
        return None
    estimate, low, high = (_number(record.get(key)) for key in ("estimate", "low", "high"))
    problems = record.get("problems")
    if not math.isfinite(estimate):
        return None
    return Interval(estimate=estimate, low=low, high=high, seeds=problems if isinstance(problems, int) else 0)


def _points(file: Path) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(found, list) or not all(isinstance(point, dict) for point in found):
        raise DataError(f"{file}: expected a list of points, got {repr(found)[:80]}")
    return found


def _columns(points: Sequence[Mapping[str, Any]], file: Path) -> dict[str, list[float]]:
    for number_, point in enumerate(points):
        if not math.isfinite(_number(point.get("update"))):
            raise DataError(f"{file}, point {number_}: update is {point.get('update')!r}, expected a number")
    return {name: [_number(point.get(name)) for point in points] for name in _COLUMNS}


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _table(found: Pretraining) -> str:
    rows = []
    for name, columns in found.curves.items():
        for place in range(len(columns["update"])):
            numbers = [columns[key][place] for key in _COLUMNS]
            rows.append([page.text(name), f"{numbers[0]:.0f}", *(number(value) for value in numbers[1:])])
    heads = ["critic", *_COLUMNS.values()]
    return table(heads, rows, numeric=range(1, len(heads))) if rows else '<p class="empty">No critic is finished.</p>'
