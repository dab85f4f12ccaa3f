"""Reading run directories and comparisons, also while they are being written.

What of `metrics.jsonl` counts, `metric_rows.py` says. Everything that does not fit is one DataError naming file and
line.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.metric_rows import MetricRows, number_of, shown
from lecritique.analysis.saved_rollouts import RolloutTable, read_rollouts
from lecritique.core.errors import DataError

COMPARE_SCHEMA = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run directory.

    `steps` [N] are the recorded steps in order; every array of `metrics` has the same length, NaN where
    the run wrote null or nothing.
    """

    path: Path
    arm: str
    seed: int
    config: Mapping[str, Any]
    status: Mapping[str, Any]
    steps: NDArray[np.int64]
    metrics: Mapping[str, NDArray[np.float64]]

    def series(self, name: str) -> NDArray[np.float64]:
        """Metric `name` at every recorded step [N]; all NaN when the run never wrote it."""
        found = self.metrics.get(name)
        return found if found is not None else np.full(len(self.steps), np.nan)

    @property
    def state(self) -> str:
        """`running`, `finished`, `failed`, `interrupted`, `diverged`, or `unknown` without a status file."""
        return str(self.status.get("state", "unknown"))

    @property
    def finished(self) -> bool:
        """Whether the run reached its last step."""
        return self.state == "finished"

    @property
    def planned_steps(self) -> int | None:
        """Steps that the run was asked for, where its status or config says so."""
        for value in (self.status.get("steps"), nested(self.config, "run", "steps")):
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
        return None

    @property
    def estimator(self) -> str:
        """The configured advantage estimator, `?` when the config does not name one."""
        return str(nested(self.config, "estimator", "type") or "?")

    @property
    def rollout_files(self) -> tuple[Path, ...]:
        """Files of saved rollouts, oldest step first."""
        return tuple(sorted((self.path / "rollouts").glob("step-*.parquet"), key=rollout_step))

    def late_rollout_files(self) -> tuple[Path, ...]:
        """Files of the last third of the recorded steps; the newest one when the third holds none."""
        files = self.rollout_files
        if not files or not len(self.steps):
            return files[-1:]
        first = self.steps[-max(1, len(self.steps) // 3)]
        return tuple(f for f in files if rollout_step(f) >= first) or files[-1:]

    def rollouts(self) -> Iterator[RolloutTable]:
        """Saved rollouts, one table a file, read when asked for."""
        return (read_rollouts(path) for path in self.rollout_files)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What `compare.json` says: arms and seeds in its order, the untrained model's mean reward where it is known."""

    recipe: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    base_reward: float | None
    base_rollouts: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Arms that share seeds. `runs` holds what exists: an arm or seed that has not started is absent."""

    path: Path
    recipe: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Mapping[tuple[str, int], Run]
    base_reward: float | None = None
    base_rollouts: int | None = None
    single: bool = False

    def runs_of(self, arm: str) -> tuple[Run | None, ...]:
        """The arm's run of every seed, None where there is none."""
        return tuple(self.runs.get((arm, seed)) for seed in self.seeds)


def load_run(directory: str | Path) -> Run:
    """Read one run directory.

    Raises:
        DataError: there is no `config.json`, or a file does not hold what it should.
    """
    path = Path(directory)
    config = json_object(path / "config.json")
    if config is None:
        raise DataError(f"{path} is not a run directory: it has no config.json")
    status = json_object(path / "status.json") or {}
    steps, metrics = _read_metrics(path / "metrics.jsonl")
    arm, seed = arm_and_seed(path, config)
    return Run(
        path=path,
        arm=arm,
        seed=seed,
        config=config,
        status=status,
        steps=steps,
        metrics=metrics,
    )


def arm_and_seed(run: Path, config: Mapping[str, Any]) -> tuple[str, int]:
    """What a run that stands by itself calls its arm and seed."""
    arm, seed = (
        nested(config, "preset") or nested(config, "estimator", "type") or run.name,
        nested(config, "run", "seed"),
    )
    return str(arm), seed if isinstance(seed, int) else 0


def load_comparison(directory: str | Path) -> Comparison:
    """Read a comparison; a single run directory is a comparison with one arm and one seed.

    Raises:
        DataError: neither `compare.json` nor `config.json` is there, or a file does not hold what it should.
    """
    path = Path(directory)
    declared = load_declared(path)
    if declared is None:
        if not (path / "config.json").exists():
            raise DataError(f"'{path}' has neither compare.json (a comparison) nor config.json (a run).")
        run = load_run(path)
        return Comparison(
            path=path,
            recipe=_title(path),
            arms=(run.arm,),
            seeds=(run.seed,),
            runs={(run.arm, run.seed): run},
            single=True,
        )
    return Comparison(
        path=path,
        recipe=declared.recipe,
        arms=declared.arms,
        seeds=declared.seeds,
        runs={
            (arm, seed): replace(load_run(folder), arm=arm, seed=seed)
            for arm, seed, folder in started_runs(path, declared)
        },
        base_reward=declared.base_reward,
        base_rollouts=declared.base_rollouts,
    )


def load_declared(directory: str | Path) -> Declared | None:
    """Read what a comparison is to consist of; None where there is no `compare.json`.

    Raises:
        DataError: the file does not hold what it should.
    """
    path = Path(directory)
    file = path / "compare.json"
    declared = json_object(file)
    if declared is None:
        return None
    if declared.get("schema") != COMPARE_SCHEMA:
        raise DataError(f"{file}: schema is {declared.get('schema')!r}, expected {COMPARE_SCHEMA}")
    rollouts = _optional_number(declared, "base_rollouts", file)
    return Declared(
        recipe=str(declared.get("recipe") or _title(path)),
        arms=_arms(declared, file),
        seeds=_seeds(declared, file),
        base_reward=_optional_number(declared, "base_reward", file),
        base_rollouts=None if rollouts is None else int(rollouts),
    )


def started_runs(directory: Path, declared: Declared) -> Iterator[tuple[str, int, Path]]:
    """Arm, seed and folder of each run of a comparison that has been started."""
    for arm in declared.arms:
        for seed in declared.seeds:
            folder = directory / arm / f"seed-{seed}"
            # A name that the file system cannot have is no run either; `Path.exists` would raise.
            if os.path.exists(folder / "config.json"):
                yield arm, seed, folder


def nested(config: Any, *keys: str) -> Any:
    """The value under a path of keys, None where the path ends early."""
    for key in keys:
        if not isinstance(config, Mapping):
            return None
        config = config.get(key)
    return config


def _arms(declared: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    arms = declared.get("arms")
    if not isinstance(arms, list) or not arms or not all(isinstance(arm, str) and arm for arm in arms):
        raise DataError(f"{file}: arms is {shown(arms)}, expected a non-empty list of names")
    for arm in arms:
        if arm in (".", "..") or any(c in arm for c in "/\\\0"):
            raise DataError(f"{file}: arm {arm!r} is not a plain directory name")
    if len(set(arms)) != len(arms):
        raise DataError(f"{file}: arms names one arm twice: {shown(arms)}")
    return tuple(arms)


def _seeds(declared: Mapping[str, Any], file: Path) -> tuple[int, ...]:
    seeds = declared.get("seeds")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise DataError(f"{file}: seeds is {shown(seeds)}, expected a non-empty list of integers")
    if len(set(seeds)) != len(seeds):
        raise DataError(f"{file}: seeds names one seed twice: {shown(seeds)}")
    return tuple(seeds)


def _optional_number(record: Mapping[str, Any], key: str, where: Path) -> float | None:
    value = math.nan if record.get(key) is None else number_of(record, key, where)
    return value if math.isfinite(value) else None


def json_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in `file`, None when there is no such file."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as text ({error})") from error
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError(f"{file}, line {line}: not JSON ({getattr(error, 'msg', error)})") from error
    if not isinstance(found, dict):
        raise DataError(f"{file}, line 1: expected a JSON object, got {shown(found)}")
    return found


def _read_metrics(file: Path) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    read = MetricRows(file)
    try:
        read.feed(file.read_bytes())
        read.end()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error})") from error
    rows = read.held
    steps = sorted(rows)
    names = {name: None for step in steps for name in rows[step]}
    columns = {name: np.array([rows[step].get(name, math.nan) for step in steps], dtype=np.float64) for name in names}
    return np.array(steps, dtype=np.int64), columns


def rollout_step(file: Path) -> int:
    """The step in the name of a file of saved rollouts, -1 without one."""
    digits = file.stem.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def _title(path: Path) -> str:
    return path.resolve().name or "run"
