"""Rows of a Hugging Face data set. The one module that imports `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.tasks.tables import lacking


class HubTable:
    """A split of a data set by hub id or local folder; its cells stay on disk until they are asked for."""

    def __init__(self, dataset: str, configuration: str | None, split: str) -> None:
        self.name = dataset
        self._data = _loaded(dataset, configuration, split)
        if not len(self._data):
            raise DataError(f"task.dataset = {dataset!r}: the split {split!r} has no rows, expected at least one")

    def __len__(self) -> int:
        return len(self._data)

    def rows(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """These cells of every row."""
        names = list(dict.fromkeys(columns))
        self._require(0, names)
        yield from self._data.select_columns(names)

    def cell(self, row: int, column: str) -> Any:
        """One cell."""
        self._require(row, [column])
        return self._data.select_columns([column])[row][column]

    def _require(self, row: int, columns: Sequence[str]) -> None:
        for column in columns:
            if column not in self._data.column_names:
                raise lacking(self.name, row, column, self._data.column_names)


def _loaded(dataset: str, configuration: str | None, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigurationError(
            "task.dataset needs the extra datasets: pip install 'lecritique[datasets]' (task.file does not)"
        ) from error
    try:
        return datasets.load_dataset(dataset, configuration, split=split)
    except Exception as error:  # the hub, the network, a disk, a file of the data set
        first_line = str(error).splitlines()[0][:300] if str(error) else ""
        raise DataError(
            f"task.dataset = {dataset!r} (split {split!r}) could not be loaded: {type(error).__name__}: {first_line}"
        ) from error
