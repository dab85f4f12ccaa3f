"""The run directory: configuration, environment, metrics, events, sampled rollouts, weights, status.

Everything can be read while the run writes: metrics and events are append-only lines, the rest is
written aside and renamed.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import lecritique
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.core.metrics import CATALOG, null_if_undefined

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: nothing is locked
    fcntl = None


class RunDirectory:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunDirectory:
        """Start a run in a directory that is new or empty.

        Raises:
            ConfigurationError: it already holds something (nothing is overwritten), or cannot be made.
        """
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise ConfigurationError(f"'{path}' already holds files; choose another --out or remove it.")
            path.mkdir(parents=True, exist_ok=True)
            directory = cls(path)
            write_json(path / "config.json", config.model_dump(mode="json"))
            directory._lock = _locked(path / "config.json")
            write_json(path / "environment.json", environment())
        except OSError as error:
            raise ConfigurationError(f"'{path}' cannot be used as a run directory: {error}.") from error
        return directory

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line per step; undefined values are null.

        Raises:
            KeyError: a metric that the catalog does not describe.
        """
        for name in metrics:
            if name not in CATALOG:
                raise KeyError(f"metric {name!r} is not in the catalog")
        row = {"step": step, "resume": 0, **{name: null_if_undefined(value) for name, value in metrics.items()}}
        self._append("metrics.jsonl", row)

    def append_event(self, kind: str, **fields: Any) -> None:
        """One line per event: what happened and when."""
        self._append("events.jsonl", {"time": now(), "kind": kind, **fields})

    def set_status(self, state: str, *, step: int, steps: int, message: str | None = None) -> None:
        """Where the run stands: running, finished, failed, interrupted or diverged."""
        write_json(
            self.path / "status.json",
            {"state": state, "step": step, "steps": steps, "message": message, "updated": now()},
        )

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def write_json(path: Path, content: Any) -> None:
    """Write aside and rename, so that a reader never sees half a file."""
    aside = path.with_suffix(path.suffix + ".tmp")
    aside.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(aside, path)


def is_being_written(path: Path) -> bool:
    """Whether the process that made the run in `path` still lives and has not let go of it."""
    if fcntl is None:
        return False
    try:
        with open(path / "config.json", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such run, or a file system without locks
        return False
    return False


def _locked(path: Path) -> BinaryIO | None:
    """The file, opened and locked for as long as the process lives; None where there are no locks.

    The system lets go of it however the process ends.
    """
    if fcntl is None:
        return None
    file = open(path, "rb")  # noqa: SIM115, it stays open
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def read_status(path: Path) -> str | None:
    """The state of the run in `path`, None when there is none."""
    try:
        return str(json.loads((path / "status.json").read_text(encoding="utf-8"))["state"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """Versions and hardware that a result was made with."""
    names = ("torch", "transformers", "numpy", "reasoning-gym")
    return {
        "started": now(),
        "lecritique": lecritique.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": {name: _version(name) for name in names},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(Path(lecritique.__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
