"""`lecritique serve-value`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from lecritique.cli.output import console
from lecritique.core.errors import ConfigurationError


def serve_value(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT", help="A run directory, its weights folder, or a folder with value_model.safetensors."
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port and prints it.")] = 8123,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the bearer token; else the environment variable LECRITIQUE_TOKEN, if set."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the critic runs, such as cpu or cuda.")] = "cpu",
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that are scored together; requests that wait share a batch up to this.")
    ] = 16_384,
    wait_ms: Annotated[
        float, typer.Option(min=0, help="How long a request may wait for company, in milliseconds.")
    ] = 2.0,
    queue_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that may wait; beyond, the answer is 503.")
    ] = 1_048_576,
    request_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one request; beyond, 413.")] = 262_144,
    request_sequences: Annotated[int, typer.Option(min=1, help="Sequences of one request; beyond, 413.")] = 1024,
    body_mib: Annotated[float, typer.Option(min=0.001, help="Size of one request in MiB; beyond, 413.")] = 8.0,
) -> None:
    """Serve a trained critic over HTTP: token ids in, values V(state before each token) and their version out.

    Start it: `lecritique serve-value runs/demo/pvf/seed-0`. Ask it:
    `curl localhost:8123/v1/values -H 'content-type: application/json' -d '{"sequences": [[5, 6, 7]]}'`

    A sequence is a list of ids (values of all tokens but the first), or
    `{"token_ids": [...], "from": 12}`, or with a `mask`; `"context": {"position": 1, "token_ids": [...]}`
    adds what a privileged critic sees. msgpack instead of JSON by content type.

    `POST /v1/reload` with `{"path": ...}` serves other weights without a pause; weights that do not fit are refused and
    the old ones go on. `/health`, `/version` and `/metrics` (Prometheus) are for operators. A full queue answers 503
    with Retry-After. SIGTERM or Ctrl-C stops it once the requests in flight are answered.
    """
    missing = [name for name in ("starlette", "uvicorn", "msgpack") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"serve-value needs {', '.join(missing)}: pip install 'lecritique[serve]'.")
    from lecritique.critic.serving import EvaluatorService
    from lecritique.runtime.threads import choose_threads
    from lecritique.serving.app import Limits
    from lecritique.serving.checkpoint import ServedCheckpoint
    from lecritique.serving.server import ValueServer, read_token, require_token

    token = read_token(token_file)
    require_token(host, token)
    served = ServedCheckpoint(checkpoint, device=device)
    note = choose_threads(served.parameters)
    service = EvaluatorService(
        served.served,
        max_tokens=batch_tokens,
        context_length=served.context_length,
        max_batch_tokens=batch_tokens,
        max_wait_seconds=wait_ms / 1e3,
        max_queue_tokens=queue_tokens,
    )
    limits = Limits(
        request_tokens=request_tokens, sequences=request_sequences, body_bytes=max(1, round(body_mib * 2**20))
    )
    server = ValueServer(served, service, host=host, port=port, token=token, limits=limits)
    if note:
        console.print(note, soft_wrap=True)
    source, digest = served.source
    console.print(
        f"serving {source} (weights {digest[:12]}) as version {service.version} at {server.address}\n"
        f"{'a token is needed' if token else 'no token, this machine only'}; stop with Ctrl-C",
        soft_wrap=True,
    )
    server.run()
    console.print(f"stopped after {server.answered} answers.", soft_wrap=True)
