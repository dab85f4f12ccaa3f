"""Trajectories out of a run's saved rollouts, for whoever trains on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lecritique.core.errors import DataError
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.trajectory import Trajectory

_COLUMNS = (
    "row", "attempt", "member", "segment_index", "task_id", "status", "reward", "token_ids", "action_mask",
    "turn_index", "sampler_logprobs",
)  # fmt: skip


def saved_trajectories(run: Path) -> Iterator[tuple[str, Trajectory]]:
    """Every saved segment that has tokens and a reward, with its task's id, in order of step.

    The policy's version was not saved: it is 0 on action tokens.

    Args:
        run: a run directory.

    Raises:
        DataError: it has no saved rollouts, or a file or row that is not one.
    """
    files = sorted((run / "rollouts").glob("step-*.parquet"))
    if not files:
        raise DataError(f"'{run}' has no saved rollouts (rollouts/step-*.parquet); see 'run.save_rollouts_every'.")
    for file in files:
        for index, record in enumerate(_records(file)):
            if record["reward"] is None or record["token_ids"] is None:
                continue
            try:
                yield str(record["task_id"]), _trajectory(record)
            except (ValueError, TypeError) as error:
                raise DataError(f"{file}, row {index}: not a saved rollout ({error})") from error


def _records(file: Path) -> list[dict[str, Any]]:
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file}: not a readable Parquet file ({type(error).__name__})") from error
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise DataError(f"{file}: no column {', '.join(missing)}; expected saved rollouts")
    records: list[dict[str, Any]] = table.select(list(_COLUMNS)).to_pylist()
    return records


def _trajectory(record: Mapping[str, Any]) -> Trajectory:
    mask = np.array(record["action_mask"], dtype=np.bool_)
    return Trajectory(
        rollout_id=RolloutId(GroupId(int(record["row"]), int(record["attempt"])), int(record["member"])),
        segment_index=int(record["segment_index"]),
        token_ids=np.array(record["token_ids"], dtype=np.int64),
        action_mask=mask,
        sampler_logprobs=np.array(record["sampler_logprobs"], dtype=np.float64),
        turn_index=np.array(record["turn_index"], dtype=np.int64),
        policy_version=np.where(mask, 0, -1),
        episode_return=float(record["reward"]),
        truncated=record["status"] == "truncated",
    )
