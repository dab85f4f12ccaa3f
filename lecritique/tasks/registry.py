"""Environments by name. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from lecritique.core.errors import ConfigurationError, LecritiqueError
from lecritique.tasks.options import TaskOptions, nearest, validated_options
from lecritique.tasks.protocol import Environment

_BUILT_IN: Mapping[str, str] = {
    "codeio": "lecritique.tasks.codeio.environment:CodeIOEnvironment",
    "lean": "lecritique.tasks.lean.environment:LeanEnvironment",
    "math": "lecritique.tasks.math.environment:MathEnvironment",
    "knights_knaves": "lecritique.tasks.knights_knaves.environment:KnightsKnavesEnvironment",
    "reasoning_gym": "lecritique.tasks.reasoning_gym.environment:ReasoningGymEnvironment",
    "sudoku": "lecritique.tasks.sudoku.environment:SudokuEnvironment",
    "verifiers": "lecritique.tasks.verifiers.environment:VerifiersEnvironment",
}
_MEMBERS = ("name", "reward_range", "__len__", "task", "start", "gold")


def task_names() -> tuple[str, ...]:
    """Names of the built-in environments."""
    return tuple(sorted(_BUILT_IN))


def load_environment(type_name: str, options: Mapping[str, Any], *, seed: int = 0) -> Environment:
    """The environment of `task.type = type_name`.

    `type_name` is one of `task_names()`, or `module:Class` for a class with an attribute `Options` (a pydantic
    model) that is constructed as `Class(options)`. `seed` is the data seed where the options give none.

    Raises:
        ConfigurationError: an unknown name or key, an unfit value, or a class that is no environment.
    """
    environment_class = class_of(type_name)
    resolved = resolve_options(type_name, options, seed=seed)
    environment = _asked(type_name, "its construction", lambda: environment_class(resolved))
    absent = [member for member in _MEMBERS if not hasattr(environment, member)]
    if absent:
        raise ConfigurationError(
            f"task.type = {type_name!r} lacks {', '.join(absent)}, expected an environment as in "
            "lecritique.tasks.protocol.Environment"
        )
    if _asked(type_name, "its number of rows", lambda: len(environment)) == 0:
        raise ConfigurationError(f"task.type = {type_name!r} has no rows, expected at least one")
    _require_range(type_name, environment.reward_range)
    return cast(Environment, environment)


def _asked(type_name: str, what: str, ask: Callable[[], Any]) -> Any:
    """What user code answers; whatever it raises is one sentence."""
    try:
        return ask()
    except LecritiqueError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"task.type = {type_name!r}: {what} failed with {type(error).__name__}: {error}"
        ) from error


def _require_range(type_name: str, reward_range: object) -> None:
    """Raise ConfigurationError unless it is (lowest, highest) in finite numbers."""
    numbers = tuple(reward_range) if isinstance(reward_range, tuple | list) else ()
    fit = len(numbers) == 2 and all(isinstance(n, Real) and math.isfinite(n) for n in numbers)
    if not fit or not numbers[0] < numbers[1]:
        raise ConfigurationError(
            f"task.type = {type_name!r}: got reward_range = {reward_range!r}, expected (lowest, highest) with "
            "lowest < highest, both finite numbers"
        )


def options_model(type_name: str) -> type[BaseModel]:
    """The pydantic class of the environment's options."""
    model = getattr(class_of(type_name), "Options", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ConfigurationError(
            f"task.type = {type_name!r}: got Options = {model!r}, expected a pydantic model class as the "
            "attribute Options"
        )
    if "type" in model.model_fields:  # task.type says which task it is, so the option could never be set
        raise ConfigurationError(f"task.type = {type_name!r}: an option of its own is named 'type', rename it")
    return model


def resolve_options(type_name: str, options: Mapping[str, Any], *, seed: int = 0) -> BaseModel:
    """The validated options, with what was left to derive filled in."""
    validated = validated_options(options_model(type_name), options, type_name=type_name)
    if isinstance(validated, TaskOptions):
        return validated.resolved(seed)
    if "seed" in type(validated).model_fields and getattr(validated, "seed", 0) is None:
        return validated.model_copy(update={"seed": seed})
    return validated


def class_of(type_name: str) -> Any:
    """The environment's class.

    Raises:
        ConfigurationError: no such built-in task, module or class.
    """
    target = _BUILT_IN.get(type_name, type_name)
    module_name, colon, class_name = target.partition(":")
    if not (colon and module_name and class_name):
        raise ConfigurationError(
            f"unknown task.type = {type_name!r}, expected one of {', '.join(task_names())} or module:Class"
            f"{nearest(type_name, task_names())}"
        )
    module = _module(module_name, type_name)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = sorted(name for name, value in vars(module).items() if isinstance(value, type))
        raise ConfigurationError(
            f"task.type = {type_name!r}: module {module_name!r} has no class {class_name!r}"
            f"{nearest(class_name, classes)}"
        )
    return found


def _module(module_name: str, type_name: str) -> Any:
    # A console script does not have the working directory on its path, and that is where a user's task file lies.
    here = str(Path.cwd())
    if type_name not in _BUILT_IN and here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except ConfigurationError:
        raise
    except Exception as error:  # user code may raise anything while it is imported
        raise ConfigurationError(
            f"task.type = {type_name!r}: importing {module_name!r} failed with {type(error).__name__}: {error}"
        ) from error
