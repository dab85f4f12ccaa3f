"""The value evaluator: serves V(h, z) from one published critic version.

`ValueEvaluator` scores on the caller's thread with a copy, `TrainersEvaluator` with the trainer's own weights;
`critic/serving.py` scores on a thread of its own with the same three functions, so that all give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lecritique.core.errors import DataError, DivergenceError
from lecritique.core.trajectory import ValuePrediction, ValueRequest
from lecritique.core.weights import WeightManifest
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.adapters import load_own_weights
from lecritique.models.scoring import TokenRow, token_row, values
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import WeightStore


class ValueEvaluator:
    """Scores trajectories with its own copy of the critic.

    Args:
        model: its own copy, not shared with the trainer.
        store: where published versions are opened.
        max_tokens: padded tokens of one forward pass.
        context_length: longest sequence, context included, that the critic can read.
    """

    def __init__(self, model: ValueModel, store: WeightStore, *, max_tokens: int, context_length: int) -> None:
        self._model = model
        self._store = store
        self._max_tokens = max_tokens
        self._context_length = context_length
        self.version = -1

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve this version from now on."""
        load_own_weights(self._model, self._store.open(manifest))
        self.version = manifest.version

    def score(self, requests: Sequence[ValueRequest]) -> list[ValuePrediction]:
        """Values of all requests from the current version, in their order; 0 off the action mask.

        Raises:
            DataError: a sequence that with its context is over the critic's limit.
            DivergenceError: a value that is not finite.
        """
        rows = rows_of(requests, context_length=self._context_length)
        return predictions(requests, values(self._model, rows, max_tokens=self._max_tokens), version=self.version)


class TrainersEvaluator:
    """Scores with the trainer's own weights, whole or in shards: no copy, between its updates alone.

    Args:
        trainer: of the critic.
        context_length: longest sequence, context included, that the critic can read.
    """

    def __init__(self, trainer: ValueTrainer, *, context_length: int) -> None:
        self._trainer = trainer
        self._context_length = context_length
        self.version = -1

    def adopt(self, manifest: WeightManifest) -> None:
        """The trainer's weights are what it has just published."""
        self.version = manifest.version

    def score(self, requests: Sequence[ValueRequest]) -> list[ValuePrediction]:
        """As `ValueEvaluator.score`."""
        rows = rows_of(requests, context_length=self._context_length)
        return predictions(requests, self._trainer.values(rows), version=self.version)


def rows_of(requests: Sequence[ValueRequest], *, context_length: int) -> list[TokenRow]:
    """What the critic reads for each request.

    Raises:
        DataError: a sequence that with its context is over `context_length` tokens.
    """
    rows = [token_row(request.trajectory, request.context) for request in requests]
    for request, row in zip(requests, rows, strict=True):
        if row.read_tokens > context_length:
            raise DataError(
                f"rollout {request.trajectory.rollout_id} has {row.read_tokens} tokens with the critic's "
                f"context, over the model's limit of {context_length}."
            )
    return rows


def predictions(
    requests: Sequence[ValueRequest], scored: Sequence[NDArray[np.float64]], *, version: int
) -> list[ValuePrediction]:
    """The values of action tokens put at their places in each trajectory; 0 off the action mask.

    Raises:
        DivergenceError: a value that is not finite.
    """
    found = []
    for request, scored_N in zip(requests, scored, strict=True):
        rollout_id = request.trajectory.rollout_id
        if not np.isfinite(scored_N).all():
            raise DivergenceError(f"critic version {version} gave a value that is not finite for rollout {rollout_id}.")
        values_T = np.zeros(len(request.trajectory))
        values_T[request.trajectory.action_mask] = scored_N
        found.append(ValuePrediction(rollout_id=rollout_id, values=values_T, value_version=version))
    return found
