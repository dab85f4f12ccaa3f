"""Items of a task frozen to a file: the same rows whatever library, seed or process would make of them later."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lecritique.core.errors import ConfigurationError, DataError

_FORMAT = 1


def write_frozen(path: Path, task: str, items: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> int:
    """Write one JSON object a line, after a line that says whose they are; returns the number of items.

    The file appears when it is complete; one that exists is not overwritten.

    Raises:
        ConfigurationError: the file exists or cannot be written.
    """
    if path.exists():
        raise ConfigurationError(f"{path} exists, expected a file that does not yet")
    aside = path.with_name(f"{path.name}.part-{os.getpid()}")
    count = 0
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(_line({"frozen_task": task, "format": _FORMAT, "options": dict(options)}))
            for item in items:
                file.write(_line(item))
                count += 1
        aside.rename(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    finally:
        aside.unlink(missing_ok=True)
    return count


def read_frozen(path: str, task: str, fields: Mapping[str, type | tuple[type, ...]]) -> list[dict[str, Any]]:
    """The items of a file that `write_frozen` wrote for `task`, each with at least `fields` of these types.

    Raises:
        DataError: the file cannot be read, is another task's, or a line is not such an item.
    """
    items = []
    for number, value in _lines(path):
        if number == 1:
            _require_header(path, task, value)
            continue
        unfit = [
            name
            for name, kind in fields.items()
            if not isinstance(value, dict) or name not in value or not isinstance(value[name], kind)
        ]
        if unfit:
            raise DataError(f"line {number} of {path} lacks a fit value of {', '.join(unfit)}, expected a frozen item")
        items.append(value)
    if not items:
        raise DataError(f"{path} holds no items, expected a file that `lecritique tasks freeze {task}` wrote")
    return items


def _require_header(path: str, task: str, value: Any) -> None:
    if not isinstance(value, dict) or value.get("frozen_task") != task or value.get("format") != _FORMAT:
        raise DataError(f"line 1 of {path} is not that of `lecritique tasks freeze {task}`: got {str(value)[:100]}")


def _lines(path: str) -> Iterator[tuple[int, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, json.loads(line)
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"task.file = {path!r} cannot be read: {error}") from error
    except ValueError as error:
        raise DataError(f"line {number} of {path} is no JSON: {error}") from error


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n"
