"""Rows from JSONL and Parquet, one file or a folder of shards. Large cells are read when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from lecritique.core.errors import DataError
from lecritique.tasks.options import nearest

_SUFFIXES = (".jsonl", ".parquet")


class Table(Protocol):
    """Numbered rows with named cells."""

    name: str
    """What to call it in a message."""

    def __len__(self) -> int: ...

    def rows(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """These cells of every row, in order."""
        ...

    def cell(self, row: int, column: str) -> Any:
        """One cell."""
        ...


def open_table(location: str) -> Table:
    """The rows of a .jsonl or .parquet file, or of all such files of one kind in a folder, sorted by name.

    Raises:
        DataError: no such file, none of these kinds, or no rows.
    """
    path = Path(location)
    if not path.exists():
        raise DataError(f"task.file = {location!r}: there is no such file, expected JSONL or Parquet")
    if path.is_dir():
        found = sorted(entry for entry in path.iterdir() if entry.suffix in _SUFFIXES)
        if len({entry.suffix for entry in found}) > 1:
            raise DataError(f"task.file = {location!r}: the folder holds both .jsonl and .parquet files, expected one")
    else:
        found = [path] if path.suffix in _SUFFIXES else []
    if not found:
        raise DataError(f"task.file = {location!r}: expected a .jsonl or .parquet file, or a folder of such files")
    table: Table = JsonLines(found) if found[0].suffix == ".jsonl" else Parquet(found)
    if not len(table):
        raise DataError(f"task.file = {location!r}: there are no rows in it, expected at least one")
    return table


def lacking(name: str, row: int, column: str, columns: Sequence[str]) -> DataError:
    """The error for a column that is not there."""
    return DataError(
        f"{name!r}: row {row} has no column {column!r}, its columns are {', '.join(sorted(columns)) or 'none'}"
        f"{nearest(column, columns)}"
    )


class JsonLines:
    """One JSON object a line; blank lines are skipped. Only the places of lines are kept."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.name = str(paths[0] if len(paths) == 1 else paths[0].parent)
        self._places: list[tuple[Path, int, int]] = []
        for path in paths:
            with path.open("rb") as file:
                offset = 0
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        self._places.append((path, offset, number))
                    offset += len(line)

    def __len__(self) -> int:
        return len(self._places)

    def rows(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """These cells of every row."""
        for row in range(len(self)):
            cells = self._object(row)
            yield {column: self._found(cells, row, column) for column in columns}

    def cell(self, row: int, column: str) -> Any:
        """One cell."""
        return self._found(self._object(row), row, column)

    def _found(self, cells: Mapping[str, Any], row: int, column: str) -> Any:
        if column not in cells:
            raise lacking(self.name, row, column, list(cells))
        return cells[column]

    def _object(self, row: int) -> Mapping[str, Any]:
        path, offset, number = self._places[row]
        with path.open("rb") as file:
            file.seek(offset)
            line = file.readline()
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{str(path)!r}: row {row} (line {number}) is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise DataError(
                f"{str(path)!r}: row {row} (line {number}) is a {type(value).__name__}, expected a JSON object"
            )
        return value


class Parquet:
    """Parquet files, read one row group at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.name = str(paths[0] if len(paths) == 1 else paths[0].parent)
        # (path, row group, first row) of every row group
        self._groups: list[tuple[Path, int, int]] = []
        self._columns: dict[Path, list[str]] = {}
        self._length = 0
        for path in paths:
            metadata = _parquet(path).metadata
            self._columns[path] = list(_parquet(path).schema_arrow.names)
            for group in range(metadata.num_row_groups):
                self._groups.append((path, group, self._length))
                self._length += metadata.row_group(group).num_rows

    def __len__(self) -> int:
        return self._length

    def rows(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """These cells of every row."""
        names = list(dict.fromkeys(columns))
        for path, group, first in self._groups:
            self._require(path, first, names)
            yield from _parquet(path).read_row_group(group, columns=names).to_pylist()

    def cell(self, row: int, column: str) -> Any:
        """One cell."""
        path, group, first = next(entry for entry in reversed(self._groups) if entry[2] <= row)
        self._require(path, row, [column])
        return _row_group_column(path, group, column)[row - first].as_py()

    def _require(self, path: Path, row: int, columns: Sequence[str]) -> None:
        for column in columns:
            if column not in self._columns[path]:
                raise lacking(str(path), row, column, self._columns[path])


def _parquet(path: Path) -> Any:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{str(path)!r} is not a readable Parquet file: {error}") from error


@lru_cache(maxsize=4)
def _row_group_column(path: Path, group: int, column: str) -> Any:
    return _parquet(path).read_row_group(group, columns=[column]).column(0)
