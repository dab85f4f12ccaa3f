"""A configuration resolved without its model and its data: what a dry run and a plan of full size start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lecritique.config.resolve import Facts, resolve
from lecritique.config.schema import RunConfig, TaskSection
from lecritique.planning.shapes import ModelShape
from lecritique.tasks.registry import class_of, resolve_options


def resolved_without_loading(config: RunConfig, shape: ModelShape, *, device: str) -> RunConfig:
    """The configuration without None. No row of the task is made and no weight is read.

    Args:
        config: composed and not resolved.
        shape: of `model.name`.
        device: where none is given.

    Raises:
        ConfigurationError: an unknown task or option, or keys that contradict each other.
    """
    options = resolve_options(config.task.type, config.task.options, seed=config.run.seed)
    section = {**options.model_dump(mode="json", exclude_none=True), "type": config.task.type}
    facts = Facts(
        device=config.runtime.device or device,
        context_length=shape.context_length,
        reward_range=_reward_range(config.task.type, section),
    )
    return resolve(config.model_copy(update={"task": TaskSection.model_validate(section)}), facts)


def _reward_range(task_type: str, options: Mapping[str, Any]) -> tuple[float, float]:
    """What the task's class says; one that finds out when it is made is taken to say what its options do, or 0 to 1."""
    said = getattr(class_of(task_type), "reward_range", None)
    if isinstance(said, tuple) and len(said) == 2:
        return float(said[0]), float(said[1])
    return float(options.get("reward_low", 0.0)), float(options.get("reward_high", 1.0))
