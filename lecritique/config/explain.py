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
    """The errors in one sentence, of the one that says most; `prefix` (such as `task.`) goes before the key."""
    details = error.errors(include_url=False)
    paths = [
        _walk(model, [str(part) for part in detail["loc"]], detail["type"] == "extra_forbidden") for detail in details
    ]
    # A union complains once for every branch; the branch that was meant is the one that got furthest. A wrong
    # name says more than that the right one is missing.
    chosen = max(range(len(details)), key=lambda i: (len(paths[i][0]), details[i]["type"] == "extra_forbidden"))
    first, (keys, known) = details[chosen], paths[chosen]
    others = sum(keys[: len(path)] != path for path, _ in paths)
    more = f" ({others} more)" if others else ""
    key = prefix + ".".join(keys)
    if first["type"] == "extra_forbidden":
        section = prefix + ".".join(keys[:-1])
        where = f"section '{section.rstrip('.')}'" if section else "the configuration"
        hint = _elsewhere(model, keys) or nearest(keys[-1], known)
        return ConfigurationError(
            f"unknown key '{key}': {where} has no '{keys[-1]}'.{hint} Known: {', '.join(sorted(known))}.{more}"
        )
    if first["type"] == "value_error":  # one of our own validators, which say what they got
        return ConfigurationError(f"'{key}': {first['msg'].removeprefix('Value error, ')}.{more}")
    got = "" if first["type"] == "missing" else f", got {first['input']!r}"
    message = first["msg"][:1].lower() + first["msg"][1:]
    context = first.get("ctx", {})
    hint = nearest(str(context["tag"]), _tags(context)) if "tag" in context else ""
    return ConfigurationError(f"'{key}': {message}{got}.{hint}{more}")


def key_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key that the model knows, in any branch of its unions."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for below in dict.fromkeys(_models(field.annotation)):
            yield from key_paths(below, f"{prefix}{name}.")


def _elsewhere(model: type[BaseModel], keys: list[str]) -> str:
    """` Did you mean 'a.b'?` for the same key in another section, nearest sections first, or the empty string."""
    name = keys[-1].replace("-", "_")
    found = [path.split(".") for path in key_paths(model) if path.rpartition(".")[2] == name]
    if not found:
        return ""
    best = max(found, key=lambda path: sum(a == b for a, b in zip(path, keys, strict=False)))
    return f" Did you mean {'.'.join(best)!r}?"


def _tags(context: dict[str, Any]) -> list[str]:
    return [tag.strip(" '") for tag in str(context.get("expected_tags", "")).split(",")]


def _walk(model: type[BaseModel], path: list[str], unknown_end: bool) -> tuple[list[str], list[str]]:
    """The path without pydantic's union branches, and the field names known where it ends.

    With `unknown_end` the last part is a key that no model knows, else it may be a branch too.
    """
    keys: list[str] = []
    current: list[type[BaseModel]] = [model]
    for index, part in enumerate(path):
        fields = {name: field for m in current for name, field in m.model_fields.items()}
        tagged = [m for m in current if _tag(m) == part or m.__name__ == part]
        if tagged and index:
            current = tagged
            continue
        if part not in fields:
            if unknown_end and index == len(path) - 1:
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
