"""Trajectories, contexts and value samples as a few long columns, and back: what a checkpoint holds of them.

Every list of arrays becomes one concatenated array and its lengths; length -1 stands for None. Nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lecritique.core.errors import CheckpointError
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.trajectory import ContextInsertion, Trajectory, ValueSample

Columns = dict[str, Any]

_TOKEN_COLUMNS: Mapping[str, DTypeLike] = {
    "token_ids": np.int64,
    "action_mask": np.bool_,
    "sampler_logprobs": np.float64,
    "turn_index": np.int64,
    "policy_version": np.int64,
}


def ragged(arrays: Sequence[NDArray[Any] | None], dtype: DTypeLike) -> Columns:
    """Arrays of any lengths as one [sum of lengths] and `lengths` [number of arrays], -1 for None."""
    present = [np.asarray(array, dtype=dtype) for array in arrays if array is not None]
    flat = np.concatenate(present) if present else np.zeros(0, dtype=dtype)
    lengths = np.array([-1 if array is None else len(array) for array in arrays], dtype=np.int64)
    return {"flat": flat, "lengths": lengths}


def unragged(columns: Mapping[str, Any]) -> list[NDArray[Any] | None]:
    """The arrays of `ragged`.

    Raises:
        CheckpointError: the lengths do not add up.
    """
    flat, lengths = columns["flat"], columns["lengths"]
    sizes = np.maximum(lengths, 0)
    if int(sizes.sum()) != len(flat):
        raise CheckpointError(f"a saved column has {len(flat)} entries, its lengths add up to {int(sizes.sum())}")
    ends = np.cumsum(sizes)
    return [
        None if length < 0 else flat[end - length : end] for length, end in zip(lengths.tolist(), ends, strict=True)
    ]


def ids_columns(ids: Sequence[RolloutId]) -> NDArray[np.int64]:
    """Row, attempt and member of each, [N, 3]."""
    return np.array([(*one.group, one.member) for one in ids], dtype=np.int64).reshape(len(ids), 3)


def ids_from(column: NDArray[np.int64]) -> list[RolloutId]:
    """The ids of `ids_columns`."""
    return [RolloutId(GroupId(row, attempt), member) for row, attempt, member in column.tolist()]


def trajectory_columns(trajectories: Sequence[Trajectory]) -> Columns:
    """All fields of the trajectories."""
    return {
        "ids": ids_columns([t.rollout_id for t in trajectories]),
        "segment_index": np.array([t.segment_index for t in trajectories], dtype=np.int64),
        "episode_return": np.array([t.episode_return for t in trajectories], dtype=np.float64),
        "truncated": np.array([t.truncated for t in trajectories], dtype=np.bool_),
        **{name: ragged([getattr(t, name) for t in trajectories], dtype) for name, dtype in _TOKEN_COLUMNS.items()},
    }


def trajectories_from(columns: Mapping[str, Any]) -> list[Trajectory]:
    """The trajectories of `trajectory_columns`."""
    per_token = {name: unragged(columns[name]) for name in _TOKEN_COLUMNS}
    alone = (columns[name].tolist() for name in ("segment_index", "episode_return", "truncated"))
    return [
        Trajectory(
            rollout_id=rollout_id,
            segment_index=segment,
            episode_return=episode_return,
            truncated=truncated,
            **{name: column[index] for name, column in per_token.items()},  # type: ignore[arg-type]
        )
        for index, (rollout_id, segment, episode_return, truncated) in enumerate(
            zip(ids_from(columns["ids"]), *alone, strict=True)
        )
    ]


def context_columns(contexts: Sequence[ContextInsertion | None]) -> Columns:
    """All fields of the contexts; position -1 stands for None."""
    return {
        "position": np.array([-1 if c is None else c.position for c in contexts], dtype=np.int64),
        "trimmed": np.array([c is not None and c.trimmed for c in contexts], dtype=np.bool_),
        "token_ids": ragged([None if c is None else c.token_ids for c in contexts], np.int64),
        "text": ["" if c is None else c.text for c in contexts],
    }


def contexts_from(columns: Mapping[str, Any]) -> list[ContextInsertion | None]:
    """The contexts of `context_columns`."""
    rows = zip(
        columns["position"].tolist(),
        columns["trimmed"].tolist(),
        unragged(columns["token_ids"]),
        columns["text"],
        strict=True,
    )
    return [
        None if ids is None else ContextInsertion(position=position, token_ids=ids, text=text, trimmed=trimmed)
        for position, trimmed, ids, text in rows
    ]


def sample_columns(samples: Sequence[ValueSample]) -> Columns:
    """All fields of the samples, their segments one after the other."""
    segments = [trajectory for sample in samples for trajectory in sample.trajectories]
    targets = [column for sample in samples for column in sample.value_targets]
    old = [column for s in samples for column in (s.old_values or (None,) * len(s.trajectories))]
    return {
        "ids": ids_columns([sample.rollout_id for sample in samples]),
        "segments": np.array([len(sample.trajectories) for sample in samples], dtype=np.int64),
        "value_version": np.array([sample.value_version for sample in samples], dtype=np.int64),
        "trajectories": trajectory_columns(segments),
        "contexts": context_columns([context for sample in samples for context in sample.contexts]),
        "value_targets": ragged(targets, np.float64),
        "old_values": ragged(old, np.float64),
    }


def samples_from(columns: Mapping[str, Any]) -> list[ValueSample]:
    """The samples of `sample_columns`."""
    trajectories = trajectories_from(columns["trajectories"])
    contexts = contexts_from(columns["contexts"])
    targets, old = unragged(columns["value_targets"]), unragged(columns["old_values"])
    sizes = columns["segments"].tolist()
    if sum(sizes) != len(trajectories):
        raise CheckpointError(f"{len(trajectories)} saved segments belong to samples of {sum(sizes)}")
    samples, start = [], 0
    for rollout_id, size, version in zip(
        ids_from(columns["ids"]), sizes, columns["value_version"].tolist(), strict=True
    ):
        own = slice(start, start + size)
        start += size
        samples.append(
            ValueSample(
                rollout_id=rollout_id,
                trajectories=tuple(trajectories[own]),
                contexts=tuple(contexts[own]),
                value_targets=tuple(targets[own]),  # type: ignore[arg-type]
                value_version=version,
                old_values=None if any(c is None for c in old[own]) else tuple(old[own]),  # type: ignore[arg-type]
            )
        )
    return samples
