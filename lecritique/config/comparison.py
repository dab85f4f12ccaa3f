"""What a recipe says of comparing its arms: the table `[compare]`. The command line overrides it key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from lecritique.config.base import Config
from lecritique.config.explain import configuration_error
from lecritique.config.load import parse_override
from lecritique.config.schema import BudgetSection
from lecritique.core.errors import ConfigurationError
from lecritique.core.spending import UNITS

# A budget ends the runs of a comparison, not the number of steps: so many are never made.
STEPS_WITH_BUDGET = 100_000
DEFAULT_ARMS = ("mean", "value", "pvf", "tether")


class CompareSection(Config):
    """Arms, seeds and how they are run."""

    arms: tuple[str, ...] = Field(DEFAULT_ARMS, min_length=1)
    """Presets or arms of the recipe."""
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    """Seeds; arms that share one see the same tasks in the same order."""
    jobs: int = Field(1, ge=1)
    """Runs at a time."""
    budget: BudgetSection = BudgetSection()
    """What every run may spend, in one unit; without it all make the recipe's number of steps."""


def compare_section(table: Mapping[str, Any]) -> CompareSection:
    """A recipe's table `[compare]`, checked.

    Raises:
        ConfigurationError: an unknown key, an unfit value, something named twice, or a budget in two units.
    """
    try:
        found = CompareSection.model_validate(dict(table))
    except ValidationError as error:
        raise configuration_error(error, CompareSection, prefix="compare.") from error
    for key, named in (("arms", found.arms), ("seeds", found.seeds)):
        if len(set(named)) < len(named):
            raise ConfigurationError(f"'compare.{key}' names something twice: {', '.join(map(str, named))}.")
    budget_unit(found.budget)
    return found


def budget_of(text: str) -> BudgetSection:
    """`tokens=2e6` as a budget.

    Raises:
        ConfigurationError: another unit, or no positive number.
    """
    expected = f"expected UNIT=NUMBER such as tokens=2e6, with one of {', '.join(UNITS)}"
    if "=" not in text:
        raise ConfigurationError(f"--budget: got {text!r}, {expected}.")
    keys, value = parse_override(text)
    if len(keys) != 1 or keys[0] not in UNITS or isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"--budget: got {text!r}, {expected}.")
    try:
        budget = BudgetSection.model_validate({keys[0]: value})
    except ValidationError as error:
        raise configuration_error(error, BudgetSection, prefix="--budget ") from error
    if budget_unit(budget) is None:
        raise ConfigurationError(f"--budget: got {text!r}, the number must be above 0.")
    return budget


def budget_unit(budget: BudgetSection) -> str | None:
    """The one unit in which arms are matched, None of no budget.

    Raises:
        ConfigurationError: two units, in which two arms cannot both be equal.
    """
    given = [unit for unit, limit in budget.model_dump().items() if limit]
    if len(given) > 1:
        raise ConfigurationError(f"'compare.budget' takes one unit, got {' and '.join(given)}.")
    return given[0] if given else None


def budget_overrides(budget: BudgetSection) -> list[str]:
    """The budget as overrides that every arm gets before those of the command line; none without one."""
    unit = budget_unit(budget)
    if unit is None:
        return []
    return [f"run.steps={STEPS_WITH_BUDGET}", f"run.budget.{unit}={budget.model_dump()[unit]!r}"]
