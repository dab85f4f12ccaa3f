"""Takes up a run where its newest whole checkpoint left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lecritique.config.resume import Changes, allowed_changes, changes_bits, with_changes
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.models.devices import default_device
from lecritique.runs.checkpoints import checkpoint_step
from lecritique.runs.directory import RunDirectory, read_config, read_end, read_status
from lecritique.runtime.build import Base, Parts, build, load_base, resolved_against
from lecritique.runtime.run_state import restore_run, versions_of
from lecritique.runtime.saving import newest_checkpoint, saved_tree
from lecritique.runtime.spending import limits_of

if TYPE_CHECKING:
    from lecritique.runtime.actor_roles import ActorRoles
    from lecritique.runtime.training_group import TrainingGroup


@dataclass(frozen=True, kw_only=True, eq=False)
class Resume:
    """A run that can go on, held by this process; nothing of it has been changed.

    `first` are the steps that are done, `passed_over` the names of newer checkpoints that are damaged.
    """

    directory: RunDirectory
    base: Base
    changes: Changes
    checkpoint: Path
    first: int
    passed_over: tuple[str, ...]

    def begin(self, group: TrainingGroup | None = None, actors: ActorRoles | None = None) -> Parts:
        """The roles as the checkpoint left them; the run's directory says from now on that it was resumed.

        Args:
            group: the processes that train, for more than one.
            actors: what holds the models, where this process does not.

        Raises:
            CheckpointError: the checkpoint does not fit the run.
        """
        parts = build(self.base, group, actors)
        restore_run(parts, _tree_of(self.checkpoint, group))
        self.directory.go_on(
            self.base.config,
            step=self.first,
            checkpoint=self.checkpoint.name,
            passed_over=list(self.passed_over),
            changes={key: list(values) for key, values in self.changes.items()},
            data=parts.data.counts.record(),
            versions=versions_of(parts),
        )
        return parts

    @property
    def notes(self) -> list[str]:
        """What a person is told before it goes on."""
        steps = self.base.config.run.steps
        lines = [f"Resuming after step {self.first} of {steps} from {self.checkpoint.name}."]
        lines += [f"Damaged and passed over: {name}." for name in self.passed_over]
        lines += [f"Changed: {key} = {after!r}, it was {before!r}." for key, (before, after) in self.changes.items()]
        if changes_bits(self.changes):
            lines.append("Sums are taken in another order now: the last bits differ from those of an unchanged run.")
        return lines


def _tree_of(checkpoint: Path, group: TrainingGroup | None) -> dict[str, Any]:
    """What one process or several have saved, for one or several."""
    if group is not None:
        return group.checkpoints(checkpoint.parent, keep=1).load(checkpoint)
    return saved_tree(checkpoint)


def resume(path: Path, overrides: Sequence[str]) -> Resume:
    """Check everything before anything is written.

    Args:
        path: of the run.
        overrides: of keys that may change, see `config/resume.py`.

    Raises:
        ConfigurationError: it is no run, is being written, is finished, or would become another run.
        CheckpointError: it has no whole checkpoint.
    """
    own = read_config(path)
    directory = RunDirectory.reopen(path)
    try:
        return _checked(directory, own, with_changes(own, overrides, machine=default_device()), overrides)
    except BaseException:
        directory.close()
        raise


def _checked(directory: RunDirectory, own: RunConfig, wanted: RunConfig, overrides: Sequence[str]) -> Resume:
    path = directory.path
    checkpoint, passed_over = newest_checkpoint(path)
    base = load_base(wanted)
    # Resolved too, so that a key that is newer than the run counts as what it means by default.
    changes = allowed_changes(resolved_against(own, base.environment, base.language), base.config, overrides=overrides)
    first, steps = checkpoint_step(checkpoint), base.config.run.steps
    if first > steps:
        raise ConfigurationError(f"'run.steps' = {steps} lies behind the {first} steps that '{path}' has done already.")
    if first == steps and read_status(path) == "finished":
        raise ConfigurationError(
            f"'{path}' is finished, all {steps} steps are done: nothing is left to resume. For more, add for example "
            f"run.steps={2 * steps}."
        )
    limits = limits_of(base.config.run.budget)
    end = read_end(path)
    if end is not None and end[1].share_of(limits) >= 1.0:
        unit = max(limits, key=lambda unit: getattr(end[1], unit) / limits[unit])
        spent = f"{getattr(end[1], unit):,.10g} of {limits[unit]:,.10g} {unit}"
        raise ConfigurationError(
            f"'{path}' is finished, its budget is spent ({spent}): "
            f"nothing is left to resume. For more, add for example run.budget.{unit}={2 * limits[unit]:.10g}."
        )
    return Resume(
        directory=directory,
        base=base,
        changes=changes,
        checkpoint=checkpoint,
        first=first,
        passed_over=passed_over,
    )
