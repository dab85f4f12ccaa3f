"""What the options of every built-in environment share, and their translation into one-sentence errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from lecritique.core.errors import ConfigurationError


class TaskOptions(BaseModel):
    """Frozen options of an environment; None means derive (or that another key is used instead)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    seed: int | None = None
    """Seed of the data. Default: the seed of the run."""

    def resolved(self, seed: int) -> Self:
        """These options with what was left to derive filled in; `seed` is used where none was given."""
        return self if self.seed is not None else self.model_copy(update={"seed": seed})


def nearest(word: str, known: Iterable[str]) -> str:
    """The half sentence `; did you mean 'x'?`, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def validated_options(model: type[BaseModel], given: Mapping[str, Any], *, type_name: str) -> BaseModel:
    """`given` as an instance of `model`.

    Raises:
        ConfigurationError: an unknown key (with the nearest known one) or an unfit value, by its name `task.<key>`.
    """
    known = sorted(model.model_fields)
    for key in given:
        if key not in model.model_fields:
            raise ConfigurationError(
                f"unknown key task.{key} for task {type_name!r}, expected one of "
                f"{', '.join(known) or 'no keys'}{nearest(key, known)}"
            )
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise ConfigurationError(_sentence(error, type_name)) from None


def _sentence(error: ValidationError, type_name: str) -> str:
    first = error.errors(include_url=False)[0]
    expected = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return f"task {type_name!r}: {expected}"
    key = ".".join(["task", *(str(part) for part in first["loc"])])
    if first["type"] == "value_error":
        return f"{key} for task {type_name!r}: {expected}"
    if first["type"] == "missing":
        return f"{key} for task {type_name!r} is missing, expected a value"
    expected = (expected[:1].lower() + expected[1:]).removeprefix("input should be ")
    return f"{key} for task {type_name!r}: got {first['input']!r}, expected: {expected}"
