"""The value service over HTTP: the evaluator thread for other stacks, token ids in, values and their version out.

    POST /v1/values    {"sequences": [[5, 6, 7], {"token_ids": [...], "from": 12,
                                                  "context": {"position": 1, "token_ids": [...]}}]}
                       -> {"version": 3, "values": [[0.1, 0.2], [...]]}, in input order, all from one version
    POST /v1/reload    {"path": "runs/next"} -> {"version": 4}; without a path the newest one is read again
    GET  /health, /version, /metrics

Every answer that is not values is {"error": "one sentence"} or a page for a machine; no trace leaves the process.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lecritique
from lecritique.core.errors import CheckpointError, LecritiqueError, Overloaded, RoleFailure
from lecritique.critic.serving import EvaluatorService
from lecritique.models.scoring import token_row
from lecritique.serving import wire
from lecritique.serving.checkpoint import ServedCheckpoint
from lecritique.serving.prometheus import CONTENT_TYPE, ServedRequests, metrics_text
from lecritique.serving.web import ClientDisconnect, HTTPException, Request, Response, Route, Starlette, host_of
from lecritique.serving.wire import BadRequest, Form

_RETRY_AFTER_SECONDS = 1
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may ask for; over a limit it is refused in one sentence."""

    body_bytes: int = 8 * 2**20
    body_seconds: float = 30.0
    request_tokens: int = 262_144
    sequences: int = 1024
    requests_at_once: int = 1024


class ValueApp:
    """Routes, limits and access around one evaluator.

    Args:
        service: started by the caller, and stopped after the server.
        checkpoint: what it serves, and how to replace it.
        limits: of a request.
        token: asked for on every path but /health; None only where nobody else can reach the address.
        hosts: names that a request may call this server by, against pages that point a name of theirs at it; None
            takes any, which is for servers with a token.
        on_failure: called when the evaluator thread has failed and nothing can be answered any more.
    """

    def __init__(
        self,
        service: EvaluatorService,
        checkpoint: ServedCheckpoint,
        *,
        limits: Limits,
        token: str | None,
        hosts: frozenset[str] | None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._service = service
        self._checkpoint = checkpoint
        self._limits = limits
        self._token = token.encode() if token is not None else None
        self._hosts = hosts
        self._on_failure = on_failure
        self._at_once = 0
        self.requests = ServedRequests()
        self.asgi = Starlette(
            routes=[
                Route("/health", self._guarded(self._health, open_to_all=True), methods=["GET"]),
                Route("/version", self._guarded(self._version), methods=["GET"]),
                Route("/metrics", self._guarded(self._metrics), methods=["GET"]),
                Route("/v1/values", self._guarded(self._values), methods=["POST"]),
                Route("/v1/reload", self._guarded(self._reload), methods=["POST"]),
            ],
            exception_handlers={HTTPException: self._no_such_page},  # type: ignore[dict-item]
        )

    def _guarded(self, handler: Handler, *, open_to_all: bool = False) -> Handler:
        """The handler behind the access checks; what it raises becomes an answer of one sentence."""

        async def guarded(request: Request) -> Response:
            try:
                self._require_access(request, open_to_all=open_to_all)
                return await handler(request)
            except BadRequest as error:
                headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
                return self._refusal(request, str(error), error.status, headers)
            except Overloaded as error:
                return self._refusal(request, str(error), 503, {"Retry-After": str(_RETRY_AFTER_SECONDS)})
            except LecritiqueError as error:
                if isinstance(error, RoleFailure):
                    self._on_failure()
                return self._refusal(request, str(error), 500)

        return guarded

    def _require_access(self, request: Request, *, open_to_all: bool) -> None:
        if self._hosts is not None and host_of(request) not in self._hosts:
            raise BadRequest("this server does not go by that name; use its address.", status=421)
        if open_to_all or self._token is None:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared as bytes and in constant time: the answer's delay says nothing of the token.
        right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token)
        if kind.lower() != "bearer" or not right:
            raise BadRequest("this server needs its token: Authorization: Bearer TOKEN.", status=401)

    async def _health(self, request: Request) -> Response:
        if self._service.failure is not None:
            self._on_failure()
            return self._answer(request, {"status": "failed"}, 503)
        return self._answer(request, {"status": "ok"})

    async def _version(self, request: Request) -> Response:
        source, digest = self._checkpoint.source
        content = {
            "version": self._service.version,
            "checkpoint": str(source),
            "digest": digest,
            "vocabulary": self._checkpoint.vocabulary,
            "context_length": self._checkpoint.context_length,
            "support": list(self._checkpoint.loss.support),
            "lecritique": lecritique.__version__,
        }
        return self._answer(request, content)

    async def _metrics(self, request: Request) -> Response:
        text = metrics_text(self._service, self.requests, swaps=self._checkpoint.served.swaps)
        return Response(text, media_type=CONTENT_TYPE)

    async def _values(self, request: Request) -> Response:
        began = time.monotonic()
        if self._at_once >= self._limits.requests_at_once:
            raise Overloaded(f"{self._at_once} requests are being answered, which is the limit.")
        self._at_once += 1
        try:
            body: wire.ValuesBody = await self._body(request, wire.ValuesBody)
            asked = wire.value_requests(body, vocabulary=self._checkpoint.vocabulary)
            self._require_within_limits(asked)
            predictions = await asyncio.wrap_future(self._service.submit(asked))
        finally:
            self._at_once -= 1
        version = predictions[0].value_version if predictions else self._service.version
        values = [
            prediction.values[each.trajectory.action_mask].tolist()
            for prediction, each in zip(predictions, asked, strict=True)
        ]
        return self._answer(request, {"version": version, "values": values}, seconds=time.monotonic() - began)

    def _require_within_limits(self, asked: list[Any]) -> None:
        limits, most = self._limits, self._checkpoint.context_length
        if len(asked) > limits.sequences:
            raise BadRequest(f"{len(asked)} sequences are over the limit of {limits.sequences} a request.", status=413)
        tokens = 0
        for index, each in enumerate(asked):
            read = len(each.trajectory) + len(each.context or ())
            if read > most:
                raise BadRequest(
                    f"sequences.{index}: {read} tokens with its context are over the critic's limit of {most}.",
                    status=422,
                )
            tokens += token_row(each.trajectory, each.context).read_tokens
        if tokens > limits.request_tokens:
            raise BadRequest(f"{tokens} tokens are over the limit of {limits.request_tokens} a request.", status=413)

    async def _reload(self, request: Request) -> Response:
        body: wire.ReloadBody = await self._body(request, wire.ReloadBody)
        path = None if body.path is None else Path(body.path)
        try:
            version = await asyncio.to_thread(self._checkpoint.reload, path)
        except CheckpointError as error:
            self.requests.add_reload("refused")
            sentence = f"{str(error).rstrip('.')}; version {self._service.version} goes on serving."
            raise BadRequest(sentence, status=422) from error
        # Whoever reads this answer is served by the new version: it waits behind the batch being scored.
        await asyncio.wrap_future(self._service.submit([], minimum_version=version))
        self.requests.add_reload("adopted")
        return self._answer(request, {"version": version})

    async def _body(self, request: Request, kind: Any) -> Any:
        form = wire.form_of(request.headers.get("content-type", ""))
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await self._read(request)
        except TimeoutError:
            raise BadRequest(f"the body did not arrive within {self._limits.body_seconds:g} seconds.", 408) from None
        except ClientDisconnect:
            raise BadRequest("the body ended early.") from None
        return wire.checked(kind, wire.decode(body, form))

    async def _read(self, request: Request) -> bytes:
        most = self._limits.body_bytes
        announced = request.headers.get("content-length", "")
        body = bytearray()
        if not (announced.isascii() and announced.isdigit() and int(announced[:20]) > most):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    break
            else:
                return bytes(body)
        raise BadRequest(f"the body is over the limit of {most} bytes.", status=413)

    async def _no_such_page(self, request: Request, error: HTTPException) -> Response:
        sentence = {404: "there is no such page.", 405: "this page takes another method."}
        return self._refusal(request, sentence.get(error.status_code, error.detail), error.status_code, error.headers)

    def _refusal(
        self, request: Request, sentence: str, status: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        # A lone surrogate in what is quoted has no UTF-8.
        clean = " ".join(sentence.encode("utf-8", "replace").decode().split())
        return self._answer(request, {"error": clean}, status, headers=headers)

    def _answer(
        self,
        request: Request,
        content: Mapping[str, Any],
        status: int = 200,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Response:
        self.requests.add(status, seconds)
        form = _answer_form(request)
        # An unread body would be taken for the next request: such a connection is not used again.
        extra = {"Connection": "close"} if status in (401, 408, 413, 415, 421) else {}
        return Response(
            wire.encode(content, form), status, media_type=wire.TYPES[form], headers={**extra, **(headers or {})}
        )


def _answer_form(request: Request) -> Form:
    try:
        asked_in = wire.form_of(request.headers.get("content-type", "application/json"))
    except BadRequest:
        asked_in = "json"
    return wire.answer_form(request.headers.get("accept", ""), asked_in)
