"""Runs arms x seeds as processes of their own, a few at a time, and picks up where it stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lecritique.config.load import Recipe, compose
from lecritique.config.resolve import differences, resolve
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.runs.directory import read_status, write_json
from lecritique.runtime.base_reward import base_reward
from lecritique.runtime.build import facts_of, load_base


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of the comparison."""

    arm: str
    seed: int
    config: RunConfig
    path: Path
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """Arm and seed."""
        return f"{self.arm} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a comparison will run, and what of it is done already."""

    out: Path
    jobs: tuple[Job, ...]
    finished: tuple[Job, ...]
    record: dict[str, Any]


def plan(
    recipe_name: str, recipe: Recipe, *, arms: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], out: Path
) -> Plan:
    """Check every arm before anything starts, measure the base model, and see what is done.

    Raises:
        ConfigurationError: an arm that cannot run, or a directory that holds something else.
    """
    if any(text.startswith(("preset=", "run.seed=")) for text in overrides):
        raise ConfigurationError("in a comparison arms and seeds come from --arms and --seeds, not from overrides.")
    configs = {arm: compose(recipe, arm=arm, overrides=overrides) for arm in arms}
    first = load_base(configs[arms[0]])
    facts = facts_of(first.environment, first.language)
    jobs = [
        _job(recipe_name, arm, seed, overrides, out, resolve(_seeded(configs[arm], seed), facts))
        for seed in seeds
        for arm in arms
    ]
    known = _known(out)
    finished = tuple(job for job in jobs if _is_finished(job))
    record = {
        "schema": 1,
        "recipe": recipe.name,
        "arms": list(dict.fromkeys([*known.get("arms", []), *arms])),
        "seeds": sorted({*known.get("seeds", []), *seeds}),
        "overrides": list(overrides),
    }
    if known.get("base_reward") is not None:
        record |= {"base_reward": known["base_reward"], "base_rollouts": known["base_rollouts"]}
    else:
        record |= {"base_reward": base_reward(first), "base_rollouts": 512}
    return Plan(out=out, jobs=tuple(job for job in jobs if job not in finished), finished=finished, record=record)


def run(comparison: Plan, *, jobs: int, watch: Callable[[Sequence[Job], Sequence[Job]], None]) -> dict[str, int]:
    """Run what is left, `jobs` at a time; exit codes by job name.

    `watch` is called a few times a second with the running and the ended jobs.
    """
    comparison.out.mkdir(parents=True, exist_ok=True)
    write_json(comparison.out / "compare.json", comparison.record)
    waiting = list(comparison.jobs)
    running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}
    codes: dict[str, int] = {}
    ended: list[Job] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                job = waiting.pop(0)
                running[job.name] = (job, _start(job, comparison.out))
            time.sleep(0.25)
            for name in [name for name, (_, process) in running.items() if process.poll() is not None]:
                job, process = running.pop(name)
                codes[name] = process.returncode
                ended.append(job)
            watch([job for job, _ in running.values()], ended)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()
    return codes


def log_path(out: Path, job: Job) -> Path:
    """What a job printed."""
    return out / "logs" / f"{job.arm}-seed-{job.seed}.log"


def _job(recipe_name: str, arm: str, seed: int, overrides: Sequence[str], out: Path, config: RunConfig) -> Job:
    path = out / arm / f"seed-{seed}"
    command = (
        *(sys.executable, "-m", "lecritique", "train", recipe_name, *overrides, f"run.seed={seed}"),
        *("--arm", arm, "--out", str(path)),
    )
    return Job(arm=arm, seed=seed, config=config, path=path, command=command)


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})


def _known(out: Path) -> dict[str, Any]:
    """The record of an earlier call in the same directory, empty when it is new."""
    if not out.exists() or not any(out.iterdir()):
        return {}
    path = out / "compare.json"
    if not path.is_file():
        raise ConfigurationError(f"'{out}' already holds files that are no comparison; choose another --out.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"'{path}' is not valid JSON: {error}.") from error
    if not isinstance(record, dict):
        raise ConfigurationError(f"'{path}' holds {type(record).__name__}, expected the record of a comparison.")
    return record


def _is_finished(job: Job) -> bool:
    """Whether the job's run is done; one of another configuration is an error, so that nothing is mixed."""
    path = job.path / "config.json"
    if not path.is_file():
        return False
    held = RunConfig.model_validate_json(path.read_text(encoding="utf-8"))
    for key, (theirs, ours) in differences(held, job.config).items():
        raise ConfigurationError(
            f"'{job.path}' was run with {key} = {theirs!r}, this comparison has {ours!r}; choose another --out."
        )
    return read_status(job.path) == "finished"


def _start(job: Job, out: Path) -> subprocess.Popen[bytes]:
    if job.path.exists():
        _set_aside(job.path)
    log = log_path(out, job)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        return subprocess.Popen(
            job.command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=os.environ.copy()
        )


def _set_aside(path: Path) -> None:
    """Keep what an unfinished run left, under another name."""
    number = 1
    while (aside := path.with_name(f".{path.name}.unfinished-{number}")).exists():
        number += 1
    path.rename(aside)
