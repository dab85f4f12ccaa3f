"""What a checkpoint holds of a run's roles, and how they get it back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from lecritique.core.errors import CheckpointError
from lecritique.runtime.build import Parts


def run_state(parts: Parts) -> dict[str, Any]:
    """What a checkpoint holds of the roles. Seeds, data order and draws are hashes: nothing of them is saved."""
    return {
        "rows": _rows(parts),
        "learner": parts.learner.state(),
        "ledger": parts.ledger.state(),
        "spending": parts.spending.state(),
    }


def restore_run(parts: Parts, state: Mapping[str, Any]) -> int:
    """Put the roles where a checkpoint left them; the steps that were done.

    Raises:
        CheckpointError: it is of another run, or of other data.
    """
    try:
        if state["rows"] != _rows(parts):
            raise CheckpointError(
                f"the run trained on {state['rows']['count']} rows of 'task.type' = '{parts.config.task.type}', now "
                f"there are {len(parts.data.rows)} or others: the data have changed."
            )
        parts.learner.restore(state["learner"])
        parts.ledger.restore(state["ledger"])
        if "spending" in state:  # not in checkpoints of earlier versions, whose spending is not known
            parts.spending.restore(state["spending"])
        step = int(state["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint does not hold what this version reads: {error!r}") from error
    parts.engine.adopt(parts.learner.policy.publish())
    return step


def versions_of(parts: Parts) -> dict[str, int]:
    """The versions of the weights that the roles hold."""
    versions = {"policy": parts.learner.policy.version}
    if parts.learner.values is not None:
        versions["critic"] = parts.learner.values.trainer.updates
    return versions


def _rows(parts: Parts) -> dict[str, Any]:
    """Which rows are trained on: a run goes on with the same ones in the same order."""
    digest = hashlib.blake2b(np.array(parts.data.rows, dtype=np.int64).tobytes(), digest_size=16)
    return {"count": len(parts.data.rows), "digest": digest.hexdigest()}
