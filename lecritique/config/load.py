"""From a recipe, an arm and `key.path=value` overrides to a validated configuration."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from lecritique.config.cluster import Cluster, cluster_of
from lecritique.config.explain import configuration_error, nearest
from lecritique.config.presets import PRESETS, applied
from lecritique.config.resolve import teacher_content, uses_teacher
from lecritique.config.schema import Context, NoContext, RunConfig, SiblingsContext
from lecritique.config.teachers import TeacherContent
from lecritique.core.errors import ConfigurationError

Tree = dict[str, Any]

# Sections in which `type` is one key among others, and does not decide which others there are.
_OWN_TYPE = {"runtime"}

_ARM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe file: the base configuration, arms of its own beside the presets, and what it is planned to run on."""

    name: str
    text: str
    tree: Tree
    arms: Mapping[str, Tree]
    default_arm: str | None
    cluster: Cluster | None = None
    compare: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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
    content = _content(name, path)
    tree = _on_its_base(name, content)
    first_line = content.split("\n", 1)[0].lstrip("# ").strip() if content.startswith("#") else ""
    arms = tree.pop("arms", {})
    if not isinstance(arms, dict) or not all(isinstance(arm, dict) for arm in arms.values()):
        raise ConfigurationError(f"recipe '{name}': 'arms' must hold one table per arm, such as [arms.NAME].")
    for arm in arms:
        if not _ARM_NAME.fullmatch(arm) or arm == "logs":  # names directories of a comparison, beside its logs
            raise ConfigurationError(
                f"recipe '{name}': arm {arm!r} is no fit name; use letters, digits, '_' and '-' (and not 'logs')."
            )
    cluster = tree.pop("cluster", None)
    if cluster is not None and not isinstance(cluster, dict):
        raise ConfigurationError(f"recipe '{name}': 'cluster' must be a table, got {cluster!r}.")
    return Recipe(
        name=path.stem if path.suffix == ".toml" else name,
        text=first_line,
        tree=tree,
        arms=arms,
        default_arm=tree.pop("preset", None),
        cluster=None if cluster is None else cluster_of(cluster),
        compare=_table(name, tree.pop("compare", {}), "compare"),
    )


def _on_its_base(name: str, content: str, above: tuple[str, ...] = ()) -> Tree:
    """A recipe's tables, put over those of the recipe that it names as `base`, if any."""
    try:
        tree = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"recipe '{name}' is not valid TOML: {error}.") from error
    base = tree.pop("base", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ConfigurationError(f"recipe '{name}': 'base' must be the name or path of a recipe, got {base!r}.")
    if base in (name, *above):
        raise ConfigurationError(f"recipe '{name}': 'base' = '{base}' leads back to where it came from.")
    below = _on_its_base(base, _content(base, Path(base)), (*above, name))
    return merged(below, tree)


def _table(name: str, found: Any, key: str) -> Tree:
    if not isinstance(found, dict):
        raise ConfigurationError(f"recipe '{name}': '{key}' must be a table, got {found!r}.")
    return found


def _content(name: str, path: Path) -> str:
    known = recipe_names()
    if name in known:  # whatever the working directory holds under that name
        return (resources.files("lecritique") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"recipe '{name}' cannot be read as text: {error}.") from error
    if path.suffix == ".toml" or path.exists():
        raise ConfigurationError(f"recipe '{name}': there is no such file.")
    raise ConfigurationError(
        f"there is no recipe '{name}'.{nearest(name, known)} Shipped recipes: {', '.join(known)}; "
        "a path to a TOML file works too."
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
    """`tree` with the value at `keys`; giving another `type` drops the keys of the earlier one.

    A table is merged into what is there, as an arm's table is.
    """
    head, rest = keys[0], keys[1:]
    if not rest:
        if head == "type" and tree.get("type") != value:
            return {"type": value}
        return merged(tree, {head: value})
    below = tree.get(head, {})
    if not isinstance(below, dict):
        raise ConfigurationError(f"override '{'.'.join(keys)}': '{head}' is {below!r}, not a section.")
    if head in _OWN_TYPE and list(rest) == ["type"]:
        return merged(tree, {head: {"type": value}})
    return {**tree, head: with_override(below, rest, value)}


def with_overrides(tree: Mapping[str, Any], pairs: Sequence[tuple[Sequence[str], Any]]) -> Tree:
    """`tree` with all pairs of keys and value, later ones last.

    Types come first, those within tables too: another type drops the keys of the earlier one, never those given beside
    it.
    """
    types = [leaf for keys, value in pairs for leaf in _leaves(keys, value) if leaf[0][-1] == "type"]
    result = dict(tree)
    for keys, value in (*types, *(pair for pair in pairs if pair[0][-1] != "type")):
        result = with_override(result, keys, value)
    return result


def named_keys(overrides: Sequence[str]) -> list[str]:
    """What overrides name, as dotted keys of single values: those within a table too.

    Raises:
        ConfigurationError: no `=`, or an empty key.
    """
    return [".".join(keys) for text in overrides for keys, _ in _leaves(*parse_override(text))]


def _leaves(keys: Sequence[str], value: Any) -> Iterator[tuple[Sequence[str], Any]]:
    if not isinstance(value, dict) or not value:
        yield keys, value
        return
    for key, below in value.items():
        yield from _leaves([*keys, key], below)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    """`base` with the leaves of `changes` put in."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        if (
            isinstance(value, dict)
            and isinstance(below, dict)
            and (key in _OWN_TYPE or value.get("type", below.get("type")) == below.get("type"))
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
    config = _composed(recipe, arm=arm, overrides=overrides)
    data = config.data
    if data.contexts is not None and data.teachers is not None:
        return config
    contexts, teachers = _shared_by_arms(recipe, overrides)
    update = {
        "contexts": contexts if data.contexts is None else data.contexts,
        "teachers": teachers if data.teachers is None else data.teachers,
    }
    return config.model_copy(update={"data": data.model_copy(update=update)})


def _shared_by_arms(recipe: Recipe, overrides: Sequence[str]) -> tuple[tuple[Context, ...], tuple[TeacherContent, ...]]:
    """What critics and teachers of the recipe's arms may see: whichever arm is run, the same rows have room for all."""
    found: list[Context] = []
    told: list[TeacherContent] = []
    without_arm = [text for text in overrides if parse_override(text)[0] != ["preset"]]
    for arm in arm_names(recipe):
        try:
            config = _composed(recipe, arm=arm, overrides=without_arm)
        except ConfigurationError:
            # An arm that these overrides do not fit: what it may see is not theirs to change.
            config = _composed(recipe, arm=arm, overrides=())
        context, content = config.critic.context, teacher_content(config)
        if not isinstance(context, NoContext | SiblingsContext) and context not in found:
            found.append(context)
        if uses_teacher(config) and content not in (*told, "none"):
            told.append(content)
    return tuple(found), tuple(told)


def _composed(recipe: Recipe, *, arm: str | None, overrides: Sequence[str]) -> RunConfig:
    tree = with_section_defaults(recipe.tree, RunConfig)
    pairs = [parse_override(text) for text in overrides]
    for _, value in (pair for pair in pairs if pair[0] == ["preset"]):
        if arm is not None and arm != value:
            raise ConfigurationError(f"the arm is given twice: '{arm}', and the override preset = {value!r}.")
        arm = str(value)
    arm = arm or recipe.default_arm
    if arm is not None:
        tree = with_section_defaults(_with_arm(recipe, tree, arm), RunConfig)
    tree = with_overrides(tree, [pair for pair in pairs if pair[0] != ["preset"]])
    try:
        return RunConfig.model_validate(with_section_defaults(tree, RunConfig))
    except ValidationError as error:
        raise configuration_error(error, RunConfig) from error


def with_section_defaults(tree: Mapping[str, Any], model: type[BaseModel], default: BaseModel | None = None) -> Tree:
    """`tree` with what a section must say, where it says something else only, taken from the section's default.

    That is the `type` of a union, and keys without a default of their own, such as an optimizer's learning rate.
    """
    result = dict(tree)
    for name, field in model.model_fields.items():
        if field.is_required() and default is not None:
            result.setdefault(name, getattr(default, name))
        below = result.get(name)
        if not isinstance(below, dict) or not isinstance(field.default, BaseModel):
            continue
        if field.discriminator is not None:
            result[name] = {"type": getattr(field.default, "type", None), **below}
        else:
            result[name] = with_section_defaults(below, type(field.default), field.default)
    return result


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
