"""What `lecritique eval` measures: which policy on which sets with which settings, decided before it starts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from lecritique.config.load import Recipe, compose, load_recipe, recipe_names
from lecritique.config.resolve import micro_batch_tokens_on
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.core.seeds import derive_seed
from lecritique.models.chat import ChatRenderer
from lecritique.models.devices import default_device
from lecritique.models.weights import MemoryWeightStore
from lecritique.runs.evaluations import EvaluationFolder, ProblemResult
from lecritique.runtime.build import sampling_of
from lecritique.runtime.engines import configured_engine
from lecritique.runtime.evaluation import evaluate_set
from lecritique.runtime.evaluation_sets import EvalSet, first_rows
from lecritique.runtime.policies import LoadedPolicy, load_policy
from lecritique.tasks.protocol import Environment
from lecritique.tasks.registry import load_environment, resolve_options, task_names
from lecritique.tasks.splits import split_rows

Rows = Literal["evaluation", "train", "all"]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the command was asked for; None is what the recipe says.

    `k` samples a problem, by default the recipe's group size; at most `rows` problems of each set, 0 for all; `split`
    of the rows, by default what is kept for evaluation, and all where nothing is.
    """

    tasks: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    k: int | None = None
    rows: int = 0
    split: Rows | None = None
    split_by: str | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationPlan:
    """A policy, the sets and the settings that the results depend on."""

    policy: LoadedPolicy
    config: RunConfig
    sets: tuple[EvalSet, ...]
    settings: dict[str, Any]
    notes: tuple[str, ...] = field(default=())


def plan_evaluation(source: str, wishes: Wishes) -> EvaluationPlan:
    """Load the policy and all sets.

    Raises:
        ConfigurationError: no policy, recipe, task or key of that name, or a limit over the model's context length.
        CheckpointError: a run without a whole checkpoint.
        DataError: a set without a problem.
    """
    _require_there(source)
    configs = _configs(source, wishes)
    first = next(iter(configs.values()))
    device = first.runtime.device or default_device()
    for name, config in configs.items():
        for key in ("dtype", "device"):
            if getattr(config.runtime, key) != getattr(first.runtime, key):
                raise ConfigurationError(
                    f"--task {name!r} has 'runtime.{key}' = {getattr(config.runtime, key)!r} and the first task has "
                    f"{getattr(first.runtime, key)!r}; the policy is loaded once: give 'runtime.{key}' as an override."
                )
    policy = load_policy(source, dtype=getattr(torch, first.runtime.dtype), device=device)
    sets, described = [], {}
    for name, config in configs.items():
        made, settings = _set(name, config, wishes, policy)
        sets.append(made)
        described[name] = settings
    settings = {
        "policy": {"source": str(Path(policy.source)), "step": policy.step, "weights": policy.digest},
        "dtype": first.runtime.dtype,
        "seed": wishes.seed,
        "split_by": wishes.split_by,
        "sets": described,
    }
    notes = tuple(_trained_on(name, configs[name], described[name], policy) for name in described)
    return EvaluationPlan(
        policy=policy,
        config=_filled(first, device),
        sets=tuple(sets),
        settings=settings,
        notes=tuple(note for note in notes if note),
    )


def _filled(config: RunConfig, device: str) -> RunConfig:
    """With what the engine reads of `runtime` and a device decides; nothing else of this configuration is resolved."""
    tokens = config.runtime.micro_batch_tokens or micro_batch_tokens_on(device)
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"micro_batch_tokens": tokens})})


def _require_there(source: str) -> None:
    """Raise ConfigurationError for what can only be meant as a path and leads nowhere; the rest may be a hub id."""
    path = Path(source).expanduser()
    as_path = path.is_absolute() or source.startswith((".", "~")) or len(path.parts) > 2
    beside = len(path.parts) == 2 and path.parent.is_dir()
    if (as_path or beside) and not path.exists():
        raise ConfigurationError(f"there is no run, checkpoint or model folder '{source}' to evaluate.")


def run_evaluation(
    plan: EvaluationPlan, folder: EvaluationFolder, *, on_problem: Callable[[ProblemResult], None] = lambda result: None
) -> None:
    """Play what is missing; every finished problem is on the disk before the next is shown.

    Raises:
        RoleFailure: the engine could not generate.
    """

    def keep(result: ProblemResult) -> None:
        folder.append(result)
        on_problem(result)

    renderer = ChatRenderer(plan.policy.language.tokenizer)
    longest = max(problems.max_total_tokens for problems in plan.sets)
    engine = configured_engine(plan.policy.language.model, MemoryWeightStore(), plan.config, max_length=longest)
    try:
        for problems in plan.sets:
            evaluate_set(problems, engine=engine, renderer=renderer, done=folder.done(problems.name), on_problem=keep)
    finally:
        engine.close()


def _configs(source: str, wishes: Wishes) -> dict[str, RunConfig]:
    """The configuration of each set by its name, the words of its --task."""
    if not wishes.tasks:
        raise ConfigurationError(
            f"nothing to evaluate '{source}' on: give --task with a recipe or a task type, once or several times."
        )
    configs: dict[str, RunConfig] = {}
    for text in wishes.tasks:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigurationError(f"--task {text!r}: {error}.") from error
        if not words:
            raise ConfigurationError(f"--task {text!r}: expected a recipe or a task type.")
        name = " ".join(words)
        if name in configs:
            raise ConfigurationError(f"--task {name!r} is given twice.")
        configs[name] = compose(_recipe(words[0]), overrides=[*wishes.overrides, *words[1:]])
    return configs


def _recipe(name: str) -> Recipe:
    """A recipe, or a task type as a recipe that says nothing else."""
    is_type = name in task_names() or (":" in name and not name.endswith(".toml"))
    if is_type and name not in recipe_names():
        return Recipe(name=name, text="", tree={"task": {"type": name}}, arms={}, default_arm=None)
    return load_recipe(name)


def _set(name: str, config: RunConfig, wishes: Wishes, policy: LoadedPolicy) -> tuple[EvalSet, dict[str, Any]]:
    environment = load_environment(config.task.type, config.task.options, seed=config.run.seed)
    options = resolve_options(config.task.type, config.task.options, seed=config.run.seed)
    split: Rows = wishes.split or ("evaluation" if config.data.evaluation_fraction else "all")
    rows = first_rows(_rows(environment, config, split, name), wishes.rows, name)
    length = policy.language.context_length
    limit = config.sampling.max_total_tokens or length
    if limit > length:
        raise ConfigurationError(
            f"--task {name!r}: 'sampling.max_total_tokens' = {limit} is over the context length of '{policy.source}', "
            f"which is {length}."
        )
    made = EvalSet(
        name=name,
        environment=environment,
        rows=rows,
        k=wishes.k or config.rollout.group_size,
        sampling=sampling_of(config),
        max_turn_tokens=config.sampling.max_turn_tokens,
        max_total_tokens=limit,
        seed=derive_seed(wishes.seed, f"evaluation.{name}"),
        split_by=wishes.split_by,
    )
    return made, _described(made, config, options.model_dump(mode="json", exclude_none=True), split)


def _rows(environment: Environment, config: RunConfig, split: Rows, name: str) -> Sequence[int]:
    if split == "all":
        return range(len(environment))
    fraction = config.data.evaluation_fraction
    if split == "evaluation" and not fraction:
        raise ConfigurationError(
            f"--split evaluation: --task {name!r} keeps no rows for evaluation; add data.evaluation_fraction, or use "
            "--split all."
        )
    return split_rows(environment, split, evaluation_fraction=fraction)


def _described(problems: EvalSet, config: RunConfig, options: Mapping[str, Any], split: Rows) -> dict[str, Any]:
    low, high = problems.environment.reward_range
    return {
        "task": {**options, "type": config.task.type},
        "split": split,
        "evaluation_fraction": config.data.evaluation_fraction,
        "problems": len(problems.rows),
        "k": problems.k,
        "temperature": problems.sampling.temperature,
        "top_p": problems.sampling.top_p,
        "top_k": problems.sampling.top_k,
        "max_turn_tokens": problems.max_turn_tokens,
        "max_total_tokens": problems.max_total_tokens,
        "reward_range": [float(low), float(high)],
    }


def _trained_on(name: str, config: RunConfig, settings: Mapping[str, Any], policy: LoadedPolicy) -> str:
    """A warning where the policy's own run trained on these rows; empty otherwise."""
    run = policy.run
    if run is None or run.task.type != config.task.type or settings["split"] == "evaluation":
        return ""
    own = {key: value for key, value in run.task.options.items() if value is not None}
    if {**own, "type": run.task.type} != settings["task"]:
        return ""
    return f"{name}: the run trained on rows of this very task; this is no held-out figure."
