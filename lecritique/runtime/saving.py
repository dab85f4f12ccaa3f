"""When a run saves a checkpoint, and what happens when it cannot: the run goes on and says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from lecritique.config.schema import RunConfig
from lecritique.core.errors import CheckpointError
from lecritique.runs.checkpoints import FOLDER, SHARDS, Checkpoints, load_checkpoint
from lecritique.runs.directory import RunDirectory

Warn = Callable[[str], None]


def warn_on_stderr(message: str) -> None:
    """One line on standard error."""
    print("lecritique: warning:", message, file=sys.stderr, flush=True)


class SavesTrees(Protocol):
    """What writes checkpoints."""

    def save(self, step: int, tree: Mapping[str, Any]) -> Path:
        """As `Checkpoints.save`."""
        ...


class Saver:
    """Saves the state of a run into its directory.

    Args:
        directory: of the run.
        config: of the run.
        saved: steps of the newest checkpoint, where the run is resumed from it.
        warn: is told when a checkpoint could not be written.
        checkpoints: where they go when several processes write them.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: RunConfig,
        *,
        saved: int | None = None,
        warn: Warn = warn_on_stderr,
        checkpoints: SavesTrees | None = None,
    ) -> None:
        self._directory = directory
        self._config = config
        self._checkpoints = checkpoints or Checkpoints(directory.path / FOLDER, keep=config.run.keep_checkpoints)
        self._warn = warn
        self.failed = 0
        self.saved = saved
        """Steps of the newest checkpoint, None without one."""

    def due(self, done: int) -> bool:
        """Whether `run.checkpoint_every` asks for a checkpoint after `done` steps."""
        every = self._config.run.checkpoint_every
        return bool(every) and done % every == 0

    def save(self, done: int, state: Callable[[], Mapping[str, Any]]) -> bool:
        """Write a checkpoint of the run after `done` steps; whether that could be done.

        A disk that is full or gone does not end the run: the earlier checkpoint stays, and a warning and an event say
        what happened.
        """
        if self.saved == done:
            return True
        started = time.perf_counter()
        try:
            # Actors hand their states over as files, so taking them can find a full disk too.
            tree = {"step": done, "config": self._config.model_dump(mode="json"), **state()}
            # What is recorded of these steps is on the disk before the state that follows them.
            self._directory.sync()
            path = self._checkpoints.save(done, tree)
        except OSError as error:
            self._not_saved(done, error)
            return False
        self.saved = done
        seconds = round(time.perf_counter() - started, 3)
        self._directory.append_event("checkpoint", step=done, name=path.name, seconds=seconds)
        return True

    def stopped(self, done: int, steps: int) -> str:
        """What an interrupted run says in the end."""
        begun = f"interrupted after step {done} of {steps}; "
        if self.saved is None:
            return begun + "no checkpoint could be saved."
        where = "there" if self.saved == done else f"step {self.saved}"
        return begun + f"'lecritique train --resume {self._directory.path}' goes on from {where}."

    def _not_saved(self, done: int, error: OSError) -> None:
        self.failed += 1
        last = "there is none yet" if self.saved is None else f"the last one is of step {self.saved}"
        message = f"the checkpoint after step {done} could not be written ({error}); {last}. The run goes on."
        with suppress(OSError):  # there may be no room for a line either
            self._directory.append_event("checkpoint_failed", step=done, failed=self.failed, message=message)
        self._warn(message)


def newest_checkpoint(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The newest whole checkpoint of the run in `path`, and the names of newer ones that are damaged.

    Raises:
        CheckpointError: the run has none.
    """
    checkpoints = Checkpoints(path / FOLDER)
    latest = checkpoints.latest()
    if latest is None:
        damaged = checkpoints.names()
        found = f"those there are incomplete or damaged: {', '.join(damaged)}" if damaged else "none was saved"
        raise CheckpointError(f"'{path}' has no checkpoint to resume from ({found}); start the run again.")
    return latest, checkpoints.names_after(latest)


def saved_tree(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint of one process or of several holds, with whole tensors.

    Raises:
        CheckpointError: it is incomplete, damaged or of another format.
    """
    if not (checkpoint / SHARDS).is_dir():
        return load_checkpoint(checkpoint)
    from lecritique.distributed.checkpoints import load_sharded

    return load_sharded(checkpoint)
