"""The command line. No logic of its own: it parses, calls, prints, and turns errors into exit codes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from typing import Annotated, NoReturn

import typer

from lecritique.cli.compare import compare
from lecritique.cli.diagnose import diagnose
from lecritique.cli.eval import evaluate
from lecritique.cli.output import fail
from lecritique.cli.plan import plan
from lecritique.cli.pretrain_value import pretrain_value
from lecritique.cli.report import report
from lecritique.cli.serve_value import serve_value
from lecritique.cli.tasks import tasks
from lecritique.cli.train import train
from lecritique.cli.view import view
from lecritique.core.errors import EXIT_CONFIGURATION, EXIT_INTERRUPTED, EXIT_ROLE_FAILED, LecritiqueError

# typer carries a copy of click or uses the installed one: the base of its errors is found either way.
_UsageError: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

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
app.command()(plan)
app.command("eval")(evaluate)
app.command("pretrain-value")(pretrain_value)
app.command("serve-value")(serve_value)
app.command()(view)
app.add_typer(tasks, name="tasks")
app.add_typer(diagnose, name="diagnose")


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
    try:
        _main()
    except SystemExit as ended:
        if any(thread.name.startswith("lecritique ") for thread in threading.enumerate()):
            # A role that was not waited for may be inside native code, where the interpreter's end would abort.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended.code if isinstance(ended.code, int) else EXIT_ROLE_FAILED)
        raise


def _main() -> NoReturn:
    # Read by OpenMP when torch is loaded: threads that spin while they wait starve the others.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for name in ("SIGTERM", "SIGHUP"):  # SIGHUP: the terminal was closed; not on every system
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _interrupt)
    try:
        code = app(standalone_mode=False)
    except LecritiqueError as error:
        fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted.", EXIT_INTERRUPTED)
    except _UsageError as error:
        _refuse_usage(error)
    except Exception as error:
        # A fault of ours or of a library: its trace is what a report needs, its exit code still means something.
        traceback.print_exc()
        fail(f"unexpected {type(error).__name__}; the trace above belongs in a bug report.", EXIT_ROLE_FAILED)
    if code == EXIT_INTERRUPTED:  # what typer makes of KeyboardInterrupt
        fail("interrupted.", EXIT_INTERRUPTED)
    raise SystemExit(code or 0)


def _refuse_usage(error: Exception) -> NoReturn:
    sentence = error.format_message()  # type: ignore[attr-defined]
    if not sentence.strip():  # a command without arguments, whose help has been printed
        raise SystemExit(EXIT_CONFIGURATION)
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context else ""
    fail(f"{sentence.strip().rstrip('.')}{hint}.", EXIT_CONFIGURATION)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
