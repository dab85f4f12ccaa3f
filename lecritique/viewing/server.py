"""Runs the live page until it is told to stop."""

from __future__ import annotations

from pathlib import Path

from lecritique.serving.web import HttpServer, is_loopback
from lecritique.viewing.app import ViewApp


class ViewServer:
    """The page over a directory, listening from construction on.

    Args:
        directory: a run, a comparison, or a directory that holds several of these.
        host: address to listen on.
        port: 0 takes a free one.

    Raises:
        DataError: the directory holds nothing to view.
        ConfigurationError: the address cannot be listened on.
    """

    def __init__(self, directory: Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._app = ViewApp(directory, host=host)
        self._http = HttpServer(host, port, grace_seconds=2)
        self.port, self.address = self._http.port, self._http.address
        self.local = is_loopback(host)
        """Whether only this machine can reach it."""

    def run(self) -> None:
        """Answer until stopped, by `stop`, SIGTERM or Ctrl-C."""
        self._http.run(self._app.asgi)

    def stop(self) -> None:
        """Let `run` return; from any thread."""
        self._http.stop()
