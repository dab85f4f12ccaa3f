"""Every figure of a report as a PNG for print and a tidy CSV, with an index for people and one for programs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from lecritique.analysis.figures import Plot, Row, png
from lecritique.analysis.read import json_object
from lecritique.analysis.wording import clean
from lecritique.core.errors import ConfigurationError, DataError

INDEX, PAGE = "index.json", "index.html"
_SCHEMA = "lecritique-figures-1"
_COLUMNS = ("arm", "series", "seed", "x", "y", "low", "high", "unsmoothed")
_OWN_NAME = re.compile(r"[a-z0-9-]+\.(png|csv)")
_STYLE = (
    "body{margin:40px auto;max-width:860px;padding:0 20px;font:16px/1.5 system-ui,sans-serif;color:#1c1e24}"
    "img{max-width:100%;height:auto}h2{margin:44px 0 4px;font-size:18px}p{margin:4px 0;color:#63666f}"
)


def export_figures(plots: Sequence[Plot], directory: Path, *, source: str) -> list[Path]:
    """Write the figures and return the paths of what was written, the index last.

    A directory that this function filled before is filled again: what it wrote then is replaced, or removed where
    there is no such figure any more; other files stay.

    Args:
        plots: those without a drawing and without rows are left out.
        directory: new, empty, or of an earlier call.
        source: the run or comparison, for the index.

    Raises:
        ConfigurationError: the directory holds something else, or a file that would be overwritten is not ours.
        DataError: its index is not one.
    """
    known = [plot for plot in plots if plot.rows]
    wanted = {name for plot in known for name in _files(plot)}
    earlier = _earlier(directory)
    for name in sorted(wanted | {PAGE}):
        if (directory / name).exists() and name not in earlier:
            raise ConfigurationError(
                f"'{directory / name}' was not written by an earlier export and would be overwritten; give another "
                "directory."
            )
    directory.mkdir(parents=True, exist_ok=True)
    # The index goes first: should the writing be cut short, the next call knows what is ours.
    _write_index(directory, known, sorted(wanted | earlier), source)
    for name in sorted(earlier - wanted - {PAGE}):
        (directory / name).unlink(missing_ok=True)
    for plot in known:
        (directory / f"{plot.name}.csv").write_text(tidy_csv(plot.rows), encoding="utf-8", newline="")
        if plot.draw is not None:
            png(plot, directory / f"{plot.name}.png")
    (directory / PAGE).write_text(_page(known, source), encoding="utf-8")
    _write_index(directory, known, sorted(wanted), source)
    return [directory / name for name in (*sorted(wanted), PAGE, INDEX)]


def tidy_csv(rows: Sequence[Row]) -> str:
    """One number a line. An empty `seed` is the estimate over seeds; what is undefined is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        numbers = [_cell(value) for value in (row.x, row.y, row.low, row.high, row.unsmoothed)]
        writer.writerow([clean(row.arm), clean(row.series), "" if row.seed is None else row.seed, *numbers])
    return text.getvalue()


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return repr(float(value)) if math.isfinite(value) else ""


def _files(plot: Plot) -> list[str]:
    return [f"{plot.name}.csv", *([f"{plot.name}.png"] if plot.draw is not None else [])]


def _earlier(directory: Path) -> set[str]:
    """Files that an earlier call wrote here; empty for a new or empty directory."""
    if not directory.exists():
        return set()
    if not directory.is_dir():
        raise ConfigurationError(f"--figures: '{directory}' is a file, expected a directory.")
    if not any(directory.iterdir()):
        return set()
    index = json_object(directory / INDEX) if (directory / INDEX).is_file() else None
    if index is None or index.get("schema") != _SCHEMA:
        raise ConfigurationError(
            f"--figures: '{directory}' is not empty and holds no export of figures; give a new or empty directory."
        )
    names = index.get("files")
    if not isinstance(names, list) or not all(isinstance(n, str) and _OWN_NAME.fullmatch(n) for n in names):
        raise DataError(f"{directory / INDEX}: expected the names of exported figures under 'files'")
    return {*names, PAGE}


def _write_index(directory: Path, plots: Sequence[Plot], files: Sequence[str], source: str) -> None:
    record = {
        "schema": _SCHEMA,
        "source": clean(source),
        "columns": list(_COLUMNS),
        "files": [name for name in files if name != PAGE],
        "figures": [
            {
                "name": plot.name,
                "title": clean(plot.title),
                "caption": clean(plot.caption),
                "x": clean(plot.x_label),
                "y": clean(plot.y_label),
                "files": _files(plot),
            }
            for plot in plots
        ],
    }
    (directory / INDEX).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _page(plots: Sequence[Plot], source: str) -> str:
    parts = []
    for plot in plots:
        title, caption = escape(clean(plot.title)), escape(clean(plot.caption))
        picture = f'<img src="{plot.name}.png" alt="{title}">' if plot.draw is not None else ""
        parts.append(f'<h2>{title}</h2>{picture}<p>{caption}</p><p><a href="{plot.name}.csv">{plot.name}.csv</a></p>')
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(clean(source))}</title><style>{_STYLE}</style></head><body><h1>{escape(clean(source))}</h1>"
        f"<p>CSV columns: {', '.join(_COLUMNS)}. A line without a seed is the estimate over seeds; y is as drawn, "
        f"unsmoothed the number before a moving average.</p>{''.join(parts)}</body></html>\n"
    )
