"""Saved rollouts of many runs, found by filter: what one number or short text says of a row is held, tokens are not.

A file of saved rollouts never changes once it has its name, so each is read once; those of a live run are read as they
appear. N rows of a file.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lecritique.analysis.read import rollout_step
from lecritique.analysis.saved_rollouts import (
    MISFITS,
    RolloutTable,
    SavedRollout,
    read_rows,
    rollout_batches,
    unreadable,
)
from lecritique.core.errors import DataError
from lecritique.core.metrics import null_if_undefined
from lecritique.viewing.live import rollout_files
from lecritique.viewing.sources import Source

# Orders of the list: a column and its sign, the largest of their product first.
ORDERS: Mapping[str, tuple[str, float]] = {
    "advantage": ("advantage", 1.0),
    "gap": ("gap", 1.0),
    "reward": ("reward", 1.0),
    "lowest_reward": ("reward", -1.0),
    "newest": ("step", 1.0),
    "oldest": ("step", -1.0),
    "longest": ("tokens", 1.0),
}
SIBLINGS_SHOWN = 16
_SCALARS = ("row", "attempt", "member", "segment_index", "reward")
_COLUMNS = (
    "step", *_SCALARS, "task_id", "status", "prompt", "token_text", "action_mask", "turn_index", "advantages",
    "sampler_logprobs", "old_logprobs", "teacher_logprobs",
)  # fmt: skip
_EXCERPT_CHARACTERS = 160
_FILES_HELD = 20_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What the list shows; None and empty texts let everything through. Bounds are inclusive."""

    text: str = ""
    run: str = ""
    collection: str = ""
    arm: str = ""
    seed: int | None = None
    status: str = ""
    least_step: int | None = None
    most_step: int | None = None
    least_reward: float | None = None
    most_reward: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Indexed:
    """What is held of one file: numbers [N], NaN where the row has none, and texts, each different one once."""

    numbers: Mapping[str, Floats]
    texts: Mapping[str, pa.ChunkedArray]

    def __len__(self) -> int:
        return len(self.numbers["row"])

    def matches(self, text: str) -> NDArray[np.bool_]:
        """Rows [N] whose task id or prompt contains the text, whatever its case."""
        found = np.zeros(len(self), dtype=np.bool_)
        for name in ("task_id", "prompt"):
            chunks = [_matching(chunk, text) for chunk in self.texts[name].chunks]
            found |= np.concatenate([*chunks, np.zeros(0, dtype=np.bool_)])
        return found

    def equals(self, name: str, text: str) -> NDArray[np.bool_]:
        """Rows [N] whose text is this one."""
        compared = pc.equal(self.texts[name].cast(pa.string()), text).fill_null(False)
        return np.asarray(compared.to_numpy(), dtype=np.bool_)

    def text(self, name: str, row: int) -> str:
        """A row's text, empty where it has none; what is not UTF-8 is replaced."""
        value = self.texts[name][row]
        raw = value.dictionary[value.index.as_py()] if value.is_valid else None
        return "" if raw is None or not raw.is_valid else raw.as_buffer().to_pybytes().decode("utf-8", "replace")

    def siblings(self, row: int) -> list[int]:
        """The rows of the same group, itself among them, by member and segment."""
        same = np.logical_and.reduce(
            [self.numbers[name] == self.numbers[name][row] for name in ("saved_step", "row", "attempt")]
        )
        rows = np.flatnonzero(same)
        order = np.lexsort((self.numbers["segment_index"][rows], self.numbers["member"][rows]))
        return [int(each) for each in rows[order]]


@dataclass(frozen=True, kw_only=True)
class _File:
    source: Source
    step: int
    path: Path


class Trajectories:
    """The saved rollouts of the runs that are viewed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[Path, int, int], Indexed | DataError] = OrderedDict()

    def listed(
        self,
        sources: Iterable[Source],
        wanted: Filter,
        *,
        order: str,
        page: int,
        size: int,
        budget_seconds: float = 2.0,
    ) -> dict[str, Any]:
        """One page of the rows that pass the filter.

        Args:
            sources: the runs.
            wanted: the filter.
            order: one of `ORDERS`; ties are broken by run, step and row.
            page: from 0.
            size: rows of a page.
            budget_seconds: files that were not read by then are counted in `unread`; ask again for them.
        """
        files = [each for source in sources if _passes(source, wanted) for each in _files(source)]
        held, problems, unread = self._read(files, time.monotonic() + budget_seconds)
        masks = [_passing(index, each.step, wanted) for each, index in held]
        rows = [np.flatnonzero(mask) for mask in masks]
        number = np.repeat(np.arange(len(held)), [len(each) for each in rows])
        row = np.concatenate([*rows, np.zeros(0, dtype=np.int64)]).astype(np.int64)
        column, sign = ORDERS[order]
        keys = [index.numbers[column][each] for (_, index), each in zip(held, rows, strict=True)]
        key = sign * np.concatenate([*keys, np.zeros(0)])
        ranked = np.argsort(np.where(np.isnan(key), np.inf, -key), kind="stable")
        shown = ranked[page * size : (page + 1) * size]
        statuses = {text for _, index in held for text in _different(index.texts["status"])}
        return {
            "total": len(row),
            "saved": sum(len(index) for _, index in held),
            "page": page,
            "size": size,
            "unread": unread,
            "statuses": sorted(statuses)[:50],
            "problems": problems[:20],
            "rows": [_line(*held[int(number[at])], int(row[at])) for at in shown],
        }

    def opened(self, source: Source, step: int, row: int) -> tuple[SavedRollout, list[tuple[int, SavedRollout]], int]:
        """A saved rollout, the rows of its group with their indices (itself among them), and how many those are in all.

        Raises:
            DataError: there is no such rollout, or its file cannot be read.
        """
        file = next((each for each in _files(source) if each.step == step), None)
        if file is None:
            raise DataError(f"step {step} of '{source.key}' has no saved rollouts.")
        held, problems, _ = self._read([file], None)
        if problems:
            raise DataError(problems[0])
        if not held or not 0 <= row < len(held[0][1]):
            raise DataError(f"the saved rollouts of step {step} of '{source.key}' have no row {row}.")
        siblings = held[0][1].siblings(row)
        shown = [each for each in siblings if each == row] + [each for each in siblings if each != row]
        shown = sorted(shown[:SIBLINGS_SHOWN], key=siblings.index)
        found = dict(zip(shown, read_rows(file.path, shown), strict=True))
        return found[row], list(found.items()), len(siblings)

    def _read(self, files: Sequence[_File], until: float | None) -> tuple[list[tuple[_File, Indexed]], list[str], int]:
        """What is held of the files, sentences on those that cannot be read, and how many there was no time for."""
        held: list[tuple[_File, Indexed]] = []
        problems: list[str] = []
        unread = 0
        for file in files:
            with self._lock:
                index = self._one(file.path, late=until is not None and time.monotonic() > until)
            if isinstance(index, Indexed):
                held.append((file, index))
            elif isinstance(index, DataError):
                problems.append(str(index))
            else:
                unread += 1
        return held, problems, unread

    def _one(self, path: Path, *, late: bool) -> Indexed | DataError | None:
        try:
            found = path.stat()
        except OSError as error:  # a resumed run has removed it meanwhile
            return DataError(f"{path}: cannot be read ({error.strerror})")
        signature = (path, found.st_mtime_ns, found.st_size)
        if signature not in self._held:
            if late:
                return None
            try:
                self._held[signature] = indexed(path)
            except DataError as error:
                self._held[signature] = error
            while len(self._held) > _FILES_HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(signature)
        return self._held[signature]


def indexed(path: Path) -> Indexed:
    """Read what is held of a file, a few thousand rows at a time.

    Raises:
        DataError: it is not one of saved rollouts.
    """
    numbers: dict[str, list[Floats]] = {}
    texts: dict[str, list[pa.DictionaryArray]] = {}
    try:
        for table in rollout_batches(path, _COLUMNS):
            for name, column in _numbers(table).items():
                numbers.setdefault(name, []).append(column)
            for name in ("task_id", "status", "prompt"):
                texts.setdefault(name, []).append(table.strings(name))
    except MISFITS as error:
        raise unreadable(path, error) from error
    if not numbers:
        empty = np.zeros(0)
        return Indexed(
            numbers=dict.fromkeys((*_SCALARS, "saved_step", "step", "advantage", "gap", "tokens"), empty),
            texts={name: pa.chunked_array([], type=_TEXT) for name in ("task_id", "status", "prompt")},
        )
    return Indexed(
        numbers={name: np.concatenate(parts) for name, parts in numbers.items()},
        texts={name: pa.chunked_array(parts, type=_TEXT) for name, parts in texts.items()},
    )


_TEXT = pa.dictionary(pa.int32(), pa.string())


def _numbers(table: RolloutTable) -> dict[str, Floats]:
    student = "old_logprobs" if table.has("old_logprobs") else "sampler_logprobs"
    return {
        **{name: table.scalars(name) for name in _SCALARS},
        "saved_step": table.scalars("step"),
        "step": np.full(len(table), float(rollout_step(table.path))),
        "advantage": table.largest("advantages"),
        "gap": table.largest("teacher_logprobs", minus=student),
        "tokens": table.action_tokens().astype(np.float64),
    }


def _files(source: Source) -> list[_File]:
    return [_File(source=source, step=step, path=path) for step, path in rollout_files(source.path)]


def _passes(source: Source, wanted: Filter) -> bool:
    return (
        wanted.run in ("", source.key)
        and wanted.collection in ("", source.collection)
        and wanted.arm in ("", source.arm)
        and wanted.seed in (None, source.seed)
    )


def _passing(index: Indexed, step: int, wanted: Filter) -> NDArray[np.bool_]:
    """Rows [N] that pass the filter; a row without a reward passes no bound on it."""
    if (wanted.least_step is not None and step < wanted.least_step) or (
        wanted.most_step is not None and step > wanted.most_step
    ):
        return np.zeros(len(index), dtype=np.bool_)
    keep = np.ones(len(index), dtype=np.bool_)
    reward = index.numbers["reward"]
    if wanted.least_reward is not None:
        keep &= reward >= wanted.least_reward
    if wanted.most_reward is not None:
        keep &= reward <= wanted.most_reward
    if wanted.status:
        keep &= index.equals("status", wanted.status)
    if wanted.text:
        keep &= index.matches(wanted.text)
    return keep


def _matching(chunk: pa.DictionaryArray, text: str) -> NDArray[np.bool_]:
    hit = pc.match_substring(chunk.dictionary, text, ignore_case=True).fill_null(False)
    found = hit.take(chunk.indices).fill_null(False)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _different(column: pa.ChunkedArray) -> set[str]:
    return {
        each.as_buffer().to_pybytes().decode("utf-8", "replace")[:100]
        for chunk in column.chunks
        for each in chunk.dictionary[:50]
        if each.is_valid
    }


def _line(file: _File, index: Indexed, row: int) -> dict[str, Any]:
    def number(name: str) -> float | None:
        return null_if_undefined(float(index.numbers[name][row]))

    prompt = " ".join(index.text("prompt", row)[-20 * _EXCERPT_CHARACTERS :].split())
    return {
        "run": file.source.key,
        "arm": file.source.arm,
        "seed": file.source.seed,
        "step": file.step,
        "index": row,
        "id": ".".join(_whole(index.numbers[name][row]) for name in ("row", "attempt", "member")),
        "task": index.text("task_id", row)[:_EXCERPT_CHARACTERS],
        "status": index.text("status", row)[:40] or "?",
        "prompt": prompt if len(prompt) <= _EXCERPT_CHARACTERS else "…" + prompt[-_EXCERPT_CHARACTERS:],
        "tokens": int(index.numbers["tokens"][row]),
        **{name: number(name) for name in ("reward", "advantage", "gap")},
    }


def _whole(value: float) -> str:
    return f"{value:.0f}"
