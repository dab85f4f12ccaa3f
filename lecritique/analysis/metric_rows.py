"""Rows of a `metrics.jsonl`, whole or as they are written.

Rows may repeat a step (a resumed run does it again: the last row counts). From the first row of a resume on, what was
recorded before of its step and of later ones is superseded and left out, also where the resumed run has not come so far
yet. The last line may be half-written. Everything else that does not fit is one DataError naming file and line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lecritique.core.errors import DataError

_NOT_METRICS = frozenset({"step", "resume"})
_LARGEST_STEP = 2**31
_LONGEST_LINE = 2**24


class MetricRows:
    """What counts of the lines fed so far: `held` maps a step to its metrics, NaN where the run wrote null.

    `generation` grows whenever something that was held is replaced or left out. `names` are the metrics that were a
    number at least once.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.held: dict[int, dict[str, float]] = {}
        self.names: dict[str, None] = {}
        self.generation = 0
        self._changes: list[tuple[int, int]] = []  # (generation, first step that is no longer what it was)
        self._resumes = 0
        self._resume_of_line = 0
        self._number = 0
        self._cut_off = b""
        # A broken line is forgiven when it ended the file, or ended it before a resume.
        self._torn: DataError | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the file; what follows the last line end waits for the rest.

        Raises:
            DataError: a line that is none of a run's.
        """
        *lines, self._cut_off = (self._cut_off + data).split(b"\n")
        if len(self._cut_off) > _LONGEST_LINE:
            raise DataError(f"{self.file}, line {self._number + len(lines) + 1}: over {_LONGEST_LINE} bytes long")
        for line in lines:
            self._take(line)

    def end(self) -> None:
        """The file ends here: what follows the last line end is a line, or was cut off."""
        line, self._cut_off = self._cut_off, b""
        self._take(line)

    def changed_since(self, generation: int) -> int | None:
        """The first step that is no longer what it was in that generation; None when all that was held stands."""
        return min((step for at, step in self._changes if at > generation), default=None)

    def _take(self, line: bytes) -> None:
        self._number += 1
        if not line.strip():
            return
        where = f"{self.file}, line {self._number}"
        try:
            record = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if self._torn is not None:
                raise self._torn from error
            self._torn = DataError(f"{where}: not JSON: {shown(line.decode('utf-8', 'replace'))}")
            return
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected a JSON object, got {shown(record)}")
        resume = record.get("resume") or 0
        if self._torn is not None and not (isinstance(resume, int) and resume > self._resume_of_line):
            raise self._torn
        self._torn, self._resume_of_line = None, resume if isinstance(resume, int) else 0
        self._hold(self._resume_of_line, *_metric_row(record, where))

    def _hold(self, resume: int, step: int, row: dict[str, float]) -> None:
        superseded = step in self.held
        if resume > self._resumes:
            self._resumes = resume
            kept = {earlier: held for earlier, held in self.held.items() if earlier < step}
            superseded, self.held = len(kept) < len(self.held), kept
        if superseded:
            self.generation += 1
            self._changes.append((self.generation, step))
        self.held[step] = row
        self.names |= {name: None for name, value in row.items() if math.isfinite(value)}


def number_of(record: Mapping[str, Any], key: str, where: Path | str) -> float:
    """The number under `key`.

    Raises:
        DataError: it is none.
    """
    value = record[key]
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            pass
    raise DataError(f"{where}: {key} is {shown(value)}, expected a number or null")


def shown(value: Any) -> str:
    """A value as a message quotes it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _metric_row(record: Mapping[str, Any], where: str) -> tuple[int, dict[str, float]]:
    step = record.get("step")
    if type(step) is not int or not 0 <= step < _LARGEST_STEP:
        raise DataError(f"{where}: step is {shown(step)}, expected an integer from 0")
    return step, {
        name: math.nan if value is None else number_of(record, name, where)
        for name, value in record.items()
        if name not in _NOT_METRICS
    }
