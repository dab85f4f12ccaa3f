"""The text format that Prometheus reads, written by hand: a dozen numbers need no client library."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from lecritique.critic.serving import EvaluatorService

# Upper bounds of the latency histogram, seconds.
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServedRequests:
    """Answers by status, and how long those with values took. Used from one thread, the event loop's."""

    def __init__(self) -> None:
        self._by_status: Counter[int] = Counter()
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0
        self._reloads: Counter[str] = Counter()

    @property
    def answered(self) -> int:
        """Requests for values that were answered with values."""
        return sum(self._buckets)

    def add(self, status: int, seconds: float | None) -> None:
        """Count an answer; `seconds` where it had values."""
        self._by_status[status] += 1
        if seconds is not None:
            self._buckets[bisect_left(_BOUNDS, seconds)] += 1
            self._seconds += seconds

    def add_reload(self, outcome: str) -> None:
        """Count a reload: adopted or refused."""
        self._reloads[outcome] += 1

    def lines(self) -> list[str]:
        """As Prometheus reads it."""
        name = "lecritique_value_request_seconds"
        lines = _head("lecritique_http_responses_total", "counter", "Answers by HTTP status.")
        lines += [f'lecritique_http_responses_total{{status="{s}"}} {n}' for s, n in sorted(self._by_status.items())]
        lines += _head("lecritique_reloads_total", "counter", "Requests to load other weights, by outcome.")
        lines += [f'lecritique_reloads_total{{outcome="{o}"}} {n}' for o, n in sorted(self._reloads.items())]
        lines += _head(name, "histogram", "Seconds from a request for values to its answer.")
        total = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._seconds!r}", f"{name}_count {total}"]


def metrics_text(service: EvaluatorService, requests: ServedRequests, *, swaps: int) -> str:
    """Everything, as one page."""
    counts = service.counts
    numbers = (
        ("value_version", "gauge", "Version of the weights that serve.", service.version),
        ("value_swaps_total", "counter", "Changes of the weights that serve.", swaps),
        ("value_sequences_total", "counter", "Sequences scored.", counts.requests),
        ("value_tokens_total", "counter", "Tokens read, contexts included.", counts.tokens),
        ("value_batches_total", "counter", "Batches scored.", counts.batches),
        ("value_batch_fill_total", "counter", "Summed fill of the batches, each from 0 to 1.", counts.fill),
        ("value_failed_total", "counter", "Requests that scoring failed for.", counts.failed),
        ("value_overloaded_total", "counter", "Requests refused because the queue was full.", counts.overloaded),
        ("value_queue_tokens", "gauge", "Tokens that wait.", service.queued_tokens),
    )
    lines: list[str] = []
    for name, kind, text, value in numbers:
        lines += [*_head(f"lecritique_{name}", kind, text), f"lecritique_{name} {value!r}"]
    return "\n".join([*lines, *requests.lines()]) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
