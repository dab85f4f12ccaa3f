"""Columns hold trajectories, contexts, samples and credit whole: every field, every bit."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import trajectory

from lecritique.core.columns import (
    context_columns,
    contexts_from,
    ragged,
    sample_columns,
    samples_from,
    trajectories_from,
    trajectory_columns,
    unragged,
)
from lecritique.core.errors import CheckpointError
from lecritique.core.trajectory import ContextInsertion, Trajectory, ValueSample

CONTEXTS = (
    None,
    ContextInsertion(position=0, token_ids=np.array([5, 6])),
    ContextInsertion(position=3, token_ids=np.zeros(0, dtype=np.int64), text="worked ∑ \x00 out", trimmed=True),
)


def fields(one: Any) -> Any:
    """All that a record holds, arrays with type and bytes."""
    if dataclasses.is_dataclass(one):
        return {field.name: fields(getattr(one, field.name)) for field in dataclasses.fields(one)}
    if isinstance(one, np.ndarray):
        return str(one.dtype), one.shape, one.tobytes()
    return [fields(each) for each in one] if isinstance(one, tuple) and not hasattr(one, "_fields") else one


def several() -> list[Trajectory]:
    return [
        trajectory([0, 1, 1, 0, 1], member=1, row=3, version=7),
        trajectory([], member=2),
        dataclasses.replace(trajectory([0, 0], member=3, episode_return=-0.25), segment_index=2, truncated=True),
    ]


def sample(number: int, segments: list[Trajectory], *, old: bool, context: ContextInsertion | None) -> ValueSample:
    rng = np.random.default_rng(number)
    columns = [tuple(rng.normal(size=len(t)) for t in segments) for _ in range(2)]
    return ValueSample(
        rollout_id=trajectory([0], member=number).rollout_id,
        trajectories=tuple(segments),
        contexts=(context,) * len(segments),
        value_targets=columns[0],
        value_version=number,
        old_values=columns[1] if old else None,
    )


def test_trajectories_come_back_whole() -> None:
    back = trajectories_from(trajectory_columns(several()))
    assert [fields(t) for t in back] == [fields(t) for t in several()]
    assert trajectories_from(trajectory_columns([])) == []


def test_contexts_come_back_whole() -> None:
    assert [fields(c) for c in contexts_from(context_columns(CONTEXTS))] == [fields(c) for c in CONTEXTS]


def test_samples_with_several_segments_with_and_without_old_values_come_back_whole() -> None:
    samples = [
        sample(0, several(), old=True, context=CONTEXTS[1]),
        sample(1, several()[:1], old=False, context=None),
        sample(2, several()[1:], old=True, context=CONTEXTS[2]),
    ]
    assert [fields(s) for s in samples_from(sample_columns(samples))] == [fields(s) for s in samples]
    assert samples_from(sample_columns([])) == []


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (Trajectory, trajectory_columns(several())),
        (ContextInsertion, context_columns(CONTEXTS)),
        (ValueSample, sample_columns([])),
    ],
)
def test_no_field_is_forgotten(kind: type, columns: dict) -> None:
    """A field that is added to a record has to be added to its columns."""
    renamed = {"rollout_id": "ids"}
    assert {renamed.get(f.name, f.name) for f in dataclasses.fields(kind)} - {"segments"} == set(columns) - {"segments"}


@given(st.lists(st.none() | st.lists(st.integers(-(2**62), 2**62), max_size=5), max_size=8))
def test_ragged_undone(rows: list) -> None:
    arrays = [None if row is None else np.array(row, dtype=np.int64) for row in rows]
    back = unragged(ragged(arrays, np.int64))
    assert [None if a is None else a.tolist() for a in back] == rows
    assert all(a is None or a.dtype == np.int64 for a in back)


def test_they_are_few_columns_however_many_records() -> None:
    def leaves(node: Any) -> int:
        return sum(map(leaves, node.values())) if isinstance(node, dict) else 1

    many = [sample(number, several(), old=True, context=None) for number in range(9)]
    assert leaves(sample_columns([])) == leaves(sample_columns(many))
    json.dumps(context_columns(CONTEXTS)["text"])


def test_columns_that_do_not_add_up_are_refused() -> None:
    columns = ragged([np.zeros(3)], np.float64)
    with pytest.raises(CheckpointError, match="2 entries, its lengths add up to 3"):
        unragged(columns | {"flat": columns["flat"][:2]})
    held = sample_columns([sample(1, several(), old=False, context=None)])
    with pytest.raises(CheckpointError, match="3 saved segments belong to samples of 2"):
        samples_from(held | {"segments": np.array([2])})
