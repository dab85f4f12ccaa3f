"""A folder that belongs to settings: the same call goes on with it, another one is refused by the key that differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lecritique.core.errors import ConfigurationError
from lecritique.runs.directory import locked, write_json


def hold_folder(path: Path, name: str, settings: Mapping[str, Any]) -> BinaryIO | None:
    """Make the folder with its settings, or take hold of one that has the same.

    Args:
        path: new, empty, or made by an earlier call.
        name: of the file with the settings.
        settings: JSON values; everything that the results depend on.

    Returns:
        the lock, held until it is closed; None where there are no locks.

    Raises:
        ConfigurationError: it holds something else, other settings, or is being written by another process.
    """
    file, plain = path / name, json.loads(json.dumps(settings))
    try:
        if file.is_file():
            lock = locked(file)
            try:
                _require_same(file, plain)
            except ConfigurationError:
                if lock is not None:
                    lock.close()
                raise
            return lock
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigurationError(f"'{path}' already holds other files; choose another --out.")
        path.mkdir(parents=True, exist_ok=True)
        write_json(file, plain)
        return locked(file)
    except BlockingIOError as error:
        raise ConfigurationError(f"'{path}' is being written by a process that is still going.") from error
    except OSError as error:
        raise ConfigurationError(f"'{path}' cannot be used as a folder for results: {error}.") from error


def _require_same(file: Path, settings: Mapping[str, Any]) -> None:
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"'{file}' cannot be read: {error}.") from error
    before, now = _flat(saved), _flat(settings)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise ConfigurationError(
                f"'{file.parent}' was made with '{key}' = {before.get(key)!r}, this call has {now.get(key)!r}; give "
                "the same settings to go on with it, or another --out."
            )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict) and tree:
        return {key: leaf for name, below in tree.items() for key, leaf in _flat(below, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): tree}
