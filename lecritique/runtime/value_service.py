"""Where the evaluator of an asynchronous run gets its weights from: `runtime.placement`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from lecritique.config.schema import RunConfig
from lecritique.core.trajectory import ValuePrediction, ValueRequest
from lecritique.core.weights import WeightManifest
from lecritique.critic.served import Colocated, DoubleBuffered, Leased, ServedModel
from lecritique.critic.serving import EvaluatorService
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.scoring import values
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import WeightStore
from lecritique.runtime.timeline import Timeline


class ValueService:
    """The evaluator thread with its served model, as the value system and the orchestrator use it.

    Args:
        evaluator: answers requests.
        served: its weights.
        exclusive: entered for whole optimizer steps of the trainer; keeps a colocated evaluator out meanwhile.
    """

    def __init__(
        self,
        evaluator: EvaluatorService,
        served: TimedModel,
        exclusive: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.evaluator = evaluator
        self.exclusive = exclusive
        self._served = served

    @property
    def version(self) -> int:
        """The version that serves."""
        return self.evaluator.version

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve this version from the next batch on."""
        self.evaluator.adopt(manifest)

    def score(self, requests: Sequence[ValueRequest]) -> list[ValuePrediction]:
        """Values of all requests from one version, in their order; waits for them."""
        return self.evaluator.submit(requests).result()

    def time_with(self, timeline: Timeline) -> None:
        """Enter what the evaluator does into a timeline."""
        self._served.timeline = timeline


def dedicated(model: ValueModel, store: WeightStore, config: RunConfig, *, context_length: int) -> ValueService:
    """Own copies of the critic, swapped between batches (LC appendix B)."""
    return served_values(DoubleBuffered(model, store), config, context_length=context_length)


def colocated(trainer: ValueTrainer, config: RunConfig, *, context_length: int) -> ValueService:
    """The trainer's own weights: whole optimizer steps alternate with whole batches of requests."""
    shared = Colocated(trainer.model, lambda: trainer.updates)
    return served_values(shared, config, context_length=context_length, exclusive=shared.exclusive)


def served_values(
    model: ServedModel,
    config: RunConfig,
    *,
    context_length: int,
    exclusive: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    score: Callable[..., list[NDArray[np.float64]]] = values,
) -> ValueService:
    """The evaluator thread over a served model; `exclusive` and `score` as in `ValueService` and `EvaluatorService`."""
    served = TimedModel(model)
    runtime = config.runtime
    assert runtime.evaluator_queue_tokens is not None
    service = EvaluatorService(
        served,
        max_tokens=runtime.micro_batch_tokens,
        context_length=context_length,
        max_batch_tokens=runtime.micro_batch_tokens,
        max_wait_seconds=runtime.evaluator_wait_seconds,
        max_queue_tokens=runtime.evaluator_queue_tokens,
        score=score,
    )
    return ValueService(service, served, exclusive)


class TimedModel:
    """A served model whose leases are spans of the timeline."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self.timeline: Timeline | None = None

    @property
    def version(self) -> int:
        """The version that serves."""
        return self._served.version

    @property
    def swaps(self) -> int:
        """How often the served weights have changed."""
        return self._served.swaps

    @contextlib.contextmanager
    def leased(self) -> Iterator[Leased]:
        """The model for one batch."""
        with self._served.leased() as leased:
            if self.timeline is None:
                yield leased
            else:
                with self.timeline.span("value evaluator", "score"):
                    yield leased

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve this version after the batch that is being scored."""
        self._served.adopt(manifest)

    def on_change(self, call: Callable[[], None]) -> None:
        """Have `call` called after each change of version."""
        self._served.on_change(call)
