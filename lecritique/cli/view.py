"""`lecritique view`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from lecritique.cli.output import console
from lecritique.core.errors import ConfigurationError


def view(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIRECTORY", help="A run, a comparison, or a directory that holds several of these."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; at others than loopback everyone who reaches it can read.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port and prints it.")] = 8124,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a local page over runs: curves that grow while training goes on, and every saved trajectory by token.

    It reads what the runs write and writes nothing; no account, nothing is loaded from elsewhere. Filter trajectories
    by task, reward, status and step, sort them by their largest advantage, and open one: tokens coloured by value,
    advantage, teacher gap or log-prob, its group beside it. An address of the page keeps what is selected. Ctrl-C or
    SIGTERM stops it.
    """
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"view needs {', '.join(missing)}: pip install 'lecritique[serve]'.")
    from lecritique.viewing.server import ViewServer

    server = ViewServer(directory, host=host, port=port)
    reach = "this machine only" if server.local else f"everyone who can reach {host} can read these runs"
    console.print(f"{directory} at {server.address} ({reach}); stop with Ctrl-C", soft_wrap=True)
    if open_browser:
        import webbrowser

        webbrowser.open(server.address)
    server.run()
    console.print("stopped.")
