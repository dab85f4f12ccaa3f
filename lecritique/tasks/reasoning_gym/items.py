"""The items of Reasoning Gym: drawn from its generators without repeats, or read from a frozen file."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.seeds import derive_seed
from lecritique.tasks.frozen import read_frozen
from lecritique.tasks.reasoning_gym.library import generator
from lecritique.tasks.reasoning_gym.options import ReasoningGymOptions

# Items are taken from generators of this many, each with a hashed seed: the library seeds item i of a data set
# with seed + i, so that neighbouring seeds would share nearly all of their items.
_CHUNK = 1000
# Some generators hand their seed to numpy, which takes 32 bits.
_SEED_SPAN = 2**31 - _CHUNK
# Draws without a new question before a data set is taken to be exhausted.
_MAX_REPEATS = 2000


@dataclass(frozen=True, kw_only=True)
class Item:
    """One entry of the library, with its data set and that one's generator options."""

    dataset: str
    entry: dict[str, Any]
    generator_options: Mapping[str, Any]


def drawn(options: ReasoningGymOptions, rows: int, is_paid: Callable[[Item], bool]) -> list[Item]:
    """The first `rows` items of the mixture whose questions differ and whose own answers are paid."""
    sources = {name: _items(name, options) for name in options.weights}
    seen: set[str] = set()
    items: list[Item] = []
    for name in mixture_order(options.weights, rows):
        items.append(_new_item(name, len(items), sources[name], seen, is_paid))
    return items


def _new_item(
    name: str, row: int, source: Iterator[Item], seen: set[str], is_paid: Callable[[Item], bool]
) -> Item:  # fmt: skip
    for item in itertools.islice(source, _MAX_REPEATS):
        question, answer = item.entry["question"], item.entry["answer"]
        if question in seen:
            continue
        seen.add(question)
        if not isinstance(answer, str) or not answer.strip():
            raise DataError(
                f"row {row} of task 'reasoning_gym' (data set {name!r}) has the reference answer "
                f"{answer!r}, expected text that is not blank"
            )
        # About one in forty items of gsm_symbolic has an answer that its own scorer rejects.
        if is_paid(item):
            return item
    raise ConfigurationError(
        f"task.rows: data set {name!r} gave no new question in {_MAX_REPEATS} draws after {row} rows, expected "
        "fewer rows or wider task.dataset_options"
    )


def mixture_order(weights: Mapping[str, float], rows: int) -> Iterator[str]:
    """Names in the proportion of `weights` over every prefix: each row goes to the name that lags most behind."""
    total = sum(weights.values())
    counts = dict.fromkeys(weights, 0)
    for row in range(rows):
        # max() takes the first of equals, which is the order of the options.
        name = max(weights, key=lambda name: weights[name] / total * (row + 1) - counts[name])
        counts[name] += 1
        yield name


def _items(name: str, options: ReasoningGymOptions) -> Iterator[Item]:
    """Items without end, fixed by the seed and the name."""
    generator_options = options.generator_options(name)
    for chunk in itertools.count():
        seed = derive_seed(options.seed or 0, f"tasks.reasoning_gym.{name}", attempt=chunk) % _SEED_SPAN
        entries = generator(name, generator_options, seed=seed, size=_CHUNK)
        for index in range(_CHUNK):
            with contextlib.redirect_stdout(io.StringIO()):  # bf prints a dot for every item
                entry = entries[index]
            yield Item(dataset=name, entry=entry, generator_options=generator_options)


def as_frozen(item: Item, row: int) -> tuple[dict[str, Any], Item]:
    """The item for a frozen file, and the item that comes back from it.

    Raises:
        DataError: its metadata are no JSON.
    """
    values = {"dataset": item.dataset, "entry": item.entry, "generator_options": dict(item.generator_options)}
    try:
        back = json.loads(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"row {row} (data set {item.dataset!r}) cannot be frozen: {error}") from error
    return back, Item(**back)


def frozen_items(path: str, rows: int | None) -> list[Item]:
    """The first `rows` items of a frozen file, or all.

    Raises:
        DataError: it is no frozen file of this task.
        ConfigurationError: it has fewer items.
    """
    read = read_frozen(path, "reasoning_gym", {"dataset": str, "entry": dict, "generator_options": dict})
    for row, values in enumerate(read):
        entry = values["entry"]
        unfit = [key for key in ("question", "answer") if not isinstance(entry.get(key), str) or not entry[key].strip()]
        if unfit or not isinstance(entry.get("metadata"), dict):
            raise DataError(f"item {row} of {path} lacks a fit {', '.join(unfit) or 'metadata'}")
    if rows is not None and rows > len(read):
        raise ConfigurationError(f"task.rows = {rows}, but {path} holds {len(read)} items")
    return [Item(**{key: values[key] for key in ("dataset", "entry", "generator_options")}) for values in read[:rows]]
