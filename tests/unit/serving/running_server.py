"""A value server in a thread over a small critic, and requests as bare as a hostile client makes them."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from small_models import small_policy

from lecritique.config.losses import Bce
from lecritique.critic.serving import EvaluatorService
from lecritique.models.value_model import ValueModel, save_value_model
from lecritique.serving.app import Limits
from lecritique.serving.checkpoint import ServedCheckpoint
from lecritique.serving.server import ValueServer

PATIENCE = 60.0
JSON = {"Content-Type": "application/json"}


def critic(seed: int, *, dtype: torch.dtype = torch.float64, layers: int = 2, loss=None) -> ValueModel:
    return ValueModel.from_policy(small_policy(seed, dtype=dtype, layers=layers), loss or Bce(), seed=seed)


def saved(folder: Path, seed: int, **options: Any) -> Path:
    save_value_model(critic(seed, **options), folder)
    return folder


class Running(NamedTuple):
    """A server that answers."""

    server: ValueServer
    service: EvaluatorService
    checkpoint: ServedCheckpoint
    ended: threading.Thread
    errors: list[BaseException]


@contextlib.contextmanager
def running(
    path: Path,
    *,
    checkpoint: ServedCheckpoint | None = None,
    token: str | None = None,
    limits: Limits | None = None,
    queue: int = 10**6,
    batch: int = 4096,
    wait_seconds: float = 0.0,
    served: Any = None,
) -> Iterator[Running]:
    """Serve until the block ends."""
    checkpoint = checkpoint or ServedCheckpoint(path)
    service = EvaluatorService(
        served or checkpoint.served,
        max_tokens=4096,
        context_length=checkpoint.context_length,
        max_batch_tokens=batch,
        max_wait_seconds=wait_seconds,
        max_queue_tokens=queue,
    )
    server = ValueServer(checkpoint, service, token=token, limits=limits)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Running(server, service, checkpoint, thread, errors)
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    server: ValueServer, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request on a connection of its own; a body that is not bytes goes as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection.request(method, path, body, headers if headers is not None else (JSON if body is not None else {}))
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def post(server: ValueServer, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """Ask for values."""
    return ask(server, "POST", "/v1/values", body, headers)
