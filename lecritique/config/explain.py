"""Turns pydantic's errors into one sentence: what was got, what was expected, where, and the nearest match."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from lecritique.core.errors import ConfigurationError


def nearest(word: str, choices: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest choice, or the empty string."""
    match = difflib.get_close_matches(word.replace("-", "_"), list(choices), n=1, cutoff=0.6)
    return f" Did you mean {match[0]!r}?" if match else ""


def configuration_error(error: ValidationError, model: type[BaseModel], *, prefix: str = "") -> ConfigurationError:
    """The first of the errors as one sentence; `prefix` (such as `task.`) goes before the key."""
    details = error.errors(include_url=False)
    first = details[0]
    path = [str(part) for part in first["loc"]]
    keys, known = _walk(model, path)
    key = prefix + ".".join(keys)
    more = f" ({len(details) - 1} more)" if len(details) > 1 else ""
    if first["type"] == "extra_forbidden":
        section = prefix + ".".join(keys[:-1])
        where = f"section '{section.rstrip('.')}'" if section else "the configuration"
        known_names = ", ".join(sorted(known))
        return ConfigurationError(
            f"unknown key '{key}': {where} has no '{keys[-1]}'.{nearest(keys[-1], known)} Known: {known_names}.{more}"
        )
    got = "" if first["type"] == "missing" else f", got {first['input']!r}"
    message = first["msg"][:1].lower() + first["msg"][1:]
    context = first.get("ctx", {})
    hint = nearest(str(context["tag"]), _tags(context)) if "tag" in context else ""
    return ConfigurationError(f"'{key}': {message}{got}.{hint}{more}")


def _tags(context: dict[str, Any]) -> list[str]:
    return [tag.strip(" '") for tag in str(context.get("expected_tags", "")).split(",")]


def _walk(model: type[BaseModel], path: list[str]) -> tuple[list[str], list[str]]:
    """The path without pydantic's union tags, and the field names known where it ends."""
    keys: list[str] = []
    current: list[type[BaseModel]] = [model]
    for index, part in enumerate(path):
        fields = {name: field for m in current for name, field in m.model_fields.items()}
        tagged = [m for m in current if _tag(m) == part or m.__name__ == part]
        if tagged and index:
            current = tagged
            continue
        if part not in fields:
            if index == len(path) - 1 and current:
                keys.append(part)
                return keys, list(fields)
            continue  # a union's branch name that pydantic adds, such as 'float' or 'constrained-float'
        keys.append(part)
        current = list(_models(fields[part].annotation))
    return keys, [name for m in current for name in m.model_fields]


def _tag(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("type")
    return field.default if field is not None and isinstance(field.default, str) else None


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
