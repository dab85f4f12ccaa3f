"""Listening and answering over HTTP, for every page and service of this package.

The one importer of starlette and uvicorn; who serves something takes their names from here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from lecritique.core.errors import ConfigurationError

__all__ = [
    "ClientDisconnect",
    "HTTPException",
    "HttpServer",
    "Request",
    "Response",
    "Route",
    "Starlette",
    "host_of",
    "is_loopback",
    "loopback_names",
]

_GRACE_SECONDS = 30


class HttpServer:
    """A socket that listens from construction on, and the server behind it. `run` blocks.

    Args:
        host: address to listen on.
        port: 0 takes a free one.
        grace_seconds: how long requests in flight may take once it is told to stop.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """

    def __init__(self, host: str, port: int, *, grace_seconds: int = _GRACE_SECONDS) -> None:
        self._socket = _listening(host, port)
        self._grace_seconds = grace_seconds
        self._server: uvicorn.Server | None = None
        self._stopped = False
        self.host, self.port = host, int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """Where it can be reached."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def run(self, app: Any) -> None:
        """Answer with the ASGI application `app` until stopped, by `stop`, SIGTERM or Ctrl-C."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=self._grace_seconds,
            )
        )
        self._server.should_exit = self._stopped
        try:
            with self._socket:
                self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass  # how uvicorn passes a signal on once it has shut down in order

    def stop(self) -> None:
        """Take no new connections, answer what is in flight, and let `run` return. From any thread."""
        self._stopped = True
        if self._server is not None:
            self._server.should_exit = True


def loopback_names(host: str) -> frozenset[str]:
    """What a request may call a server on `host` by when only this machine is to reach it."""
    return frozenset({"localhost", "127.0.0.1", "::1", host.lower()})


def host_of(request: Request) -> str:
    """The name in the Host header, without its port."""
    host = request.headers.get("host", "").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _listening(host: str, port: int) -> socket.socket:
    with _as_configuration(host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except BaseException:
            listener.close()
            raise
        return listener


@contextlib.contextmanager
def _as_configuration(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot listen on {host} port {port}: {reason}.") from error
