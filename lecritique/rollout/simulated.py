"""An engine that takes its time instead of computing: for measurements and tests of everything around an engine."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.seeds import uniforms
from lecritique.core.weights import WeightManifest


class SimulatedEngine:
    """Answers each request after a latency of its own, any number at once, with arbitrary tokens.

    Args:
        latency_seconds: of a request.
        tokens: sampled ids of a request, the stop id included.
        logprob: claimed for every token, nats.
    """

    def __init__(
        self,
        *,
        latency_seconds: Callable[[GenerateRequest], float],
        tokens: Callable[[GenerateRequest], list[int]],
        logprob: float = -1.0,
    ) -> None:
        self._latency_seconds = latency_seconds
        self._tokens = tokens
        self._logprob = logprob
        self._due: list[tuple[float, str]] = []
        self._held: dict[str, tuple[GenerateRequest, Future[Completion], int]] = {}
        self._version = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="simulated engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerateRequest) -> Future[Completion]:
        """Answer after the request's latency."""
        future: Future[Completion] = Future()
        with self._changed:
            self._held[request.request_id] = (request, future, self._version)
            heapq.heappush(self._due, (time.monotonic() + self._latency_seconds(request), request.request_id))
            self._changed.notify()
        return future

    def cancel(self, request_id: str) -> None:
        """Answer at once, with nothing."""
        with self._changed:
            held = self._held.pop(request_id, None)
        if held is not None:
            held[1].set_result(self._completion(held[0], [], held[2], cancelled=True))

    def oldest_version(self, request_id: str) -> int | None:
        """The version that was served when the request came: its first token is sampled at once."""
        with self._changed:
            held = self._held.get(request_id)
            return held[2] if held else None

    def adopt(self, manifest: WeightManifest) -> None:
        """New requests are of this version."""
        with self._changed:
            self._version = manifest.version

    def advance(self) -> bool:
        """Nothing to do: it has a thread of its own."""
        return False

    def close(self) -> None:
        """Stop; unfinished futures are cancelled."""
        with self._changed:
            self._closed = True
            held, self._held = self._held, {}
            self._changed.notify()
        for _, future, _ in held.values():
            future.cancel()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not (self._due and self._due[0][0] <= time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                _, request_id = heapq.heappop(self._due)
                held = self._held.pop(request_id, None)
            if held is not None:
                request, future, version = held
                future.set_result(self._completion(request, self._tokens(request), version, cancelled=False))

    def _completion(self, request: GenerateRequest, tokens: list[int], version: int, *, cancelled: bool) -> Completion:
        return Completion(
            request_id=request.request_id,
            token_ids=np.array(tokens, dtype=np.int64),
            logprobs=np.full(len(tokens), self._logprob),
            policy_version=np.full(len(tokens), version, dtype=np.int64),
            finish_reason="cancelled" if cancelled else "stop",
        )


def one_in(number: int, *, seconds: float, slow_seconds: float) -> Callable[[GenerateRequest], float]:
    """A latency that is `slow_seconds` for one rollout in `number`, the same ones in every run."""

    def latency(request: GenerateRequest) -> float:
        slow = uniforms([request.seed], [0])[0] < 1.0 / number
        return slow_seconds if slow else seconds

    return latency
