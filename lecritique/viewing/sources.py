"""Which runs a directory holds: it is a run, a comparison, or holds several of these."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lecritique.analysis.read import arm_and_seed, json_object, load_declared, started_runs
from lecritique.core.errors import DataError

_DEPTH = 3
_FOLDERS = 2000


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run. `key` is its path below the viewed directory, with slashes; `collection` that of its comparison."""

    key: str
    collection: str
    arm: str
    seed: int
    path: Path


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found, and one sentence for each thing that cannot be read. `pending` counts runs not started yet."""

    runs: dict[str, Source] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    pending: int = 0


def find_runs(directory: Path) -> Found:
    """Look for runs in a directory, up to three folders deep.

    Raises:
        DataError: there is no such directory, or it holds neither a run nor a comparison.
    """
    if not directory.is_dir():
        raise DataError(f"there is no directory '{directory}'.")
    runs: dict[str, Source] = {}
    titles: dict[str, str] = {}
    problems: list[str] = []
    pending = 0
    for folder in _candidates(directory):
        key = _key(directory, folder)
        title = folder.resolve().name or "run"
        try:
            declared = load_declared(folder)
            if declared is None:
                arm, seed = arm_and_seed(folder, json_object(folder / "config.json") or {})
                runs[key] = Source(key=key, collection=key, arm=arm, seed=seed, path=folder)
            else:
                title = declared.recipe if folder == directory else title
                started = list(started_runs(folder, declared))
                for arm, seed, path in started:
                    run_key = _key(directory, path)
                    runs[run_key] = Source(key=run_key, collection=key, arm=arm, seed=seed, path=path)
                pending += len(declared.arms) * len(declared.seeds) - len(started)
        except DataError as error:
            problems.append(str(error))
        titles[key] = title
    if not titles:
        raise DataError(
            f"'{directory}' holds no run (config.json) and no comparison (compare.json), up to {_DEPTH} folders deep."
        )
    return Found(runs=runs, titles=titles, problems=problems, pending=pending)


def _candidates(directory: Path) -> Iterator[Path]:
    """Folders that say that they are a run or a comparison, sorted; inside of those no others are looked for."""
    level, seen = [directory], 0
    for depth in range(_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            seen += 1
            if os.path.exists(folder / "compare.json") or os.path.exists(folder / "config.json"):
                yield folder
            elif depth < _DEPTH and seen + len(below) < _FOLDERS:
                below += (each for each in _folders(folder) if not _leads_up(each))
        level = below


def _leads_up(folder: Path) -> bool:
    """Whether it is a link to a folder that holds it: all that is there would be shown again."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError:  # not ours to read: nothing of it is shown
        return []


def _key(directory: Path, folder: Path) -> str:
    return folder.relative_to(directory).as_posix()
