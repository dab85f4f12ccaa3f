"""What a critic is pretrained on: responses of one or more policies to the problems of a recipe, or those of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.core.columns import trajectories_from, trajectory_columns
from lecritique.core.errors import ConfigurationError, DataError, EngineFailure, RoleFailure
from lecritique.core.ids import GroupId
from lecritique.core.seeds import derive_seed
from lecritique.core.trajectory import Trajectory
from lecritique.credit.schedules import Group
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.collect import collect
from lecritique.runs.directory import read_config
from lecritique.runs.saved_trajectories import saved_trajectories
from lecritique.runs.state_files import read_tree, write_tree
from lecritique.runtime.build import Base
from lecritique.runtime.engines import embedded_engine
from lecritique.runtime.policies import LoadedPolicy
from lecritique.runtime.steps import group_request, valid_groups
from lecritique.tasks.protocol import checked_task

# Groups of a part of the collection; a part is on the disk once it is complete.
GROUPS_OF_A_PART = 64


@dataclass(frozen=True, kw_only=True)
class CollectionCounts:
    """What was collected. Failed rollouts have no return, and nothing is learnt from them."""

    rollouts: int = 0
    failed: int = 0
    truncated: int = 0


def collected_groups(
    base: Base,
    policies: Sequence[LoadedPolicy],
    rows: Sequence[int],
    *,
    size: int,
    folder: Path,
    on_part: Callable[[int, int], None] = lambda done, parts: None,
) -> tuple[list[Group], CollectionCounts]:
    """`size` responses of every policy to every row; parts that are in `folder` already are read from there.

    The attempt of a group is the number of its policy. Samples depend on policy, row and seed alone.

    Args:
        base: environment, renderer and sampling settings; resolved.
        policies: with the vocabulary of the base model.
        rows: of the environment.
        size: responses of one policy to one row.
        folder: of this collection with these settings, and of no other.
        on_part: told how many of the parts are done.

    Raises:
        DataError: a part that does not hold what it should.
        RoleFailure: a policy could not generate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    slices = [tuple(rows[start : start + GROUPS_OF_A_PART]) for start in range(0, len(rows), GROUPS_OF_A_PART)]
    groups: list[Group] = []
    rollouts, failed = 0, 0
    done, parts = 0, len(slices) * len(policies)
    for number, policy in enumerate(policies):
        for index, chosen in enumerate(slices):
            part = folder / f"policy-{number}-part-{index:05d}"
            if not part.is_dir():
                _write_part(part, _played(base, policy, number, chosen, size=size))
            held, failures = _read_part(part)
            groups += _grouped(base, held)
            rollouts, failed, done = rollouts + len(chosen) * size, failed + failures, done + 1
            on_part(done, parts)
    cut = sum(t.truncated for group in groups for t in group.trajectories)
    return groups, CollectionCounts(rollouts=rollouts, failed=failed, truncated=cut)


def _played(
    base: Base, policy: LoadedPolicy, number: int, rows: Sequence[int], *, size: int
) -> tuple[list[Trajectory], int]:
    config = base.config
    seed = derive_seed(config.run.seed, "pretrain_value")
    requests = [
        group_request(base.environment, config, GroupId(row, number), group_size=size, seed=seed) for row in rows
    ]
    # Embedded whatever is configured: a part's responses are the same again when the collection is gone on with.
    engine = embedded_engine(policy.language.model, MemoryWeightStore(), config)
    try:
        played = collect(requests, environment=base.environment, renderer=base.renderer, engine=engine)
    finally:
        engine.close()
    failures = [member.error for members in played for member in members if member.error is not None]
    broken = next((error for error in failures if isinstance(error, EngineFailure)), None)
    if broken is not None:
        raise RoleFailure(f"'{policy.source}' could not generate: {broken}.")
    return [t for group in valid_groups(played) for t in group.trajectories], len(failures)


def _write_part(part: Path, played: tuple[list[Trajectory], int]) -> None:
    trajectories, failures = played
    aside = part.with_name(f".writing-{part.name}")
    try:
        aside.mkdir()
        write_tree(aside, {"trajectories": trajectory_columns(trajectories), "failed": failures})
        aside.rename(part)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise ConfigurationError(f"'{part}' cannot be written: {error}.") from error


def _read_part(part: Path) -> tuple[list[Trajectory], int]:
    tree: dict[str, Any] = read_tree(part)
    try:
        return trajectories_from(tree["trajectories"]), int(tree["failed"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"'{part}' is no part of a collection ({error!r}); remove it to collect it again.") from error


def _grouped(base: Base, trajectories: Sequence[Trajectory]) -> list[Group]:
    by_group: dict[GroupId, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_group.setdefault(trajectory.group_id, []).append(trajectory)
    return [
        Group(group_id=group_id, task=checked_task(base.environment, group_id.row), trajectories=tuple(members))
        for group_id, members in by_group.items()
    ]


def saved_groups(base: Base, run: Path) -> list[Group]:
    """The groups of a run's saved rollouts, each with the task of its row.

    Raises:
        ConfigurationError: the run played another task or read another vocabulary.
        DataError: it has no saved rollouts, or a row is not the task that it says.
    """
    theirs = read_config(run)
    for key in ("task", "model"):
        own, other = (getattr(config, key).model_dump(mode="json") for config in (base.config, theirs))
        for name in sorted(own.keys() | other.keys()):
            if own.get(name) != other.get(name):
                raise ConfigurationError(
                    f"--rollouts '{run}' were made with '{key}.{name}' = {other.get(name)!r}, the recipe has "
                    f"{own.get(name)!r}; give the run's own."
                )
    found = list(saved_trajectories(run))
    ids: dict[int, str] = {}
    for task_id, trajectory in found:
        row = trajectory.group_id.row
        if row not in ids:
            ids[row] = checked_task(base.environment, row).task_id if row < len(base.environment) else "none"
        if ids[row] != task_id:
            raise DataError(f"'{run}': row {row} was task {task_id}, the recipe has {ids[row]} there.")
    return _grouped(base, [trajectory for _, trajectory in found])


def is_right(trajectory: Trajectory, reward_range: tuple[float, float]) -> bool:
    """Whether a response earned more than the middle of the reward range."""
    return trajectory.episode_return > sum(reward_range) / 2.0


def balanced_indices(right_N: NDArray[np.bool_], *, seed: int) -> NDArray[np.int64]:
    """Indices of responses in which wrong ones are repeated until they are as many as the right ones (VP appendix C).

    Whole copies first, then some of them drawn without replacement: no wrong response occurs twice more than another.
    Where they are as many already, or there is none, everything stays as it is: right ones are never repeated, for a
    critic that has seen too many of them overrates what the policy does.

    Args:
        right_N: which responses are right.
        seed: of the draw.

    Returns:
        [M], all responses among them, in order.
    """
    right, wrong = np.flatnonzero(right_N), np.flatnonzero(~right_N)
    if not len(wrong) or len(wrong) >= len(right):
        return np.arange(len(right_N))
    copies, rest = divmod(len(right), len(wrong))
    drawn = np.random.default_rng(seed).choice(wrong, size=rest, replace=False)
    return np.sort(np.concatenate([right, np.tile(wrong, copies), drawn]))
