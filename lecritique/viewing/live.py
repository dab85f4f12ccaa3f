"""A run as it is being written: its status, and its metrics read on from where they were read to."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lecritique.analysis.metric_rows import MetricRows
from lecritique.analysis.read import json_object, rollout_step
from lecritique.core.errors import DataError
from lecritique.core.metrics import null_if_undefined
from lecritique.viewing.sources import Source

ROWS_AT_ONCE = 5000
_CHUNK_BYTES = 2**24
_HEADLINE = ("reward", "explained_variance", "rho", "tokens_per_second", "staleness_mean")


class LiveRun:
    """One run. Calls from several threads wait for each other."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._file = source.path / "metrics.jsonl"
        self._rows = MetricRows(self._file)
        self._base = 0
        """What a generation of `_rows` begins at: a file that was replaced starts a new one."""
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._problem: str | None = None

    def summary(self) -> dict[str, Any]:
        """Where it stands: state, newest step, latest figures, and what of it cannot be read."""
        with self._lock:
            self._read_on()
            problems = [self._problem] if self._problem else []
            try:
                status = json_object(self.source.path / "status.json") or {}
            except DataError as error:
                problems.append(str(error))
                status = {}
            steps = self._rows.held.keys()
            return {
                "key": self.source.key,
                "collection": self.source.collection,
                "arm": self.source.arm,
                "seed": self.source.seed,
                "state": _text(status.get("state")) or "unknown",
                "message": _text(status.get("message")),
                "updated": _text(status.get("updated")),
                "resumes": _whole(status.get("resumes")),
                "planned": _whole(status.get("steps")),
                "newest": max(steps, default=None),
                "generation": self._generation,
                "latest": {name: self._latest(name) for name in _HEADLINE if name in self._rows.names},
                "metrics": list(self._rows.names),
                "rollout_files": len(rollout_files(self.source.path)),
                "problems": problems,
            }

    def rows(self, names: Sequence[str], *, after: int, generation: int | None) -> dict[str, Any]:
        """The metrics of steps that the asker does not have yet.

        Args:
            names: which metrics.
            after: the newest step that the asker has, -1 for none.
            generation: the one that came with it; None takes what the asker has as it is.

        Returns:
            `steps` and, per metric, `columns` of the same length, null where undefined; at most `ROWS_AT_ONCE`, and
            `more` when there are others. The asker drops what it has from step `drop_from` on, where that is not null.
        """
        with self._lock:
            self._read_on()
            changed = None if generation is None else self._changed_since(generation)
            drop_from = changed if changed is not None and changed <= after else None
            first = after + 1 if drop_from is None else drop_from
            due = sorted(step for step in self._rows.held if step >= first)
            steps = due[:ROWS_AT_ONCE]
            held = self._rows.held
            return {
                "generation": self._generation,
                "drop_from": drop_from,
                "steps": steps,
                "columns": {name: [null_if_undefined(held[step].get(name)) for step in steps] for name in names},
                "more": len(due) > len(steps),
            }

    @property
    def _generation(self) -> int:
        return self._base + self._rows.generation

    def _changed_since(self, generation: int) -> int | None:
        return 0 if generation < self._base else self._rows.changed_since(generation - self._base)

    def _latest(self, name: str) -> float | None:
        """The newest number of a metric that is not written at every step."""
        held = self._rows.held
        newest = (null_if_undefined(held[step].get(name)) for step in sorted(held, reverse=True)[:100])
        return next((value for value in newest if value is not None), None)

    def _read_on(self) -> None:
        try:
            with open(self._file, "rb") as file:
                found = os.fstat(file.fileno())
                identity = (found.st_dev, found.st_ino)
                if identity != self._identity or found.st_size < self._offset:
                    self._start_over(identity)
                if self._problem is not None:  # what follows a damaged line cannot be placed
                    return
                file.seek(self._offset)
                while chunk := file.read(_CHUNK_BYTES):
                    self._offset += len(chunk)
                    self._rows.feed(chunk)
        except FileNotFoundError:  # not a step yet
            if self._identity is not None:
                self._start_over(None)
        except OSError as error:
            self._problem = f"{self._file}: cannot be read ({error})"
        except DataError as error:
            self._problem = str(error)

    def _start_over(self, identity: tuple[int, int] | None) -> None:
        if self._identity is not None:
            self._base = self._generation + 1
        self._identity, self._offset, self._problem = identity, 0, None
        self._rows = MetricRows(self._file)


def rollout_files(run: Path) -> list[tuple[int, Path]]:
    """The files of saved rollouts of a run with the step in their name, oldest first."""
    found = ((rollout_step(path), path) for path in (run / "rollouts").glob("step-*.parquet"))
    return sorted((step, path) for step, path in found if step >= 0)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:500]


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None
