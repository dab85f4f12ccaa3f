"""Saved rollouts: one Parquet file per saved step, per-token columns as lists."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lecritique.core.ids import RolloutId
from lecritique.core.rollout import Rollout
from lecritique.core.trajectory import ContextInsertion, CreditedTrajectory, Judged
from lecritique.models.chat import ChatRenderer

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("row", pa.int64()),
        ("attempt", pa.int64()),
        ("member", pa.int64()),
        ("segment_index", pa.int64()),
        ("task_id", pa.string()),
        ("status", pa.string()),
        ("estimator", pa.string()),
        ("reward", pa.float64()),
        ("prompt", pa.string()),
        ("token_text", pa.list_(pa.string())),
        ("token_ids", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.bool_())),
        ("turn_index", pa.list_(pa.int16())),
        ("sampler_logprobs", pa.list_(pa.float32())),
        ("advantages", pa.list_(pa.float32())),
        ("values", pa.list_(pa.float32())),
        ("value_targets", pa.list_(pa.float32())),
        ("baseline", pa.float64()),
        ("old_logprobs", pa.list_(pa.float32())),
        ("teacher_logprobs", pa.list_(pa.float32())),
        ("modulated_advantages", pa.list_(pa.float32())),
        ("rho", pa.float64()),
        ("value_version", pa.int64()),
        ("context", pa.string()),
    ]
)

_ROWS_OF_A_ROW_GROUP = 2048
_OF_A_TEACHER = ("old_logprobs", "teacher_logprobs", "modulated_advantages")


def save_rollouts(
    folder: Path,
    *,
    step: int,
    rollouts: Sequence[Rollout],
    credited: Sequence[CreditedTrajectory],
    contexts: Mapping[RolloutId, ContextInsertion | None],
    renderer: ChatRenderer,
    judged: Mapping[tuple[RolloutId, int], Judged] | None = None,
) -> Path:
    """Write the rollouts of one step, failed ones included, with what the critic alone read of each.

    Args:
        folder: where files of saved rollouts go.
        step: names the file.
        rollouts: what is saved, whole groups.
        credited: their trajectories, where they have a reward.
        contexts: what the critic alone read.
        renderer: says what each token reads.
        judged: what a teacher made of them, by rollout and segment.
    """
    credit_of = {member.trajectory.rollout_id: member for member in credited}
    rows = [
        _row(rollout, credit_of.get(rollout.rollout_id), contexts.get(rollout.rollout_id), renderer, judged or {})
        | {"step": step}
        for rollout in rollouts
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:05d}.parquet"
    aside = path.with_suffix(".tmp")
    # Row groups of a size at which a reader may look for one row of many.
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), aside, row_group_size=_ROWS_OF_A_ROW_GROUP)
    os.replace(aside, path)
    return path


def _row(
    rollout: Rollout,
    credit: CreditedTrajectory | None,
    context: ContextInsertion | None,
    renderer: ChatRenderer,
    judged: Mapping[tuple[RolloutId, int], Judged],
) -> dict[str, Any]:
    group = rollout.rollout_id.group
    row: dict[str, Any] = {
        "row": group.row,
        "attempt": group.attempt,
        "member": rollout.rollout_id.member,
        "segment_index": 0,
        "task_id": rollout.task.task_id,
        "status": rollout.status,
        "reward": rollout.reward,
        "prompt": "\n".join(message.content for message in rollout.task.messages),
        "context": None if context is None else context.text,
    }
    if credit is None:
        return row
    trajectory = credit.trajectory
    by_teacher = judged.get((trajectory.rollout_id, trajectory.segment_index))
    return row | {
        "estimator": credit.estimator,
        "segment_index": trajectory.segment_index,
        "token_text": renderer.token_texts(trajectory.token_ids),
        "token_ids": trajectory.token_ids.astype(np.int32),
        "action_mask": trajectory.action_mask,
        "turn_index": trajectory.turn_index.astype(np.int16),
        "sampler_logprobs": trajectory.sampler_logprobs.astype(np.float32),
        "advantages": credit.advantages.astype(np.float32),
        "values": _narrow(credit.values),
        "value_targets": credit.value_targets.astype(np.float32),
        **{name: _narrow(getattr(by_teacher, name, None)) for name in _OF_A_TEACHER},
        "baseline": credit.baseline,
        "rho": credit.rho,
        "value_version": credit.value_version,
    }


def _narrow(column: NDArray[np.float64] | None) -> NDArray[np.float32] | None:
    return None if column is None else column.astype(np.float32)
