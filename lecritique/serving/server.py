"""Runs the value service: listens, answers until it is told to stop, lets requests in flight finish."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from lecritique.core.errors import ConfigurationError, RoleFailure
from lecritique.critic.serving import EvaluatorService
from lecritique.serving.app import Limits, ValueApp, is_loopback
from lecritique.serving.checkpoint import ServedCheckpoint

TOKEN_VARIABLE = "LECRITIQUE_TOKEN"
_LEAST_TOKEN_CHARACTERS = 16
_GRACE_SECONDS = 30


class ValueServer:
    """An evaluator thread behind HTTP. `run` blocks; `stop` may be called from any thread.

    Args:
        checkpoint: what to serve.
        service: the evaluator over it, not started.
        host: address to listen on.
        port: 0 takes a free one.
        token: needed when others can reach the address.
        limits: of a request.

    Raises:
        ConfigurationError: the address cannot be listened on, or it is open to others and there is no token.
    """

    def __init__(
        self,
        checkpoint: ServedCheckpoint,
        service: EvaluatorService,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        require_token(host, token)
        self._service = service
        self._socket = _listening(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        hosts = frozenset({"localhost", "127.0.0.1", "::1", host.lower()}) if token is None else None
        self._app = ValueApp(
            service, checkpoint, limits=limits or Limits(), token=token, hosts=hosts, on_failure=self.stop
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app.asgi,
                http="h11",
                ws="none",
                lifespan="off",
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )

    @property
    def address(self) -> str:
        """Where it can be reached."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def answered(self) -> int:
        """Requests answered with values."""
        return self._app.requests.answered

    def run(self) -> None:
        """Answer until stopped, by `stop`, SIGTERM or Ctrl-C; requests in flight are answered first.

        Raises:
            RoleFailure: the evaluator thread failed.
        """
        self._service.start()
        try:
            with self._socket:
                self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass  # how uvicorn passes a signal on once it has shut down in order
        finally:
            self._service.stop(finish=False)
        if self._service.failure is not None:
            raise RoleFailure(f"the value evaluator failed: {self._service.failure}.") from self._service.failure

    def stop(self) -> None:
        """Take no new connections, answer what is in flight, and let `run` return."""
        self._server.should_exit = True


def require_token(host: str, token: str | None) -> None:
    """Raise ConfigurationError when others can reach the address and nothing keeps them out."""
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} can be reached from elsewhere, so a token is needed: --token-file FILE or the environment "
            f"variable {TOKEN_VARIABLE}."
        )
    if token is not None and (len(token) < _LEAST_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable()):
        raise ConfigurationError(
            f"the token has {len(token)} characters, expected at least {_LEAST_TOKEN_CHARACTERS}, all printable ASCII; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes one."
        )


def read_token(file: Path | None) -> str | None:
    """The token in `file`, else in the environment variable, else None; blanks around it do not count.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if file is None:
        given = os.environ.get(TOKEN_VARIABLE)
        return None if given is None else given.strip()
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file '{file}' cannot be read: {error}.") from error


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
