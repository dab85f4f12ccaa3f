"""What studies of fixed responses share: a frozen policy, problems in disjoint parts, responses, and critics.

A study keeps everything that it made in one folder; the same call again goes on where it stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lecritique.analysis.read import load_comparison
from lecritique.analysis.study_critics import StudyCritic, fitted_critic, given_critic, named_context
from lecritique.config.load import compose, load_recipe, parse_override, with_override
from lecritique.config.resolve import uses_critic
from lecritique.config.schema import NoContext, RunConfig
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.seeds import derive_seed
from lecritique.credit.schedules import Group
from lecritique.critic.views import supports
from lecritique.runs.directory import read_config
from lecritique.runtime.build import Base, load_base
from lecritique.runtime.policies import LoadedPolicy, load_policy
from lecritique.runtime.pretraining import Point, loss_of
from lecritique.runtime.pretraining_data import CollectionCounts, collected_groups
from lecritique.runtime.threads import choose_threads
from lecritique.tasks.protocol import checked_task
from lecritique.tasks.splits import content_hash, split_of

CLEAN, LEAVE_ONE_OUT = "clean", "leave_one_out"
DEFAULT_CRITICS = (CLEAN, "answer", "solution", "both", "siblings", LEAVE_ONE_OUT)


@dataclass(frozen=True, kw_only=True)
class StudyWishes:
    """What a study of fixed responses was asked for.

    `critics` are names of contexts (None: all of `DEFAULT_CRITICS` that the task and the group allow), `given` saved
    critics by name; those that are not given are fitted on `critic_problems` problems that nothing else is measured on,
    for `epochs` or `most_seconds`, whichever ends first.
    """

    critics: tuple[str, ...] | None = None
    given: Mapping[str, Path] | None = None
    critic_problems: int = 256
    epochs: int = 4
    most_seconds: float = math.inf
    held_out: float = 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenPolicy:
    """A policy that stays as it is, with task, renderer and settings; `base.language` is the policy itself.

    `placement` is where contexts are put: where the recipe puts its own.
    """

    base: Base
    placement: str
    policy: LoadedPolicy
    origin: str
    cautions: tuple[str, ...]

    @property
    def model(self) -> Any:
        """The language model."""
        return self.base.language.model


def open_policy(target: str, overrides: Sequence[str], *, arm: str | None) -> FrozenPolicy:
    """The base policy of a recipe, or the last one of a run.

    Args:
        target: a recipe, a run or a comparison.
        overrides: `key.path=value`.
        arm: whose settings; by default the recipe's own, or the first of a comparison that trains a critic.

    Raises:
        ConfigurationError: no such recipe, run or arm, or one without a critic or with discounting.
        CheckpointError: a run without weights.
    """
    if Path(target).is_dir():
        folder = _run_of(Path(target), arm)
        tree = read_config(folder).model_dump(mode="json", exclude_none=True)
        for text in overrides:
            tree = with_override(tree, *parse_override(text))
        config, source = RunConfig.model_validate(tree), str(folder)
        cautions = ["The policy was trained on this task; problems that it is studied on may be among them."]
        if config.data.evaluation_fraction:
            cautions = []
    else:
        config, source, cautions = compose(load_recipe(target), arm=arm, overrides=overrides), "", []
    base = load_base(_for_studies(config))
    policy = LoadedPolicy(source=base.config.model.name, language=base.language, run=None, step=None)
    if source:
        runtime = base.config.runtime
        policy = load_policy(source, dtype=getattr(torch, runtime.dtype), device=str(base.language.model.device))
        base = replace(base, language=policy.language)
    choose_threads(base.language.model.num_parameters())
    return FrozenPolicy(
        base=base,
        placement=getattr(config.critic.context, "placement", "system_prefix"),
        policy=policy,
        origin=f"the policy of {source}" if source else f"the base policy of recipe {target}",
        cautions=tuple(cautions),
    )


def _run_of(path: Path, arm: str | None) -> Path:
    comparison = load_comparison(path)
    if arm is not None and arm not in comparison.arms:
        raise ConfigurationError(f"--arm: '{path}' has no arm '{arm}'; it has {', '.join(comparison.arms)}.")
    runs = [
        run.path
        for name in ([arm] if arm is not None else comparison.arms)
        for run in comparison.runs_of(name)[:1]
        if run is not None
    ]
    with_critic = [folder for folder in runs if uses_critic(read_config(folder))]
    if not runs:
        raise ConfigurationError(f"'{path}' has no run that was started.")
    return (with_critic or runs)[0]


def _for_studies(config: RunConfig) -> RunConfig:
    """The configuration with all usable rows: what a study leaves out it leaves out itself, for all critics alike."""
    if not uses_critic(config):
        raise ConfigurationError(
            f"'estimator.type' = '{config.estimator.type}' trains no critic, so it does not say how one is; give "
            "another --arm, such as pvf."
        )
    if getattr(config.estimator, "gamma", 1.0) != 1.0:
        raise ConfigurationError("critics are studied against the return itself: 'estimator.gamma' must be 1.0 here.")
    critic = config.critic.model_copy(update={"context": NoContext(), "loss": loss_of(config), "init": None})
    data = config.data.model_copy(update={"evaluation_fraction": 0.0, "contexts": None, "teachers": None})
    run = config.run.model_copy(update={"eval_every": 0})
    return config.model_copy(update={"critic": critic, "data": data, "run": run})


def part_problems(frozen: FrozenPolicy, wanted: Mapping[str, int], *, held_out: float) -> dict[str, tuple[int, ...]]:
    """Disjoint rows for each purpose; no question occurs twice. `critics` is drawn from the rows to train on.

    Args:
        frozen: whose rows.
        wanted: how many rows for each purpose.
        held_out: share of the questions that everything but `critics` is drawn from; as in `pretrain-value`.

    Raises:
        DataError: there are fewer questions.
    """
    base, seen = frozen.base, set[int]()
    parted: dict[str, list[int]] = {"train": [], "evaluation": []}
    rng = np.random.default_rng(derive_seed(base.config.run.seed, "response_study"))
    for row in rng.permutation(np.array(base.data.rows)).tolist():
        task = checked_task(base.environment, row)
        if content_hash(task) not in seen:
            seen.add(content_hash(task))
            parted[split_of(task, evaluation_fraction=held_out)].append(row)
    found = {}
    for purpose, count in wanted.items():
        part = "train" if purpose == "critics" else "evaluation"
        if len(parted[part]) < count:
            needed = sum(n for name, n in wanted.items() if (name == "critics") == (purpose == "critics"))
            raise DataError(
                f"{needed} different problems are needed from the {part} part ({held_out:g} of {len(seen)} are held "
                f"out), which has too few; ask for fewer problems, give the task more rows, or change --held-out."
            )
        found[purpose], parted[part] = tuple(parted[part][:count]), parted[part][count:]
    return found


def responses_to(
    frozen: FrozenPolicy, rows: Sequence[int], folder: Path, *, on_part: Callable[[int, int], None]
) -> tuple[list[Group], CollectionCounts]:
    """One group of responses of the frozen policy to each row, kept in `folder`."""
    size = frozen.base.config.rollout.group_size
    return collected_groups(frozen.base, [frozen.policy], rows, size=size, folder=folder, on_part=on_part)


def chosen_critics(frozen: FrozenPolicy, wishes: StudyWishes) -> tuple[str, ...]:
    """The names of all critics of a study, the clean one first.

    Raises:
        ConfigurationError: a name that says nothing, one twice, or one that this task or group cannot have.
    """
    given = dict(wishes.given or {})
    task, size = checked_task(frozen.base.environment, frozen.base.data.rows[0]), frozen.base.config.rollout.group_size
    names = list(DEFAULT_CRITICS) if wishes.critics is None else list(wishes.critics)
    if len(set(names)) < len(names):
        raise ConfigurationError(f"--critics: expected each critic once, got {','.join(names)}.")
    kept = []
    for name in [*names, *(name for name in given if name not in names)]:
        problem = _missing(frozen, task, name, size) if name not in given else ""
        if problem and wishes.critics is not None:
            raise ConfigurationError(f"--critics: '{name}' cannot be studied here: {problem}.")
        if not problem:
            kept.append(name)
    if CLEAN not in kept:
        raise ConfigurationError(f"--critics: every contrast is with the critic '{CLEAN}', which is not among them.")
    return (CLEAN, *(name for name in kept if name != CLEAN))


def _missing(frozen: FrozenPolicy, task: Any, name: str, size: int) -> str:
    if name in (LEAVE_ONE_OUT, "siblings") and size < 2:
        return "'rollout.group_size' = 1 leaves no other response"
    if name == LEAVE_ONE_OUT:
        return ""
    return "" if supports(task, named_context(name, frozen.placement)) else "the task does not have what it is told"


def critics_of(
    frozen: FrozenPolicy,
    names: Sequence[str],
    wishes: StudyWishes,
    rows: Sequence[int],
    measured: Sequence[Group],
    folder: Path,
    *,
    on_part: Callable[[int, int], None],
    on_point: Callable[[str, Point], None],
) -> list[StudyCritic]:
    """The critics with weights: given ones are loaded, the others fitted on `rows` or found in `folder`.

    `measured` says how they get on while they are fitted; nothing is chosen by it.
    """
    given = dict(wishes.given or {})
    groups: list[Group] | None = None
    found = []
    for name in names:
        if name == LEAVE_ONE_OUT:
            continue
        if name in given:
            found.append(given_critic(frozen.base, name, given[name]))
            continue
        if groups is None:
            groups, _ = responses_to(frozen, rows, folder / "critic-responses", on_part=on_part)
        found.append(
            fitted_critic(
                frozen.base,
                name,
                named_context(name, frozen.placement),
                groups,
                measured,
                folder / "critics" / name,
                epochs=wishes.epochs,
                most_seconds=wishes.most_seconds,
                on_point=lambda point, name=name: on_point(name, point),  # type: ignore[misc]
            )
        )
    return found


def cautions_of(frozen: FrozenPolicy, critics: Sequence[StudyCritic]) -> list[str]:
    """What a reader of the study has to know first."""
    found, updates = list(frozen.cautions), {c.name: c.updates for c in critics if c.updates is not None}
    if len(set(updates.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in updates.items())
        found.append(f"Critics were stopped by --fit-seconds after different numbers of updates: {told}.")
    if any(critic.updates is None for critic in critics):
        found.append("Problems that a given critic was trained on may be among those that it is studied on.")
    return found


def needs_fitting(names: Sequence[str], wishes: StudyWishes) -> bool:
    """Whether any critic is to be fitted on the spot."""
    return any(name != LEAVE_ONE_OUT and name not in (wishes.given or {}) for name in names)


def study_settings(
    frozen: FrozenPolicy, wishes: StudyWishes, names: Sequence[str], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that the numbers of a study depend on, to tell whether a folder is of the same study."""
    config = frozen.base.config
    sections = ("task", "model", "sampling", "critic", "data", "rollout")
    return {
        "policy": frozen.policy.digest,
        "critics": list(names),
        "placement": frozen.placement,
        "given": {name: str(path) for name, path in (wishes.given or {}).items()},
        "critic_problems": wishes.critic_problems,
        "epochs": wishes.epochs,
        "most_seconds": None if math.isinf(wishes.most_seconds) else wishes.most_seconds,
        "held_out": wishes.held_out,
        **own,
        "config": {name: json.loads(getattr(config, name).model_dump_json()) for name in sections}
        | {"seed": config.run.seed, "dtype": config.runtime.dtype},
    }
