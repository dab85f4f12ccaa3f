"""A trainer whose process ends takes the run back to its newest checkpoint, without ending the run's own process.

What was done since is done again, as `train --resume` would; engines and evaluators that live keep their processes.
"""

from __future__ import annotations

from pathlib import Path

from lecritique.actors.cluster import ActorLost
from lecritique.core.errors import CheckpointError, RoleFailure
from lecritique.runs.checkpoints import checkpoint_step
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.actor_roles import ActorRoles
from lecritique.runtime.build import Base, Parts, build
from lecritique.runtime.run_state import restore_run, versions_of
from lecritique.runtime.saving import Warn, newest_checkpoint, saved_tree, warn_on_stderr
from lecritique.runtime.training import OnStep, record_end, train


def train_on_actors(
    base: Base,
    parts: Parts,
    directory: RunDirectory,
    *,
    first: int = 0,
    on_step: OnStep = lambda step, metrics: None,
    warn: Warn = warn_on_stderr,
) -> None:
    """`train`, and again from the newest checkpoint each time that a trainer is lost, `runtime.actors.restores` times.

    Args:
        base: what the parts were built from.
        parts: with actors.
        directory: see `train`.
        first: likewise.
        on_step: likewise.
        warn: likewise.

    Raises:
        RoleFailure: a trainer was lost once more.
        LecritiqueError: see `train`.
    """
    assert parts.actors is not None
    allowed = base.config.runtime.actors.restores
    actors, now = parts.actors, first
    for left in range(allowed, -1, -1):
        try:
            if left < allowed:
                parts, now = _restored(base, actors, directory, restores_left=left)
            train(parts, directory, first=now, on_step=on_step, warn=warn, restores_left=left)
            return
        except ActorLost as lost:
            if not left:
                again = (
                    f" 'runtime.actors.restores' = {allowed} times the run has gone back already." if allowed else ""
                )
                raise RoleFailure(f"{lost}{again}") from lost
            warn(f"{lost} The run goes back to its newest checkpoint; {left - 1} more times it may.")


def _restored(base: Base, actors: ActorRoles, directory: RunDirectory, *, restores_left: int) -> tuple[Parts, int]:
    """The roles as the newest checkpoint, or the start of the run, has them, and the steps that are done.

    What ends the run here is recorded: all but an actor that is lost while the run may go back once more.
    """
    step = 0
    try:
        checkpoint, passed_over = _newest(directory.path)
        step = 0 if checkpoint is None else checkpoint_step(checkpoint)
        parts = build(base, actors=actors)
        done = 0 if checkpoint is None else restore_run(parts, saved_tree(checkpoint))
        directory.go_on(
            base.config,
            step=done,
            checkpoint=None if checkpoint is None else checkpoint.name,
            passed_over=list(passed_over),
            changes={},
            data=parts.data.counts.record(),
            versions=versions_of(parts),
        )
    except BaseException as error:
        if not (isinstance(error, ActorLost) and restores_left):
            record_end(directory, error, step=step, steps=base.config.run.steps)
        raise
    return parts, done


def _newest(path: Path) -> tuple[Path | None, tuple[str, ...]]:
    try:
        return newest_checkpoint(path)
    except CheckpointError:  # none yet: it starts again
        return None, ()
