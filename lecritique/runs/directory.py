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
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import lecritique
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.core.metrics import CATALOG, null_if_undefined
from lecritique.core.spending import UNITS, Spent
from lecritique.core.weights import WeightManifest

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: nothing is locked
    fcntl = None


# Files that grow by one line at a time.
LINES = ("metrics.jsonl", "events.jsonl", "ledger.jsonl", "versions.jsonl", "timeline.jsonl")


class RunDirectory:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.resumes = 0
        """How often the run was resumed; metric rows carry it."""
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
            directory._lock = locked(path / "config.json")
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
        columns = {name: null_if_undefined(value) for name, value in metrics.items()}
        self._append("metrics.jsonl", {"step": step, "resume": self.resumes, **columns})

    def append_event(self, kind: str, **fields: Any) -> None:
        """One line per event: what happened and when."""
        self._append("events.jsonl", {"time": now(), "kind": kind, **fields})

    def append_outcome(self, outcome: Mapping[str, Any]) -> None:
        """One line per group that has ended: how, at which step."""
        self._append("ledger.jsonl", {"resume": self.resumes, **outcome})

    def append_version(self, manifest: WeightManifest) -> None:
        """One line per published version of a role's weights."""
        published = {"role": manifest.role, "version": manifest.version, "digest": manifest.digest}
        self._append("versions.jsonl", {"resume": self.resumes, **published})

    def append_span(self, step: int, role: str, kind: str, start_seconds: float, end_seconds: float) -> None:
        """One line per piece of work of a role, in seconds since the process began the run."""
        span = {"start": round(start_seconds, 4), "end": round(end_seconds, 4)}
        self._append("timeline.jsonl", {"resume": self.resumes, "step": step, "role": role, "kind": kind, **span})

    def set_status(self, state: str, *, step: int, steps: int, message: str | None = None, **fields: Any) -> None:
        """Where the run stands: running, finished, failed, interrupted or diverged; `fields` say more."""
        write_json(
            self.path / "status.json",
            {
                "state": state,
                "step": step,
                "steps": steps,
                "resumes": self.resumes,
                "message": message,
                "updated": now(),
                **fields,
            },
        )

    @classmethod
    def reopen(cls, path: Path) -> RunDirectory:
        """Take hold of an existing run, so that no other process writes it; nothing is changed yet.

        Raises:
            ConfigurationError: it is no run, or a process is writing it.
        """
        if not (path / "config.json").is_file():
            raise ConfigurationError(_no_run(path))
        directory = cls(path)
        try:
            directory._lock = locked(path / "config.json")
        except BlockingIOError as error:
            raise ConfigurationError(
                f"'{path}' is being written by a run that is still going; wait for it or end it."
            ) from error
        directory.resumes = _resumes(path)
        return directory

    def go_on(self, config: RunConfig, *, step: int, **fields: Any) -> None:
        """Begin a resume after `step` steps: its configuration counts from now on, and an event says so.

        Lines that a killed process left half-written are ended. Saved rollouts of the steps that will be done again are
        removed; their metric rows stay, and readers take the new ones.
        """
        self.resumes += 1
        self._replace_config(config)
        for name in LINES:
            _end_line(self.path / name)
        for path in (self.path / "rollouts").glob("step-*.parquet"):
            digits = path.stem.removeprefix("step-")
            if digits.isdecimal() and int(digits) >= step:
                path.unlink()
        self.append_event("resumed", step=step, resume=self.resumes, **fields)

    def sync(self) -> None:
        """Bring metrics and events to the disk."""
        for name in LINES:
            if (self.path / name).is_file():
                with open(self.path / name, "rb") as file:
                    os.fsync(file.fileno())

    def close(self) -> None:
        """Let go of the run, for another process to write."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _replace_config(self, config: RunConfig) -> None:
        """Write it aside, lock that, then rename: at no moment is the run without a lock."""
        path = self.path / "config.json"
        aside = path.with_suffix(".json.tmp")
        _write_text(aside, config.model_dump(mode="json"))
        lock = locked(aside)
        os.replace(aside, path)
        self.close()
        self._lock = lock

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def write_json(path: Path, content: Any) -> None:
    """Write aside and rename, so that a reader never sees half a file."""
    aside = path.with_suffix(path.suffix + ".tmp")
    _write_text(aside, content)
    os.replace(aside, path)


def _write_text(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_config(path: Path) -> RunConfig:
    """The resolved configuration of the run in `path`.

    Raises:
        ConfigurationError: there is none, or it is not one of this version.
    """
    file = path / "config.json"
    try:
        return parsed_config(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(_no_run(path)) from error
    except ValueError as error:  # not text, not JSON, or other keys
        raise ConfigurationError(f"'{file}' is not a configuration of this version.") from error


def parsed_config(text: str) -> RunConfig:
    """A run's configuration as `config.json` holds it; ValueError when it is not one of this version."""
    config = RunConfig.model_validate_json(text)
    if config.runtime.layout is None:  # of a run from before there was a choice
        config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"layout": "padded"})})
    return config


def _no_run(path: Path) -> str:
    if (path / "compare.json").is_file():
        return f"'{path}' is a comparison; the same 'lecritique compare' again goes on with it."
    return f"'{path}' is not a run directory: it has no config.json."


def _resumes(path: Path) -> int:
    """How often the run was resumed so far, by its status and by its metric rows."""
    counts = [0]
    with suppress(OSError, ValueError, KeyError, TypeError):
        counts.append(json.loads((path / "status.json").read_text(encoding="utf-8"))["resumes"])
    try:
        lines = (path / "metrics.jsonl").read_bytes().splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            counts.append(json.loads(line)["resume"])
        except (ValueError, KeyError, TypeError):
            continue
    return max(count for count in counts if isinstance(count, int))


def _end_line(path: Path) -> None:
    """End a last line that was cut off, so that the next one does not continue it."""
    if not path.is_file() or not path.stat().st_size:
        return
    with open(path, "rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


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


def locked(path: Path) -> BinaryIO | None:
    """The file, opened and locked for as long as the process lives; None where there are no locks.

    The system lets go of it however the process ends.

    Raises:
        BlockingIOError: another process holds it.
    """
    if fcntl is None:
        return None
    file = open(path, "rb")  # noqa: SIM115, it stays open
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError:  # a file system without locks
        file.close()
        return None
    return file


def read_status(path: Path) -> str | None:
    """The state of the run in `path`, None when there is none."""
    try:
        return str(json.loads((path / "status.json").read_text(encoding="utf-8"))["state"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_end(path: Path) -> tuple[int, Spent] | None:
    """The steps that the finished run in `path` has done and what they spent; None where its status does not say."""
    try:
        status = json.loads((path / "status.json").read_text(encoding="utf-8"))
        if status["state"] != "finished":
            return None
        spent = {unit: float(status.get("spent", {}).get(unit, 0)) for unit in UNITS}
        return int(status["step"]), Spent.of(spent)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
