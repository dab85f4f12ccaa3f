"""The command line. No logic of its own: it parses, calls, prints, and turns errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from lecritique.cli.compare import compare
from lecritique.cli.output import fail
from lecritique.cli.report import report
from lecritique.cli.tasks import tasks
from lecritique.cli.train import train
from lecritique.core.errors import EXIT_INTERRUPTED, LecritiqueError

app = typer.Typer(
    name="lecritique",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Reinforcement learning of language models in which the critic earns its place.\n\n"
    "Start with `lecritique compare demo --arms mean,value,pvf,tether --seeds 0,1 --out runs/demo`, "
    "then open the report that it names. "
    "Exit codes: 0 ok, 2 configuration or data, 3 diverged, 4 a role failed, 130 interrupted.",
)
app.command()(train)
app.command()(compare)
app.command()(report)
app.add_typer(tasks, name="tasks")


def _version(show: bool) -> None:
    if show:
        from lecritique import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point."""
    # Read by OpenMP when torch is loaded: threads that spin while they wait starve the others.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(standalone_mode=True)
    except LecritiqueError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        fail("interrupted.", EXIT_INTERRUPTED)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
