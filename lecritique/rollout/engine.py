"""The engine protocol, and the embedded engine that serves it inside the process."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol

from lecritique.core.errors import EngineFailure
from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.weights import WeightManifest
from lecritique.models.adapters import copied, load_own_weights
from lecritique.models.weights import State, WeightStore
from lecritique.rollout.sampler import Sampler


class Engine(Protocol):
    """Continues token ids. Every engine is driven alike, whatever runs behind it."""

    def submit(self, request: GenerateRequest) -> Future[Completion]:
        """Queue a request; the future holds its completion, or an EngineFailure."""
        ...

    def cancel(self, request_id: str) -> None:
        """Give up a request; its future gets what was sampled, with finish reason `cancelled`."""
        ...

    def oldest_version(self, request_id: str) -> int | None:
        """The policy version that sampled the request's first token; None before that, or when it is not here."""
        ...

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve these weights from the next chunk on; no cached key survives."""
        ...

    def advance(self) -> bool:
        """Do a bounded piece of work on the caller's thread; False when nothing is left to do.

        Engines with threads or processes of their own return False.
        """
        ...

    def close(self) -> None:
        """Stop; unfinished futures are cancelled."""
        ...


class EmbeddedEngine:
    """Decodes with its own copy of the policy on the caller's thread, a chunk at each `advance`.

    Only `adopt` may be called from another thread.
    """

    def __init__(
        self, model: Any, store: WeightStore, *, max_rows: int, chunk_tokens: int, prefill_tokens: int
    ) -> None:
        self._store = store
        self._sampler = Sampler(
            copied(model), max_rows=max_rows, chunk_tokens=chunk_tokens, prefill_tokens=prefill_tokens
        )
        self._futures: dict[str, Future[Completion]] = {}
        self._adopting: tuple[WeightManifest, State] | None = None
        self._lock = threading.Lock()

    def submit(self, request: GenerateRequest) -> Future[Completion]:
        """Queue a request."""
        if request.request_id in self._futures:
            raise ValueError(f"request {request.request_id} is already queued")
        future: Future[Completion] = Future()
        self._futures[request.request_id] = future
        self._sampler.add(request)
        return future

    def cancel(self, request_id: str) -> None:
        """Give up a request."""
        completion = self._sampler.cancel(request_id)
        if completion is not None:
            self._futures.pop(request_id).set_result(completion)

    def oldest_version(self, request_id: str) -> int | None:
        """The version of the request's first sampled token."""
        return self._sampler.first_version(request_id)

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve these weights from the next chunk on."""
        # Opened now, not when they are loaded: by then a newer version may have taken their place in the store.
        state = self._store.open(manifest)
        with self._lock:
            self._adopting = (manifest, state)

    def advance(self) -> bool:
        """Decode one chunk."""
        self._load_adopted()
        try:
            completions = self._sampler.chunk()
        except RuntimeError as error:
            self._fail(EngineFailure(f"the embedded engine could not decode: {error}"))
            return False
        for completion in completions:
            self._futures.pop(completion.request_id).set_result(completion)
        return self._sampler.busy

    def close(self) -> None:
        """Cancel what is unfinished."""
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()
        self._sampler.clear()

    def _load_adopted(self) -> None:
        with self._lock:
            adopting, self._adopting = self._adopting, None
        if adopting is None:
            return
        manifest, state = adopting
        load_own_weights(self._sampler.model, state)
        self._sampler.version = manifest.version
        self._sampler.forget_cache()

    def _fail(self, error: EngineFailure) -> None:
        for future in self._futures.values():
            future.set_exception(error)
        self._futures.clear()
        # What failed must not come back in the next chunk, when nobody waits for it any more.
        self._sampler.clear()
