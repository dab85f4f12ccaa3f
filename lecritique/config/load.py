"""From a recipe, an arm and `key.path=value` overrides to a validated configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lecritique.config.explain import configuration_error, nearest
from lecritique.config.presets import PRESETS, applied
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError

Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe file: the base configuration, and arms of its own beside the presets."""

    name: str
    text: str
    tree: Tree
    arms: Mapping[str, Tree]
    default_arm: str | None


def recipe_names() -> list[str]:
    """The recipes shipped with the package."""
    folder = resources.files("lecritique") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str) -> Recipe:
    """A shipped recipe by name, or a TOML file by path.

    Raises:
        ConfigurationError: no such recipe, or the file is not TOML.
    """
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        if not path.is_file():
            raise ConfigurationError(f"recipe '{name}': there is no such file.")
        content = path.read_text(encoding="utf-8")
    elif name in recipe_names():
        content = (resources.files("lecritique") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        known = recipe_names()
        raise ConfigurationError(
            f"there is no recipe '{name}'.{nearest(name, known)} Shipped recipes: {', '.join(known)}; "
            "a path to a TOML file works too."
        )
    try:
        tree = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"recipe '{name}' is not valid TOML: {error}.") from error
    first_line = content.split("\n", 1)[0].lstrip("# ").strip() if content.startswith("#") else ""
    arms = tree.pop("arms", {})
    if not isinstance(arms, dict) or not all(isinstance(arm, dict) for arm in arms.values()):
        raise ConfigurationError(f"recipe '{name}': 'arms' must hold one table per arm, such as [arms.NAME].")
    return Recipe(
        name=path.stem if path.suffix == ".toml" else name,
        text=first_line,
        tree=tree,
        arms=arms,
        default_arm=tree.pop("preset", None),
    )


def parse_override(text: str) -> tuple[list[str], Any]:
    """`a.b=value` as its path and its value; the value is TOML, a bare word is a string.

    Raises:
        ConfigurationError: no `=`, or an empty key.
    """
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigurationError(f"override '{text}': expected key.path=value, such as rollout.batch_size=64.")
    try:
        return keys, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return keys, value.strip()


def with_override(tree: Mapping[str, Any], keys: Sequence[str], value: Any) -> Tree:
    """`tree` with the value at `keys`; giving another `type` drops the keys of the earlier one."""
    head, rest = keys[0], keys[1:]
    if not rest:
        if head == "type" and tree.get("type") != value:
            return {"type": value}
        return {**tree, head: value}
    below = tree.get(head, {})
    if not isinstance(below, dict):
        raise ConfigurationError(f"override '{'.'.join(keys)}': '{head}' is {below!r}, not a section.")
    return {**tree, head: with_override(below, rest, value)}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    """`base` with the leaves of `changes` put in."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        if (
            isinstance(value, dict)
            and isinstance(below, dict)
            and value.get("type", below.get("type")) == below.get("type")
        ):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


def arm_names(recipe: Recipe) -> list[str]:
    """Every arm that the recipe can be run as."""
    return [*PRESETS, *(name for name in recipe.arms if name not in PRESETS)]


def compose(recipe: Recipe, *, arm: str | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of one arm of a recipe: recipe, then arm, then overrides.

    Raises:
        ConfigurationError: an unknown arm, key or value; names key, section and nearest match.
    """
    tree = dict(recipe.tree)
    pairs = [parse_override(text) for text in overrides]
    for keys, value in pairs:
        if keys == ["preset"]:
            arm = str(value)
    arm = arm or recipe.default_arm
    if arm is not None:
        tree = _with_arm(recipe, tree, arm)
    for keys, value in pairs:
        if keys != ["preset"]:
            tree = with_override(tree, keys, value)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise configuration_error(error, RunConfig) from error


def _with_arm(recipe: Recipe, tree: Tree, arm: str) -> Tree:
    known = arm_names(recipe)
    if arm not in known:
        raise ConfigurationError(f"there is no arm or preset '{arm}'.{nearest(arm, known)} Known: {', '.join(known)}.")
    own = dict(recipe.arms.get(arm, {}))
    base = own.pop("preset", arm if arm in PRESETS else None)
    if base is not None:
        if base not in PRESETS:
            raise ConfigurationError(f"arm '{arm}': there is no preset '{base}'. Known: {', '.join(PRESETS)}.")
        tree = applied(base, tree)
    return merged({**tree, "preset": arm}, own)
