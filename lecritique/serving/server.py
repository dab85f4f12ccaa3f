"""Runs the value service: listens, answers until it is told to stop, lets requests in flight finish."""

from __future__ import annotations

import os
from pathlib import Path

from lecritique.core.errors import ConfigurationError, RoleFailure
from lecritique.critic.serving import EvaluatorService
from lecritique.serving.app import Limits, ValueApp
from lecritique.serving.checkpoint import ServedCheckpoint
from lecritique.serving.web import HttpServer, is_loopback, loopback_names

TOKEN_VARIABLE = "LECRITIQUE_TOKEN"
_LEAST_TOKEN_CHARACTERS = 16


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
        self._http = HttpServer(host, port)
        self.host, self.port = host, self._http.port
        hosts = loopback_names(host) if token is None else None
        self._app = ValueApp(
            service, checkpoint, limits=limits or Limits(), token=token, hosts=hosts, on_failure=self.stop
        )

    @property
    def address(self) -> str:
        """Where it can be reached."""
        return self._http.address

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
            self._http.run(self._app.asgi)
        finally:
            self._service.stop(finish=False)
        if self._service.failure is not None:
            raise RoleFailure(f"the value evaluator failed: {self._service.failure}.") from self._service.failure

    def stop(self) -> None:
        """Take no new connections, answer what is in flight, and let `run` return."""
        self._http.stop()


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
