"""Runs arms x seeds as processes of their own, a few at a time, and picks up where it stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lecritique.config.comparison import budget_overrides, budget_unit
from lecritique.config.load import Recipe, compose, parse_override
from lecritique.config.resolve import differences
from lecritique.config.schema import BudgetSection, RunConfig
from lecritique.core.errors import EXIT_OK, ConfigurationError
from lecritique.core.metrics import null_if_undefined
from lecritique.runs.checkpoints import FOLDER as CHECKPOINTS
from lecritique.runs.checkpoints import Checkpoints
from lecritique.runs.directory import is_being_written, locked, parsed_config, read_config, read_status, write_json
from lecritique.runtime.base_reward import base_reward
from lecritique.runtime.build import Base, load_base, resolved_against
from lecritique.runtime.parent import named_parent
from lecritique.runtime.spending import limits_of
from lecritique.runtime.threads import available_cores, thread_environment

BASE_ROLLOUTS = 512
# A run that is asked to stop finishes its step and saves a checkpoint first.
SECONDS_TO_STOP = 60.0
_LOCK = ".lock"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of the comparison."""

    arm: str
    seed: int
    config: RunConfig
    path: Path
    command: tuple[str, ...]
    parameters: int
    """Of the policy; how many threads are of use depends on it."""

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
    recipe_name: str,
    recipe: Recipe,
    *,
    arms: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    out: Path,
    budget: BudgetSection | None = None,
) -> Plan:
    """Check every arm before anything starts, measure the base model, and see what is done.

    Args:
        recipe_name: as a child is told it.
        recipe: the same, loaded.
        arms: presets or arms of it.
        seeds: of each arm.
        overrides: for every arm.
        out: the comparison's directory.
        budget: what each run may spend, in one unit; `run.steps` is then no limit unless an override sets it.

    Raises:
        ConfigurationError: an arm that cannot run, or a directory that holds something else.
    """
    _refuse_arms_and_seeds(overrides)
    given, overrides = list(overrides), [*budget_overrides(budget or BudgetSection()), *overrides]
    known = _known(out, recipe.name)
    overrides = [*_as_held(out, known, compose(recipe, arm=arms[0], overrides=overrides)), *overrides]
    bases = _Bases()
    first = bases.of(compose(recipe, arm=arms[0], overrides=overrides))

    def job(arm: str, seed: int) -> Job:
        path = out / arm / f"seed-{seed}"
        composed = compose(recipe, arm=arm, overrides=overrides)
        config = bases.resolved(_seeded(composed, seed))
        parameters = bases.of(composed).language.model.num_parameters()
        command = _command(recipe_name, overrides, arm, seed, path)
        return Job(arm=arm, seed=seed, config=config, path=path, command=command, parameters=parameters)

    wanted = [job(arm, seed) for seed in seeds for arm in arms]
    every_arm = list(dict.fromkeys([*known.get("arms", []), *arms]))
    every_seed = sorted({*known.get("seeds", []), *seeds})
    earlier = [
        job(arm, seed)
        for seed in every_seed
        for arm in every_arm
        if os.path.isfile(out / arm / f"seed-{seed}" / "config.json")
    ]
    # Runs that are not asked for now are compared too: nothing of another configuration gets into one report.
    for held in earlier:
        _require_same(held)
    finished = tuple(wish for wish in wanted if read_status(wish.path) == "finished")
    for wish in wanted:
        if wish not in finished:
            _require_idle(wish)
    record = {
        "schema": 1,
        "recipe": recipe.name,
        "arms": every_arm,
        "seeds": every_seed,
        "overrides": given,
        **_budget_line(budget),
        **_base_line(known, first),
    }
    return Plan(out=out, jobs=tuple(wish for wish in wanted if wish not in finished), finished=finished, record=record)


def _as_held(out: Path, known: Mapping[str, Any], composed: RunConfig) -> list[str]:
    """Overrides that give what is left to the device the values of the runs here: one comparison, one kind of run.

    What a device decides may change from one version to the next, and a comparison that was begun goes on.
    """
    runs = [out / arm / f"seed-{seed}" for arm in known.get("arms", []) for seed in known.get("seeds", [])]
    held = next((run for run in runs if (run / "config.json").is_file()), None)
    if held is None:
        return []
    try:
        runtime = read_config(held).runtime
    except ConfigurationError:  # refused in its place, with all others that do not belong here
        return []
    left_open = [key for key in ("layout", "micro_batch_tokens") if getattr(composed.runtime, key) is None]
    return [f"runtime.{key}={getattr(runtime, key)}" for key in left_open]


def _budget_line(budget: BudgetSection | None) -> dict[str, Any]:
    """The budget in the record, where there is one."""
    unit = None if budget is None else budget_unit(budget)
    return {} if budget is None or unit is None else {"budget": {unit: limits_of(budget)[unit]}}


def _base_line(known: dict[str, Any], base: Base) -> dict[str, Any]:
    """The base model's reward, measured once for a comparison."""
    if known.get("base_reward") is not None:
        return {"base_reward": known["base_reward"], "base_rollouts": known.get("base_rollouts")}
    reward = base_reward(base, rollouts=BASE_ROLLOUTS)
    return {"base_reward": null_if_undefined(reward), "base_rollouts": BASE_ROLLOUTS}


class _Bases:
    """Tasks and models by what they are loaded from: once for arms that share them."""

    def __init__(self) -> None:
        self._loaded: dict[str, Base] = {}

    def of(self, config: RunConfig) -> Base:
        runtime = config.runtime
        layout = (runtime.dtype, str(runtime.device), str(runtime.layout))
        key = "|".join((config.task.model_dump_json(), config.model.name, *layout))
        if key not in self._loaded:
            self._loaded[key] = load_base(config)
        return self._loaded[key]

    def resolved(self, config: RunConfig) -> RunConfig:
        base = self.of(config)
        return resolved_against(config, base.environment, base.language)


def run(
    comparison: Plan,
    *,
    jobs: int,
    watch: Callable[[Sequence[Job], Sequence[Job]], None],
    cores: int | None = None,
) -> dict[str, int]:
    """Run what is left, `jobs` at a time on `cores` (by default all there are); exit codes by job name.

    `watch` is called a few times a second with the running and the ended jobs.

    Raises:
        ConfigurationError: another comparison is writing here, or one of the runs is being written.
    """
    lock = _held(comparison.out)
    try:
        return _run(comparison, jobs=jobs, watch=watch, cores=cores)
    finally:
        if lock is not None:
            lock.close()


def _run(
    comparison: Plan, *, jobs: int, watch: Callable[[Sequence[Job], Sequence[Job]], None], cores: int | None
) -> dict[str, int]:
    write_json(comparison.out / "compare.json", comparison.record)
    cores = cores or available_cores()
    waiting = list(comparison.jobs)
    running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}
    codes: dict[str, int] = {}
    ended: list[Job] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                job = waiting.pop(0)
                if read_status(job.path) == "finished":  # by another comparison, since this one was planned
                    codes[job.name] = EXIT_OK
                    ended.append(job)
                    continue
                threads = thread_environment(job.parameters, cores=cores, jobs=jobs)
                running[job.name] = (job, _start(job, comparison.out, threads))
            time.sleep(0.25)
            for name in [name for name, (_, process) in running.items() if process.poll() is not None]:
                job, process = running.pop(name)
                codes[name] = process.returncode
                ended.append(job)
            watch([job for job, _ in running.values()], ended)
    finally:
        _end([process for _, process in running.values()])
    return codes


def _held(out: Path) -> BinaryIO | None:
    """The comparison's directory for this process alone: two at once would start the same runs and lose each other's
    arms and seeds in the record.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / _LOCK).touch()
    try:
        return locked(out / _LOCK)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"'{out}' is being written by another comparison; wait for it, end it, or choose another --out."
        ) from error


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask the processes to stop, and stop those that have not after a while, or when asked again."""
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.wait(timeout=SECONDS_TO_STOP)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def log_path(out: Path, job: Job) -> Path:
    """What a job printed."""
    return out / "logs" / f"{job.arm}-seed-{job.seed}.log"


def _command(recipe: str, overrides: Sequence[str], arm: str, seed: int, path: Path) -> tuple[str, ...]:
    return (
        # -P: a file beside the user that is named like a module of ours or of torch's is not imported in its place.
        *(sys.executable, "-P", "-m", "lecritique", "train", recipe, *overrides, f"run.seed={seed}"),
        *("--arm", arm, "--out", str(path)),
    )


def _refuse_arms_and_seeds(overrides: Sequence[str]) -> None:
    for text in overrides:
        keys, value = parse_override(text)
        if keys in (["preset"], ["run", "seed"]) or (keys == ["run"] and isinstance(value, dict) and "seed" in value):
            raise ConfigurationError(
                f"override '{text}': in a comparison arms and seeds come from --arms and --seeds, not from overrides."
            )
        if keys[:2] == ["run", "budget"] or (keys == ["run"] and isinstance(value, dict) and "budget" in value):
            raise ConfigurationError(
                f"override '{text}': in a comparison the budget comes from --budget, so that all arms have the same."
            )


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})


def _known(out: Path, recipe: str) -> dict[str, Any]:
    """The record of an earlier call in the same directory, empty when it is new."""
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"'{out}' is a file; choose another --out.")
    above = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):  # before anything costs time
        raise ConfigurationError(f"'{out}' cannot be made or written to; choose another --out.")
    if not out.exists() or not any(entry.name != _LOCK for entry in out.iterdir()):
        return {}
    path = out / "compare.json"
    if not path.is_file():
        raise ConfigurationError(f"'{out}' already holds files that are no comparison; choose another --out.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"'{path}' is not valid JSON: {error}.") from error
    if not (
        isinstance(record, dict)
        and record.get("schema") == 1
        and _list_of(str, record.get("arms", []))
        and _list_of(int, record.get("seeds", []))
    ):
        raise ConfigurationError(f"'{path}' is not the record of a comparison; choose another --out.")
    if record.get("recipe") != recipe:
        raise ConfigurationError(
            f"'{out}' compares arms of recipe '{record.get('recipe')}', not of '{recipe}'; choose another --out."
        )
    return record


def _list_of(kind: type, found: object) -> bool:
    return isinstance(found, list) and all(isinstance(entry, kind) for entry in found)


def _require_same(job: Job) -> None:
    """Refuse a run of another configuration at the job's place, so that nothing is mixed."""
    path = job.path / "config.json"
    if not path.is_file():
        return
    try:
        held = parsed_config(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"'{path}' is not a configuration of this version; choose another --out.") from error
    for key, (theirs, ours) in differences(held, job.config).items():
        raise ConfigurationError(
            f"'{job.path}' was run with {key} = {theirs!r}, this comparison has {ours!r}; choose another --out."
        )


def _require_idle(job: Job) -> None:
    """Refuse to replace a run that lives: its process would write on into the new one."""
    if is_being_written(job.path):
        raise ConfigurationError(
            f"'{job.path}' is being written by a run that is still going; wait for it, end it, or choose another --out."
        )


def _start(job: Job, out: Path, threads: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command, resumes = job.command, False
    if job.path.exists():
        _require_idle(job)
        resumes = Checkpoints(job.path / CHECKPOINTS).latest() is not None
        if resumes:  # of the same configuration, which `plan` has checked
            command = (sys.executable, "-P", "-m", "lecritique", "train", "--resume", str(job.path))
        else:
            _set_aside(job.path)
    log = log_path(out, job)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab" if resumes else "wb") as file:
        # A group of its own: Ctrl-C reaches the comparison alone, which then ends its runs once.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads, **named_parent()},
            process_group=0,
        )


def _set_aside(path: Path) -> None:
    """Keep what an unfinished run left, under another name."""
    number = 1
    while (aside := path.with_name(f".{path.name}.unfinished-{number}")).exists():
        number += 1
    path.rename(aside)
