"""The evaluator as a thread of its own (LC appendix B): many ask at once, every answer is from one version.

 submit ──► queue, bounded in tokens ──► batch: waits a little for company ──► lease: one version ──► values ──► futures
   │ full: Overloaded at once               ▲ oldest first; who asks for a newer version stays        │
   └────────────────────────────────────────┴─────────── swap between leases ◄── adopt, trainer's turn┘

A submission is scored whole inside one lease: all its forward passes read the same weights.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lecritique.core.errors import LecritiqueError, Overloaded, RoleFailure
from lecritique.core.trajectory import ValuePrediction, ValueRequest
from lecritique.core.weights import WeightManifest
from lecritique.critic.evaluator import predictions, rows_of
from lecritique.critic.served import ServedModel
from lecritique.models.scoring import TokenRow, values

# Of so many submissions the latest latencies are kept for quantiles.
_LATENCIES_KEPT = 4096


@dataclass(frozen=True, kw_only=True)
class ServiceCounts:
    """What has happened since the start. `tokens` are those that the critic read; `seconds` are summed latencies."""

    submissions: int = 0
    requests: int = 0
    tokens: int = 0
    batches: int = 0
    overloaded: int = 0
    failed: int = 0
    cancelled: int = 0
    fill: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Submission:
    requests: tuple[ValueRequest, ...]
    rows: list[TokenRow]
    tokens: int
    minimum_version: int
    future: Future[list[ValuePrediction]]
    arrived: float = field(default_factory=time.monotonic)


class EvaluatorService:
    """A thread that answers value requests, in batches, from the weights of a `ServedModel`.

    A submission that is alone in its batch gets `ValueEvaluator`'s numbers to the last bit; submissions scored
    together agree with it to rounding. With `max_batch_tokens` 1 every submission is scored alone, so that no number
    depends on timing.

    Args:
        served: the weights.
        max_tokens: padded tokens of one forward pass.
        context_length: longest sequence, context included, that the critic can read.
        max_batch_tokens: submissions are scored together up to so many read tokens; a larger one is scored alone.
        max_wait_seconds: how long the oldest submission may wait for company while the thread has nothing else to do.
        max_queue_tokens: read tokens that may wait; an empty queue takes a submission of any size.
        score: reads rows with a leased model; another one asks a model that lives elsewhere.
    """

    def __init__(
        self,
        served: ServedModel,
        *,
        max_tokens: int,
        context_length: int,
        max_batch_tokens: int,
        max_wait_seconds: float,
        max_queue_tokens: int,
        score: Callable[..., list[NDArray[np.float64]]] = values,
    ) -> None:
        self._served = served
        self._score = score
        self._max_tokens = max_tokens
        self._context_length = context_length
        self._max_batch_tokens = max_batch_tokens
        self._max_wait_seconds = max_wait_seconds
        self._max_queue_tokens = max_queue_tokens
        self._queue: deque[_Submission] = deque()
        self._queued_tokens = 0
        self._state: Literal["new", "running", "stopping", "stopped"] = "new"
        self._failure: BaseException | None = None
        self._counts = self._reported = ServiceCounts()
        self._latencies: deque[float] = deque(maxlen=_LATENCIES_KEPT)
        self._reported_swaps = served.swaps
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="lecritique value evaluator", daemon=True)
        served.on_change(self._wake)

    def start(self) -> None:
        """Start answering; RoleFailure when it was stopped before."""
        with self._changed:
            if self._state != "new":
                raise RoleFailure(f"the value evaluator cannot be started: it is {self._state}.")
            self._state = "running"
        self._thread.start()

    def stop(self, *, finish: bool = True) -> None:
        """Stop, and return when the thread has ended; calling it again does nothing.

        Args:
            finish: answer what is queued first. What waits for a version that is not served, and everything queued
                without `finish`, is cancelled; the batch being scored is answered in any case.
        """
        with self._changed:
            if self._state in ("new", "running"):
                self._state = "stopping" if self._state == "running" else "stopped"
            abandoned = self._emptied() if self._state == "stopped" or not finish else []
            self._changed.notify_all()
        self._cancel(abandoned)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def version(self) -> int:
        """The version that serves; it never falls."""
        return self._served.version

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread before it was stopped, or None."""
        return self._failure

    @property
    def counts(self) -> ServiceCounts:
        """Counts since the start."""
        return self._counts

    @property
    def queued_tokens(self) -> int:
        """Read tokens that wait now."""
        return self._queued_tokens

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve this version after the batch that is being scored; from any thread.

        What cannot be loaded raises here, and the old version goes on serving under its number.
        """
        self._served.adopt(manifest)

    def submit(self, requests: Sequence[ValueRequest], *, minimum_version: int = 0) -> Future[list[ValuePrediction]]:
        """Queue requests that are answered together, in their order, from one version of at least `minimum_version`.

        The future always ends: with the predictions, with DivergenceError (a value is not finite), with RoleFailure
        (the thread failed), or cancelled by `stop`.

        Raises:
            Overloaded: the queue is full; nothing was queued.
            DataError: a sequence that with its context is over the critic's limit.
            RoleFailure: the service has stopped or failed.
        """
        rows = rows_of(requests, context_length=self._context_length)
        submission = _Submission(
            requests=tuple(requests),
            rows=rows,
            tokens=sum(row.read_tokens for row in rows),
            minimum_version=minimum_version,
            future=Future(),
        )
        with self._changed:
            if self._state not in ("new", "running"):
                raise self.ended()
            self._drop_cancelled()
            if self._queue and self._queued_tokens + submission.tokens > self._max_queue_tokens:
                self._counts = replace(self._counts, overloaded=self._counts.overloaded + 1)
                raise Overloaded(
                    f"the value evaluator's queue holds {self._queued_tokens} tokens; {submission.tokens} more are "
                    f"over its limit of {self._max_queue_tokens}."
                )
            self._queue.append(submission)
            self._queued_tokens += submission.tokens
            self._changed.notify_all()
        return submission.future

    def ended(self) -> RoleFailure:
        """What tells that it serves no more; a failure of a role that it relied on keeps its kind."""
        if self._failure is None:
            return RoleFailure("the value evaluator has stopped.")
        kind = type(self._failure) if isinstance(self._failure, RoleFailure) else RoleFailure
        said = f"{type(self._failure).__name__}: {self._failure}"
        failure = kind(f"the value evaluator failed: {said.rstrip('.')}.")
        failure.__cause__ = self._failure
        return failure

    def metrics(self) -> dict[str, float]:
        """Figures since the last call; NaN where nothing was answered.

        Latency is from submission to answer. Batch fill is the mean share of `max_batch_tokens` that a batch had.
        """
        with self._changed:
            now, before, swaps = self._counts, self._reported, self._served.swaps
            latencies = list(self._latencies)
            self._latencies.clear()
            self._reported, self._reported_swaps, before_swaps = now, swaps, self._reported_swaps
            waiting, waiting_tokens = len(self._queue), self._queued_tokens
        batches = now.batches - before.batches
        quantiles = np.quantile(latencies, [0.5, 0.99]).tolist() if latencies else [np.nan, np.nan]
        return {
            "evaluator_latency_p50_seconds": quantiles[0],
            "evaluator_latency_p99_seconds": quantiles[1],
            "evaluator_batches": float(batches),
            "evaluator_batch_fill": (now.fill - before.fill) / batches if batches else np.nan,
            "evaluator_requests": float(now.requests - before.requests),
            "evaluator_tokens": float(now.tokens - before.tokens),
            "evaluator_overloaded": float(now.overloaded - before.overloaded),
            "evaluator_queue_depth": float(waiting),
            "evaluator_queue_tokens": float(waiting_tokens),
            "evaluator_version": float(self.version),
            "evaluator_swaps": float(swaps - before_swaps),
        }

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        batch: list[_Submission] = []
        try:
            while batch := self._next_batch():
                rows = [row for submission in batch for row in submission.rows]
                with self._served.leased() as leased:
                    scored = self._score(leased.model, rows, max_tokens=self._max_tokens)
                # Futures' callbacks run in here: by now the lease is over, and the trainer may have its turn.
                self._answer(batch, scored, leased.version)
        except BaseException as error:  # the thread's boundary: whoever waits must hear of it
            self._fail(error, batch)
        finally:
            with self._changed:
                self._state = "stopped"
                abandoned = self._emptied()
            self._cancel(abandoned)

    def _next_batch(self) -> list[_Submission]:
        """The oldest submissions that may be answered now, once they have waited for company; empty at the end."""
        with self._changed:
            while True:
                self._drop_cancelled()
                chosen, full = self._choose()
                left = chosen[0].arrived + self._max_wait_seconds - time.monotonic() if chosen else None
                if self._state != "stopping" and not full and (left is None or left > 0):
                    self._changed.wait(left)
                    continue
                self._remove(chosen)
                taken = [each for each in chosen if each.future.set_running_or_notify_cancel()]
                if taken or not chosen:
                    return taken

    def _choose(self) -> tuple[list[_Submission], bool]:
        """A batch from the queue in order of arrival, and whether another submission would no longer fit."""
        version, chosen, tokens = self._served.version, [], 0
        for submission in self._queue:
            if submission.minimum_version > version:
                continue
            if chosen and tokens + submission.tokens > self._max_batch_tokens:
                return chosen, True
            chosen.append(submission)
            tokens += submission.tokens
        return chosen, tokens >= self._max_batch_tokens

    def _answer(self, batch: list[_Submission], scored: list[NDArray[np.float64]], version: int) -> None:
        tokens, start = 0, 0
        for submission in batch:
            end = start + len(submission.rows)
            tokens += submission.tokens
            try:
                found = predictions(submission.requests, scored[start:end], version=version)
            except LecritiqueError as error:  # of this submission alone
                self._count(submission, failed=1)
                submission.future.set_exception(error)
            else:
                self._count(submission)
                submission.future.set_result(found)
            start = end
        with self._changed:
            self._counts = replace(
                self._counts,
                batches=self._counts.batches + 1,
                fill=self._counts.fill + min(1.0, tokens / self._max_batch_tokens),
            )

    def _count(self, submission: _Submission, *, failed: int = 0) -> None:
        """Before the future ends, so that who reads the counts after an answer finds it in them."""
        seconds = time.monotonic() - submission.arrived
        with self._changed:
            self._latencies.append(seconds)
            self._counts = replace(
                self._counts,
                submissions=self._counts.submissions + 1,
                requests=self._counts.requests + len(submission.requests),
                tokens=self._counts.tokens + submission.tokens,
                failed=self._counts.failed + failed,
                seconds=self._counts.seconds + seconds,
            )

    def _fail(self, error: BaseException, batch: list[_Submission]) -> None:
        with self._changed:
            self._failure = error
            self._state = "stopped"
            waiting = [each for each in self._emptied() if each.future.set_running_or_notify_cancel()]
            unanswered = [*(each for each in batch if not each.future.done()), *waiting]
            self._counts = replace(self._counts, failed=self._counts.failed + len(unanswered))
        for submission in unanswered:
            submission.future.set_exception(self.ended())

    def _emptied(self) -> list[_Submission]:
        """Everything that waited, taken out of the queue."""
        waiting = list(self._queue)
        self._remove(waiting)
        return waiting

    def _cancel(self, abandoned: list[_Submission]) -> None:
        """Without the lock: a future's callbacks run here, and may ask this service something."""
        for submission in abandoned:
            submission.future.cancel()
            submission.future.set_running_or_notify_cancel()
        with self._changed:
            self._counts = replace(self._counts, cancelled=self._counts.cancelled + len(abandoned))

    def _drop_cancelled(self) -> None:
        """Take out what its owner has cancelled, so that it no longer counts against the bound."""
        gone = [each for each in self._queue if each.future.cancelled()]
        if gone:
            self._remove(gone)
            self._counts = replace(self._counts, cancelled=self._counts.cancelled + len(gone))
            for submission in gone:
                submission.future.set_running_or_notify_cancel()

    def _remove(self, gone: list[_Submission]) -> None:
        dropped = set(map(id, gone))
        self._queue = deque(each for each in self._queue if id(each) not in dropped)
        self._queued_tokens = sum(each.tokens for each in self._queue)
