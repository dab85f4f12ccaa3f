"""Checkpoints of a run: written aside, marked complete, renamed; a damaged one is passed over for the one before.

    checkpoints/step-00000025/   state.json  arrays.npz  tensors.safetensors  complete.json

`complete.json` is written last and holds the size and digest of every other file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lecritique.core.errors import CheckpointError
from lecritique.runs.state_files import read_tree, write_tree

FORMAT = 1
# The folder of a run directory that holds its checkpoints.
FOLDER = "checkpoints"
MARKER = "complete.json"
# The folder of a checkpoint with what several processes wrote (`lecritique/distributed/checkpoints.py`).
SHARDS = "shards"
_ASIDE = ".writing-"
# A step is saved again when the first one turned out to be damaged: the later number counts.
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")


class Checkpoints:
    """The checkpoints in one folder, which a single process writes.

    Args:
        folder: made when the first one is saved.
        keep: complete ones that stay; older ones go once a new one is complete.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"at least 1 checkpoint must be kept, got {keep}")
        self.folder = folder
        self._keep = keep

    def save(self, step: int, tree: Mapping[str, Any]) -> Path:
        """Write the state after `step` steps; its folder.

        Leaves are tensors, arrays and JSON values, see `state_files`. When anything goes wrong what was there before is
        untouched and the half-written folder is removed.

        Raises:
            OSError: it cannot be written; the disk is full.
            TypeError: a leaf that a checkpoint cannot hold.
        """
        with self.aside(step) as folder:
            write_tree(folder, tree)
        return self.place_of(folder)

    @contextmanager
    def aside(self, step: int) -> Iterator[Path]:
        """A new folder for the state after `step` steps; at the end it is marked complete and renamed.

        When anything goes wrong, what there was before is untouched and the new folder is removed.

        Raises:
            OSError: it cannot be made, marked or renamed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        aside = self.folder / (_ASIDE + self._free_name(step))
        try:
            aside.mkdir()
            yield aside
            _seal(aside, step)
            aside.rename(self.place_of(aside))
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync_to_disk(self.folder)
        self._retire()

    def place_of(self, aside: Path) -> Path:
        """What a folder that is written aside is called once it is complete."""
        return self.folder / aside.name.removeprefix(_ASIDE)

    def latest(self) -> Path | None:
        """The newest checkpoint whose files are all as they were written, None when there is none."""
        return next((path for path in reversed(self._named()) if is_complete(path)), None)

    def names(self) -> tuple[str, ...]:
        """All that have the name of a checkpoint, complete or not, oldest first."""
        return tuple(path.name for path in self._named())

    def names_after(self, path: Path) -> tuple[str, ...]:
        """Those that are newer than `path`."""
        names = self.names()
        return names[names.index(path.name) + 1 :]

    def load(self, path: Path) -> dict[str, Any]:
        """The tree of a checkpoint.

        Raises:
            CheckpointError: it is incomplete, damaged or of another format.
        """
        return load_checkpoint(path)

    def _named(self) -> list[Path]:
        """Folders with the name of a checkpoint, oldest first."""
        try:
            found = [(match, path) for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        except FileNotFoundError:
            return []
        return [path for _, path in sorted(found, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 0)))]

    def _free_name(self, step: int) -> str:
        name, number = f"step-{step:08d}", 0
        while (self.folder / (name if not number else f"{name}.{number}")).exists():
            number += 1
        return name if not number else f"{name}.{number}"

    def _remove_leftovers(self) -> None:
        """What a killed process left half-written or half-removed."""
        for path in self.folder.glob(f"{_ASIDE}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _retire(self) -> None:
        """Remove all but the newest, and those without a marker; what cannot be removed stays."""
        named = self._named()
        marked = [path for path in named if (path / MARKER).is_file()]
        for path in named:
            if path not in marked[-self._keep :]:
                with suppress(OSError):
                    # The marker goes first: what is half-removed is not complete.
                    (path / MARKER).unlink(missing_ok=True)
                    shutil.rmtree(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The tree of the checkpoint in `path`.

    Raises:
        CheckpointError: it is incomplete, damaged or of another format.
    """
    for problem in _problems(path):
        raise CheckpointError(f"the checkpoint '{path}' {problem}")
    return read_tree(path)


def is_complete(path: Path) -> bool:
    """Whether every file is as it was written."""
    return next(_problems(path), None) is None


def checkpoint_step(path: Path) -> int:
    """Steps that had been done when it was written; ValueError for another folder."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"'{path}' is not named as a checkpoint")
    return int(match[1])


def _seal(folder: Path, step: int) -> None:
    """Bring all files to the disk, then the marker that says what they are."""
    every = sorted(folder.rglob("*"))
    files = {path.relative_to(folder).as_posix(): _described(path) for path in every if path.is_file()}
    for path in every:
        sync_to_disk(path)
    marker = folder / MARKER
    marker.write_text(json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1) + "\n", encoding="utf-8")
    sync_to_disk(marker)
    sync_to_disk(folder)


def _problems(folder: Path) -> Iterator[str]:
    """What is wrong with a checkpoint."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        version, files = marker["format"], dict(marker["files"])
    except (OSError, ValueError, KeyError, TypeError):
        yield f"is incomplete: it has no readable {MARKER}"
        return
    if version != FORMAT:
        yield f"is of format {version}, this version reads {FORMAT}"
    for name, description in files.items():
        try:
            found = _described(folder / name)
        except OSError as error:
            yield f"is damaged: {name} cannot be read ({error})"
            continue
        if found != description:
            yield f"is damaged: {name} is not what was written"


def _described(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return {"bytes": path.stat().st_size, "blake2b": digest}


def sync_to_disk(path: Path) -> None:
    """Bring a file or a folder's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
