"""The one module that imports `reasoning_gym`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lecritique.core.errors import ConfigurationError
from lecritique.tasks.options import nearest


def library() -> Any:
    """The package.

    Raises:
        ConfigurationError: it is not installed; names the extra.
    """
    try:
        import reasoning_gym
        import reasoning_gym.factory
    except ImportError as error:
        raise ConfigurationError(
            "task.type = 'reasoning_gym' needs the extra reasoning-gym: pip install 'lecritique[reasoning-gym]'"
        ) from error
    return reasoning_gym


def data_file(name: str) -> Path:
    """A file of the package's own data."""
    return Path(library().__file__).parent / "data" / name


def package_folder() -> str:
    """The folder in which the package and what it imports are installed."""
    return str(Path(library().__file__).parent.parent)


@cache
def data_set_names() -> tuple[str, ...]:
    """Names of all data sets."""
    return tuple(sorted(library().factory.DATASETS))


def generator(name: str, options: Mapping[str, Any], *, seed: int, size: int) -> Any:
    """The library's data set `name` with generator options.

    Raises:
        ConfigurationError: an unknown name, or options that it does not take.
    """
    if name not in data_set_names():
        raise ConfigurationError(
            f"unknown data set {name!r} of reasoning_gym{nearest(name, data_set_names())}, "
            f"expected one of its {len(data_set_names())} names"
        )
    try:
        return library().create_dataset(name, seed=seed, size=size, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"task.dataset_options for {name!r} do not fit: {error}") from error


def level_options(name: str, levels: Mapping[str, int]) -> dict[str, Any]:
    """Generator options of the library's curriculum of data set `name`, each attribute at a level counted from 0.

    Raises:
        ConfigurationError: the data set has no curriculum, or not that attribute or level.
    """
    curricula = library().factory.CURRICULA
    if name not in curricula:
        raise ConfigurationError(f"task.curriculum: data set {name!r} of reasoning_gym has no curriculum")
    curriculum = curricula[name]()
    attributes = curriculum.attributes
    for attribute, level in levels.items():
        if attribute not in attributes:
            raise ConfigurationError(
                f"task.curriculum for {name!r} has no attribute {attribute!r}, expected some of "
                f"{', '.join(sorted(attributes))}{nearest(attribute, attributes)}"
            )
        most = len(attributes[attribute].levels) - 1
        if not 0 <= level <= most:
            raise ConfigurationError(
                f"task.curriculum.{attribute} for {name!r}: got level {level}, expected 0 to {most}"
            )
        curriculum.set_attr_level(attribute, level)
    options = dataclasses.asdict(curriculum.generate_configuration())
    return {key: value for key, value in options.items() if key not in ("seed", "size")}
