"""Options of Reasoning Gym."""

from __future__ import annotations

import string
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lecritique.core.errors import ConfigurationError
from lecritique.tasks.options import TaskOptions, nearest
from lecritique.tasks.reasoning_gym.library import level_options

_WHOLE = "{question}"
_TAGGED = "{question}\n\nReason first, then write the final answer, and nothing else, between <answer> and </answer>."


class ReasoningGymOptions(TaskOptions):
    """Which data sets, and how their scores become rewards."""

    dataset: str | None = None
    """One data set by its Reasoning Gym name. Give this, `datasets` or `file`."""

    datasets: dict[str, float] | None = None
    """A mixture: data set names and their weights. Give this, `dataset` or `file`."""

    file: str | None = None
    """Items frozen by `lecritique tasks freeze reasoning_gym`. Give this, `dataset` or `datasets`."""

    dataset_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the data set's generator; with `datasets`, a table of them for each name."""

    curriculum: dict[str, Any] = Field(default_factory=dict)
    """Levels of the library's own curriculum, counted from 0, for each attribute (0 for those not named); with
    `datasets`, a table of them for each name. Options in `dataset_options` come before those of a level."""

    rows: int | None = Field(default=None, ge=1)
    """Number of different questions. Default: 1000, or all of `file`."""

    reward: Literal["binary", "score"] = "binary"
    """`binary`: 1 where the score reaches `threshold`, else 0. `score`: the scorer's own partial credit."""

    threshold: float = Field(default=1.0, gt=0, le=1)
    """The score from which a binary reward is 1."""

    answer: Literal["whole", "tags"] = "whole"
    """What is scored: the `whole` text, or what stands between the last <answer> and </answer>, so that a response can
    reason first."""

    prompt_template: str | None = None
    """The user message. `{question}` and the fields of the items' metadata, such as `{expression}`, are filled in.
    Default: the question, with a sentence about the tags where `answer = "tags"`."""

    score_seconds: float = Field(default=5.0, ge=0.1, le=60)
    """Limit of one scoring in the sandbox; an answer whose scoring takes longer is wrong."""

    @property
    def weights(self) -> dict[str, float]:
        """Data set names and weights."""
        return {self.dataset: 1.0} if self.dataset is not None else dict(self.datasets or {})

    @property
    def template(self) -> str:
        """The prompt's template."""
        return self.prompt_template or (_TAGGED if self.answer == "tags" else _WHOLE)

    def generator_options(self, name: str) -> dict[str, Any]:
        """The generator's options for one data set."""
        single = self.dataset is not None
        given = dict(self.dataset_options if single else self.dataset_options.get(name, {}))
        levels = self.curriculum if single else self.curriculum.get(name, {})
        return {**level_options(name, levels), **given} if levels else given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(source is not None for source in (self.dataset, self.datasets, self.file)) != 1:
            raise ValueError("expected exactly one of task.dataset and task.datasets, or task.file")
        if self.file is None and (
            not self.weights or any(not 0 < weight < float("inf") for weight in self.weights.values())
        ):
            raise ValueError(f"task.datasets = {self.datasets} needs at least one name, each with a weight above 0")
        if self.reward == "score" and self.threshold != 1.0:
            raise ValueError(f'task.threshold = {self.threshold} is for task.reward = "binary", got "score"')
        for key in ("dataset_options", "curriculum"):
            self._require_tables(key, getattr(self, key))
        self._require_own_keys()
        return self

    def _require_tables(self, key: str, tables: dict[str, Any]) -> None:
        """With `datasets`: a table for each name. With `file`: none, since its items carry theirs."""
        if self.file is not None and tables:
            raise ValueError(f"task.{key} is for task.dataset or task.datasets, the items of task.file are made")
        for name in tables if self.datasets is not None else ():
            if name not in self.weights:
                raise ValueError(f"task.{key}.{name} is for none of task.datasets{nearest(name, self.weights)}")
            if not isinstance(tables[name], dict):
                raise ValueError(f"task.{key}.{name} must be a table, as task.datasets is given")
        for levels in (tables.values() if self.datasets is not None else (tables,)) if key == "curriculum" else ():
            for attribute, level in levels.items():
                if type(level) is not int:
                    raise ValueError(f"task.curriculum: got level {level!r} for {attribute!r}, expected a whole number")

    def _require_own_keys(self) -> None:
        single = self.dataset is not None
        for name in self.weights:
            given = self.dataset_options if single else self.dataset_options.get(name, {})
            for key in {"seed", "size"} & given.keys():
                raise ValueError(f"task.dataset_options.{key} is not an option here, use task.seed and task.rows")


def template_fields(template: str) -> list[str]:
    """Names of the fields of a prompt template.

    Raises:
        ConfigurationError: it is no template, or has fields that are no plain names.
    """
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigurationError(f"task.prompt_template = {template!r} is no template: {error}") from error
    for name in names:
        if not name.isidentifier():
            raise ConfigurationError(f"task.prompt_template has the field {{{name}}}, expected plain field names")
    return names
