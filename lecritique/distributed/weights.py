"""Published weights as files, for engines and evaluators in other processes, and publishing from shards.

    policy/  00000007/  weights.safetensors  manifest.json      latest.json

A version is written aside, brought to the disk and renamed; then `latest.json` is replaced. Whoever opens a version
checks every byte of it against the digest that was announced: what is half-written or changed is never served.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from lecritique.core.errors import CheckpointError
from lecritique.core.weights import WeightManifest
from lecritique.distributed.gathering import gathered, memory_of
from lecritique.distributed.together import Together
from lecritique.models.weights import State, WeightStore, state_digest
from lecritique.runs.checkpoints import sync_to_disk

WEIGHTS, MANIFEST, LATEST = "weights.safetensors", "manifest.json", "latest.json"
_ASIDE = ".writing-"


class FileWeightStore:
    """A weight store in a folder: one process publishes a role, any number of them read.

    Args:
        folder: made when something is published. What it holds of a role is removed at the role's first `put`: that
            is of an earlier run, whose numbers would mean other weights.
        keep: versions of a role that stay, so that a reader of the one before is not cut off.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"at least 1 version must be kept, got {keep}")
        self.folder = folder
        self._keep = keep
        self._next: dict[str, int] = {}
        self._tell: Callable[[WeightManifest], None] = lambda manifest: None

    def watch(self, tell: Callable[[WeightManifest], None]) -> None:
        """Have `tell` called with every version that is published from now on, on the publisher's thread."""
        self._tell = tell

    def put(self, role: str, state: State) -> WeightManifest:
        """Publish `state`.

        Raises:
            OSError: it cannot be written; the version before stays the latest.
        """
        if role not in self._next:
            self.go_on_from(role, 0)
        version = self._next[role]
        manifest = WeightManifest(role=role, version=version, digest=state_digest(state))
        place = self._place(role, version)
        aside = place.with_name(_ASIDE + place.name)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            _write(aside, manifest, state)
            aside.rename(place)
            _replace(place.parent / LATEST, json.dumps(asdict(manifest)))
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self._next[role] = version + 1
        for old in sorted(place.parent.glob("[0-9]*"))[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        self._tell(manifest)
        return manifest

    def open(self, manifest: WeightManifest) -> State:
        """The weights of `manifest`, on the CPU.

        Raises:
            KeyError: a later version has replaced them.
            CheckpointError: they are not what was published, to the last bit.
        """
        place = self._place(manifest.role, manifest.version)
        what = f"weights of {manifest.role} version {manifest.version}"
        if not place.is_dir():
            raise KeyError(f"{what} are no longer held")
        try:
            record = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
            tensors = load_file(place / WEIGHTS)
            state = {str(name): tensors[stored] for name, stored in record["names"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            raise CheckpointError(f"the {what} in '{place}' cannot be read: {type(error).__name__}: {error}") from error
        found = state_digest(state)
        if found != manifest.digest:
            raise CheckpointError(
                f"the {what} in '{place}' have the digest {found}, expected {manifest.digest}: they are damaged, or "
                "another run's."
            )
        return state

    def latest(self, role: str) -> WeightManifest | None:
        """The newest version that was announced, None before the first; what cannot be read announces nothing."""
        try:
            record = json.loads((self.folder / role / LATEST).read_text(encoding="utf-8"))
            manifest = WeightManifest(
                role=str(record["role"]), version=int(record["version"]), digest=str(record["digest"])
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return manifest if manifest.role == role else None

    def go_on_from(self, role: str, version: int) -> None:
        """Let the role's next `put` be `version`; what is held is removed, so that no number means two weights."""
        if version < 0:
            raise ValueError(f"weights of {role} cannot go on from version {version}, expected 0 or more")
        folder = self.folder / role
        # First what announces, then what is announced.
        (folder / LATEST).unlink(missing_ok=True)
        for old in [*folder.glob("[0-9]*"), *folder.glob(f"{_ASIDE}*")]:
            shutil.rmtree(old)
        self._next[role] = version

    def _place(self, role: str, version: int) -> Path:
        return self.folder / role / f"{version:08d}"


class GatheredStore:
    """What trainers on several processes publish to: brings the shards of each weight together on rank 0.

    Every process makes the same calls. One weight at a time is whole on all of them; rank 0 keeps them on its CPU.

    Args:
        inner: rank 0's store, None on the others.
        ranks: the processes.
    """

    def __init__(self, inner: WeightStore | None, ranks: Together) -> None:
        if (inner is None) != bool(ranks.rank):
            raise ValueError("rank 0 has a store and the other ranks have none")
        self._inner = inner
        self._ranks = ranks

    def put(self, role: str, state: State) -> WeightManifest:
        """Publish; the manifest is known everywhere.

        Raises:
            OSError: rank 0 cannot write it.
        """
        found = gathered(state, keep=self._inner is not None)
        if self._inner is None:
            return _manifest_from(self._ranks.told(None))
        try:
            manifest = self._inner.put(role, found)
        except OSError as error:
            self._ranks.told(json.dumps({"failed": str(error)}))
            raise
        self._ranks.told(json.dumps(asdict(manifest)))
        return manifest

    def open(self, manifest: WeightManifest) -> State:
        """On rank 0 alone.

        Raises:
            KeyError: on another rank, or of a version that is no longer held.
        """
        if self._inner is None:
            raise KeyError(f"weights of {manifest.role} are held by rank 0 alone")
        return self._inner.open(manifest)

    def go_on_from(self, role: str, version: int) -> None:
        """As the inner store does."""
        if self._inner is not None:
            self._inner.go_on_from(role, version)


def _manifest_from(text: str) -> WeightManifest:
    record = json.loads(text)
    if "failed" in record:
        raise OSError(record["failed"])
    return WeightManifest(**record)


def _write(folder: Path, manifest: WeightManifest, state: State) -> None:
    """Both files, on the disk when this returns; tensors that share their memory are written once."""
    stored, names = _without_ties(state)
    try:
        save_file(stored, folder / WEIGHTS)
    except SafetensorError as error:  # what the Rust side makes of a full disk
        raise OSError(f"{folder / WEIGHTS}: {error}") from error
    (folder / MANIFEST).write_text(json.dumps({**asdict(manifest), "names": names}, indent=1), encoding="utf-8")
    for path in (folder / WEIGHTS, folder / MANIFEST, folder):
        sync_to_disk(path)


def _without_ties(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors to write, and under which of their names each one lies."""
    stored: dict[str, torch.Tensor] = {}
    names: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        names[name] = seen.setdefault(memory_of(tensor), name)
        if names[name] == name:
            stored[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return stored, names


def _replace(path: Path, text: str) -> None:
    """New content or the old one, nothing in between, whenever the process dies."""
    aside = path.with_name(_ASIDE + path.name + ".json")
    aside.write_text(text + "\n", encoding="utf-8")
    sync_to_disk(aside)
    os.replace(aside, path)
    sync_to_disk(path.parent)
