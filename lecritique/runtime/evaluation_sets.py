"""Evaluation sets: which problems are asked, how often, and how their answers are sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lecritique.config.schema import RunConfig
from lecritique.core.errors import DataError
from lecritique.core.rollout import Sampling
from lecritique.core.seeds import derive_seed
from lecritique.tasks.protocol import Environment
from lecritique.tasks.registry import load_environment
from lecritique.tasks.splits import split_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class EvalSet:
    """Problems of one environment. Limits are in tokens; `split_by` names a key of the tasks' metadata, or None."""

    name: str
    environment: Environment
    rows: tuple[int, ...]
    k: int
    sampling: Sampling
    max_turn_tokens: int
    max_total_tokens: int
    seed: int
    split_by: str | None = None


def sets_in_training(config: RunConfig, environment: Environment) -> tuple[EvalSet, ...]:
    """What is evaluated at intervals; nothing with `run.eval_every` = 0.

    The seed of the samples is the same at every evaluation, and differs from all seeds of training.

    Args:
        config: resolved.
        environment: the run's own.

    Raises:
        ConfigurationError: a set's task or one of its options.
        DataError: a set without a problem.
    """
    if not config.run.eval_every:
        return ()
    section = config.eval
    assert section.temperature is not None and section.top_p is not None and section.top_k is not None
    limit = config.sampling.max_total_tokens
    assert limit is not None
    found = []
    for name, own, rows in _problems(config, environment):
        found.append(
            EvalSet(
                name=name,
                environment=own,
                rows=first_rows(rows, section.rows, name),
                k=section.k,
                sampling=Sampling(temperature=section.temperature, top_p=section.top_p, top_k=section.top_k),
                max_turn_tokens=config.sampling.max_turn_tokens,
                max_total_tokens=limit,
                seed=derive_seed(config.run.seed, f"evaluation.{name}"),
            )
        )
    return tuple(found)


def first_rows(rows: Sequence[int], limit: int, name: str) -> tuple[int, ...]:
    """At most `limit` rows (0: all); DataError when there is none."""
    if not rows:
        raise DataError(f"the evaluation set '{name}' has no problem.")
    return tuple(rows[:limit] if limit else rows)


def _problems(config: RunConfig, environment: Environment) -> list[tuple[str, Environment, Sequence[int]]]:
    if not config.eval.tasks:
        fraction = config.data.evaluation_fraction
        return [("evaluation", environment, split_rows(environment, "evaluation", evaluation_fraction=fraction))]
    found: list[tuple[str, Environment, Sequence[int]]] = []
    for name, changes in config.eval.tasks.items():
        kind, options = _task(config, changes)
        own = load_environment(kind, options, seed=config.run.seed)
        found.append((name, own, range(len(own))))
    return found


def _task(config: RunConfig, changes: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Type and options: those of the run's task with changes, or those of another type alone."""
    own = dict(changes)
    kind = str(own.pop("type", config.task.type))
    return kind, own if kind != config.task.type else {**config.task.options, **own}
