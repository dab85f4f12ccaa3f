"""The folder of an evaluation: its settings, and one line per problem that is finished.

    eval.json   problems.jsonl   summary.json

A second call with the same settings does only what is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lecritique.core.errors import DataError
from lecritique.runs.settings import hold_folder

SETTINGS, PROBLEMS, SUMMARY = "eval.json", "problems.jsonl", "summary.json"


@dataclass(frozen=True, kw_only=True)
class ProblemResult:
    """The K samples of one problem, in order of sample.

    `scores` are in reward units, None where the sample failed. `statuses` are `ok`, `truncated` or the kind of the
    failure. `answered` says whether the text held an answer at all, None where the task cannot tell. `tokens` are
    sampled ones. `split` is what the results are split by, None without.
    """

    set: str
    row: int
    task_id: str
    split: str | None
    scores: tuple[float | None, ...]
    statuses: tuple[str, ...]
    answered: tuple[bool | None, ...]
    tokens: tuple[int, ...]


class EvaluationFolder:
    """One evaluation on the disk, held by this process until it is closed.

    Args:
        path: new, empty, or of an evaluation with the same settings.
        settings: JSON values; everything that the results depend on.

    Raises:
        ConfigurationError: it holds something else, or an evaluation with other settings, which are named.
        DataError: a line of it is not a result.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._lock = hold_folder(path, SETTINGS, settings)
        self.results = _read(path / PROBLEMS)

    def done(self, set_name: str) -> frozenset[int]:
        """The rows of a set that are finished."""
        return frozenset(result.row for result in self.results if result.set == set_name)

    def append(self, result: ProblemResult) -> None:
        """Add a problem that is finished."""
        with open(self.path / PROBLEMS, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result), allow_nan=False) + "\n")
        self.results.append(result)

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _read(file: Path) -> list[ProblemResult]:
    """The results so far. A last line that a kill cut off is removed: its problem is done again."""
    content = b""
    with suppress(FileNotFoundError):
        content = file.read_bytes()
    whole, _, torn = content.rpartition(b"\n")
    if torn:
        with open(file, "rb+") as opened:
            opened.truncate(len(content) - len(torn))
    return _results(whole, file)


def finished_results(file: Path) -> list[ProblemResult]:
    """The results of an evaluation that may be going on; a last line that is not whole yet is left out.

    Raises:
        DataError: a whole line is not a result.
    """
    content = b""
    with suppress(FileNotFoundError):
        content = file.read_bytes()
    return _results(content.rpartition(b"\n")[0], file)


def _results(whole: bytes, file: Path) -> list[ProblemResult]:
    lines = whole.splitlines() if whole else []
    return [_result(line, f"{file}, line {number}") for number, line in enumerate(lines, start=1)]


def _result(line: bytes, where: str) -> ProblemResult:
    try:
        record = json.loads(line.decode("utf-8"))
        columns = {name: tuple(record.pop(name)) for name in ("scores", "statuses", "answered", "tokens")}
        result = ProblemResult(**record, **columns)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{where}: expected the result of a problem, got {line[:80]!r}") from error
    numbers = [score for score in result.scores if score is not None]
    if len({len(column) for column in columns.values()}) != 1 or not all(
        isinstance(score, int | float) and math.isfinite(score) for score in numbers
    ):
        raise DataError(f"{where}: expected finite scores and one entry a sample in every column")
    return result
