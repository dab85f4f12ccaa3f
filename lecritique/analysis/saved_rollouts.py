"""Saved rollouts: one Parquet file a step, one row a segment, per-token columns.

Columns stay in Arrow; only the rows that a page shows become Python objects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lecritique.core.errors import DataError

_REQUIRED = ("step", "row", "attempt", "member", "segment_index", "token_text", "action_mask", "turn_index")
_FLOATS = (
    "sampler_logprobs", "old_logprobs", "teacher_logprobs", "advantages", "modulated_advantages", "values",
    "value_targets",
)  # fmt: skip
_PER_TOKEN = ("token_text", "token_ids", "turn_index", *_FLOATS)
_TEXTS = ("task_id", "status", "estimator", "prompt", "context", "token_text")
_NUMBERS = ("reward", "baseline", "rho", *_FLOATS)
_WHOLE = ("step", "row", "attempt", "member", "segment_index", "value_version", "turn_index", "token_ids")
# What is raised when a file is not what it should be: by pyarrow, and by numbers and texts that are none.
MISFITS = (OSError, pa.ArrowException, ValueError, TypeError, OverflowError)

EpisodeId = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedRollout:
    """One row: a segment with T tokens. Per-token arrays [T] are None where the run saved none.

    `advantages` are raw, `modulated_advantages` what a teacher made of them before the update; `old_logprobs` are the
    trainer's before the update.
    """

    step: int
    row: int
    attempt: int
    member: int
    segment_index: int
    task_id: str
    status: str
    estimator: str
    reward: float | None
    baseline: float | None
    rho: float | None
    value_version: int | None
    context: str | None
    prompt: str
    token_text: tuple[str, ...]
    action_mask: NDArray[np.bool_]
    turn_index: NDArray[np.int64]
    sampler_logprobs: NDArray[np.float64] | None
    old_logprobs: NDArray[np.float64] | None
    teacher_logprobs: NDArray[np.float64] | None
    advantages: NDArray[np.float64] | None
    modulated_advantages: NDArray[np.float64] | None
    values: NDArray[np.float64] | None
    value_targets: NDArray[np.float64] | None


class RolloutTable:
    """The rows of one file of saved rollouts."""

    def __init__(self, path: Path, table: pa.Table) -> None:
        self.path = path
        self._table = table
        self._check_kinds()
        self._check_lengths()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def scalars(self, name: str) -> NDArray[np.float64]:
        """A number a row [N], NaN where null or where the file has no such column."""
        if name not in self._table.column_names:
            return np.full(len(self), np.nan)
        return _floats(self._table.column(name).combine_chunks())

    def per_token(self, name: str) -> list[NDArray[np.float64] | None]:
        """A float64 array a row, None where the row saved none."""
        if name not in self._table.column_names:
            return [None] * len(self)
        column = _combined(self._table.column(name))
        bounds = np.concatenate([[0], np.cumsum(_lengths(column))])
        flat = _floats(column.flatten())
        present = column.is_valid().to_pylist()
        return [flat[bounds[i] : bounds[i + 1]] if ok else None for i, ok in enumerate(present)]

    def largest(self, name: str, minus: str | None = None) -> NDArray[np.float64]:
        """Largest finite |entry| of a per-token column over a row's action tokens [N], NaN where it has none.

        Args:
            name: the column.
            minus: a column that is taken off it first.
        """
        names = [name] if minus is None else [name, minus]
        if any(each not in self._table.column_names for each in names):
            return np.full(len(self), np.nan)
        columns = [self._column_of_lists(each) for each in (*names, "action_mask")]
        valid = np.logical_and.reduce([each.is_valid().to_numpy(zero_copy_only=False) for each in columns])
        first, *others, mask = (_floats(each.filter(pa.array(valid)).flatten()) for each in columns)
        row = np.repeat(np.flatnonzero(valid), _lengths(columns[0])[valid])
        sizes = np.abs(first - others[0] if others else first)
        known = (mask == 1) & np.isfinite(sizes)
        found = np.full(len(self), -np.inf)
        np.maximum.at(found, row[known], sizes[known])
        return np.where(np.isfinite(found), found, np.nan)

    def action_tokens(self) -> NDArray[np.int64]:
        """Sampled tokens of a row [N]."""
        mask = self._column_of_lists("action_mask")
        row = np.repeat(np.arange(len(self)), _lengths(mask))
        return np.bincount(row, weights=_floats(mask.flatten()) == 1, minlength=len(self)).astype(np.int64)

    def has(self, name: str) -> bool:
        """Whether the file has that column."""
        return name in self._table.column_names

    def strings(self, name: str) -> pa.DictionaryArray:
        """A text a row [N], each different one held once; null where the row or the file has none."""
        if name not in self._table.column_names:
            return pa.array([None] * len(self), type=pa.string()).dictionary_encode()
        return _combined(self._table.column(name)).cast(pa.string()).dictionary_encode()

    def episodes(self) -> Iterator[tuple[EpisodeId, list[int]]]:
        """Each episode with the rows of its segments in order."""
        keys = [self.scalars(name).astype(np.int64) for name in _REQUIRED[:5]]
        found: dict[EpisodeId, list[tuple[int, int]]] = {}
        for index, (step, row, attempt, member, segment) in enumerate(zip(*keys, strict=True)):
            found.setdefault((int(step), int(row), int(attempt), int(member)), []).append((int(segment), index))
        for episode, segments in found.items():
            yield episode, [index for _, index in sorted(segments)]

    def rollout(self, index: int) -> SavedRollout:
        """Row `index` as an object.

        Raises:
            DataError: its text is not UTF-8, or its numbers are none.
        """
        try:
            record = {name: values[0] for name, values in self._table.slice(index, 1).to_pydict().items()}
            return self._object(record)
        except MISFITS as error:
            raise unreadable(self.path, error) from error

    @staticmethod
    def _object(record: dict[str, Any]) -> SavedRollout:
        return SavedRollout(
            step=record["step"],
            row=record["row"],
            attempt=record["attempt"],
            member=record["member"],
            segment_index=record["segment_index"],
            task_id=str(record.get("task_id") or ""),
            status=str(record.get("status") or "?"),
            estimator=str(record.get("estimator") or "?"),
            reward=record.get("reward"),
            baseline=record.get("baseline"),
            rho=record.get("rho"),
            value_version=record.get("value_version"),
            context=record.get("context"),
            prompt=str(record.get("prompt") or ""),
            token_text=tuple(text if text is not None else "" for text in record["token_text"] or ()),
            action_mask=np.array(record["action_mask"] or [], dtype=np.bool_),
            turn_index=np.array(record["turn_index"] or [], dtype=np.int64),
            **{name: _optional(record.get(name)) for name in _FLOATS},
        )

    def _check_kinds(self) -> None:
        """Columns hold what their names say, so that nothing else gets into a page or its numbers."""
        for names, fits, expected in (
            (_TEXTS, _is_text, "text"),
            (_NUMBERS, _is_number, "numbers"),
            (_WHOLE, pa.types.is_integer, "whole numbers"),
        ):
            for name in names:
                if name not in self._table.column_names:
                    continue
                kind = self._table.schema.field(name).type
                entry = kind.value_type if name in _PER_TOKEN and _is_list(kind) else kind
                if not (pa.types.is_null(entry) or fits(entry)):
                    raise DataError(f"{self.path}: column {name} is {kind}, expected {expected}")
        for name in _REQUIRED[:5]:
            if name in self._table.column_names and self._table.column(name).null_count:
                raise DataError(f"{self.path}: column {name} has rows without a number")

    def _check_lengths(self) -> None:
        tokens = _lengths(self._column_of_lists("action_mask"))
        for name in _PER_TOKEN:
            if name not in self._table.column_names:
                continue
            column = self._column_of_lists(name)
            wrong = column.is_valid().to_numpy(zero_copy_only=False) & (_lengths(column) != tokens)
            if wrong.any():
                index = int(np.flatnonzero(wrong)[0])
                raise DataError(
                    f"{self.path}, row {index}: {name} has {_lengths(column)[index]} entries, "
                    f"expected {tokens[index]}: one per token"
                )

    def _column_of_lists(self, name: str) -> pa.ListArray:
        column = _combined(self._table.column(name))
        if not _is_list(column.type):
            if pa.types.is_null(column.type):
                return pa.array([None] * len(self), type=pa.list_(pa.float64()))
            raise DataError(f"{self.path}: column {name} is {column.type}, expected a list per row")
        return column


def read_rollouts(path: str | Path, columns: Sequence[str] | None = None) -> RolloutTable:
    """Read one file of saved rollouts, all of its columns or `columns` alone.

    Raises:
        DataError: not Parquet, a needed column is missing, or per-token columns differ in length.
    """
    path = Path(path)
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            table = file.read(columns=None if columns is None else [name for name in columns if name in names])
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    _require_columns(path, names)
    return RolloutTable(path, table)


def rollout_batches(path: Path, columns: Sequence[str], *, rows: int = 16_384) -> Iterator[RolloutTable]:
    """Some columns of a file, so many rows at a time: a file larger than the memory is read all the same.

    Raises:
        DataError: see `read_rollouts`.
    """
    with _opened(path) as file:
        names = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=rows, columns=names):
            yield RolloutTable(path, pa.Table.from_batches([batch]))


def read_rows(path: Path, wanted: Sequence[int], *, rows: int = 1024) -> list[SavedRollout]:
    """The rows of a file at these indices, in order; of the file no more is held than a few of its pages.

    Raises:
        DataError: see `read_rollouts`, or there is no such row.
    """
    found: dict[int, SavedRollout] = {}
    remaining = sorted(set(wanted))
    with _opened(path) as file:
        first = 0
        for group in range(file.num_row_groups):
            end = first + file.metadata.row_group(group).num_rows
            while remaining and first <= remaining[0] < end:
                start = first
                for batch in file.iter_batches(batch_size=rows, row_groups=[group]):
                    stop = start + len(batch)
                    here = [index for index in remaining if start <= index < stop]
                    for index in here:
                        one = RolloutTable(path, pa.Table.from_batches([batch.slice(index - start, 1)]))
                        found[index] = one.rollout(0)
                    remaining, start = remaining[len(here) :], stop
                    if not remaining or remaining[0] >= end:
                        break
            first = end
    if missing := [index for index in wanted if index not in found]:
        raise DataError(f"{path}: there is no row {missing[0]}")
    return [found[index] for index in wanted]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """The file, checked for what saved rollouts need; what does not fit while it is read is a DataError."""
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            _require_columns(path, file.schema_arrow.names)
            yield file
    except MISFITS as error:
        raise unreadable(path, error) from error


def _require_columns(path: Path, names: Sequence[str]) -> None:
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise DataError(f"{path}: no column {', '.join(missing)}; expected saved rollouts")


def unreadable(path: Path, error: Exception) -> DataError:
    """One of `MISFITS` in one sentence that names the file."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(f"{path}: not a readable Parquet file ({reason})")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _combined(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _lengths(column: pa.ListArray) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _floats(column: pa.Array) -> NDArray[np.float64]:
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def _optional(values: list[Any] | None) -> NDArray[np.float64] | None:
    if values is None:
        return None
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
