"""`lecritique report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lecritique.cli.output import console
from lecritique.core.errors import ConfigurationError


def report(
    directory: Annotated[Path, typer.Argument(help="A run or a comparison; it may still be running.")],
    out: Annotated[Path | None, typer.Option(help="The page to write; by default DIRECTORY/report.html.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also write a compact PNG here.")] = None,
) -> None:
    """Write one self-contained HTML page: curves, endpoints with intervals, EV by position, tokens, all numbers."""
    if not directory.is_dir():
        raise ConfigurationError(f"there is no directory '{directory}'.")
    from lecritique.analysis.report import write_picture, write_report

    try:
        console.print(f"report: {write_report(directory, out)}", soft_wrap=True)
        if picture is not None:
            console.print(f"picture: {write_picture(directory, picture)}", soft_wrap=True)
    except OSError as error:  # what is read is checked by its reader; this is about what is written
        raise ConfigurationError(f"the page or the picture cannot be written: {error}.") from error
