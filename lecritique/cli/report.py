"""`lecritique report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lecritique.cli.output import console
from lecritique.core.errors import ConfigurationError


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", help="A run, a comparison or a folder of pretrain-value; it may still be running."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The page to write; by default DIRECTORY/report.html.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also write a compact PNG here.")] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Also write every figure as PNG and CSV into this directory: new, empty or of an export."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Arm that differences are against; by default the first one.")
    ] = None,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of `lecritique eval` of one of the runs, for the ablation table; may be repeated."),
    ] = None,
) -> None:
    """Write one self-contained HTML page: curves, endpoints with intervals, EV by position, tokens, all numbers.

    Examples: `lecritique report runs/mine` and
    `lecritique report runs/compare-demo --figures figures --reference ppo --evaluation evals/vaspo-0`.
    """
    if not directory.is_dir():
        raise ConfigurationError(f"there is no directory '{directory}'.")
    from lecritique.analysis.pretraining_figures import is_pretraining
    from lecritique.analysis.report import write_figures, write_picture, write_report

    folders = tuple(evaluation or ())
    if is_pretraining(directory):
        given = {"--picture": picture, "--reference": reference, "--evaluation": evaluation}
        for option, value in given.items():
            if value:
                raise ConfigurationError(f"{option} says nothing about '{directory}', a folder of pretrain-value.")
    try:
        page = write_report(directory, out, reference=reference, evaluation_folders=folders)
        console.print(f"report: {page}", soft_wrap=True)
        if picture is not None:
            console.print(f"picture: {write_picture(directory, picture)}", soft_wrap=True)
        if figures is not None:
            written = write_figures(directory, figures, reference=reference, evaluation_folders=folders)
            count = sum(path.suffix == ".png" for path in written)
            console.print(f"figures: {count} in {figures}, each with its numbers as CSV", soft_wrap=True)
    except OSError as error:  # what is read is checked by its reader; this is about what is written
        raise ConfigurationError(f"the page or a picture cannot be written: {error}.") from error
