"""The items of CodeIO: which program, which direction, which recorded run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from lecritique.core.errors import ConfigurationError
from lecritique.core.seeds import derive_seed, uniforms
from lecritique.tasks.codeio.options import CodeIOOptions, Direction
from lecritique.tasks.codeio.programs import Program, bundled_programs, programs_of
from lecritique.tasks.codeio.trials import Recording, record, unfit
from lecritique.tasks.frozen import read_frozen

# Inputs that are drawn for a program until one is fit.
_MOST_DRAWS = 4


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question: a program, a recorded run of it, and which end of the run is asked for."""

    direction: Direction
    description: str
    specification: str
    code: str
    inputs: dict[str, Any]
    output: Any
    trace: str

    @property
    def given(self) -> str:
        """The value that the policy sees, as JSON."""
        return json.dumps(self.inputs if self.direction == "output" else self.output)

    @property
    def wanted(self) -> str:
        """The recorded value that it does not see, as JSON."""
        return json.dumps(self.output if self.direction == "output" else self.inputs)

    def as_json(self) -> dict[str, Any]:
        """The item for a frozen file."""
        return asdict(self)


def frozen_items(path: str, options: CodeIOOptions) -> list[Item]:
    """The items of a frozen file that the options ask for.

    Raises:
        DataError: the file is no frozen file of this task.
        ConfigurationError: it has fewer fit items than `rows`.
    """
    fields: dict[str, type | tuple[type, ...]] = {
        "direction": str, "description": str, "specification": str, "code": str, "inputs": dict,
        "output": (dict, list, str, int, float, bool), "trace": str,
    }  # fmt: skip
    read = read_frozen(path, "codeio", fields)
    found = [
        Item(**{**{name: values[name] for name in fields}, "direction": cast(Direction, values["direction"])})
        for values in read
        if values["direction"] in options.directions
    ]
    fit = [item for item in found if _fits(item, options)]
    return _enough(fit, options.rows or len(fit), f"task.file = {path!r}")


def drawn_items(options: CodeIOOptions, rows: int) -> list[Item]:
    """The first `rows` items of an order that the seed fixes; every program once before any comes again.

    Raises:
        ConfigurationError: there are not enough programs that are fit.
    """
    if options.programs is None:
        programs, checked = bundled_programs(), True
    else:
        programs, checked = programs_of(options.programs), False
    programs = [program for program in programs if len(program.code) <= options.max_program_chars]
    found: list[Item] = []
    seen: set[tuple[str, str]] = set()
    for item in _drawn(programs, options, checked):
        question = (item.code, item.given)
        if question not in seen:
            seen.add(question)
            found.append(item)
        if len(found) == rows:
            break
    return _enough(found, rows, f"task.programs = {options.programs!r}")


def _enough(items: list[Item], rows: int, source: str) -> list[Item]:
    if len(items) < rows or not items:
        raise ConfigurationError(
            f"task.rows = {rows}: {source} gives {len(items)} items for these options, expected fewer rows or wider "
            "limits"
        )
    return items[:rows]


def _drawn(programs: list[Program], options: CodeIOOptions, checked: bool) -> Iterator[Item]:
    """Items, round after round over the programs until a round brings nothing new."""
    seed = options.seed or 0
    order = np.argsort(uniforms(derive_seed(seed, "tasks.codeio.order"), np.arange(len(programs))), kind="stable")
    left = [programs[index] for index in order]
    if not checked:
        left = [program for program in left if not unfit(program)]
    for number in range(1000):
        if not left:
            return
        kept = []
        for place, program in enumerate(left):
            direction = options.directions[(place + number) % len(options.directions)]
            item = _item(program, direction, options, seed, number)
            if item is not None:
                kept.append(program)
                yield item
        left = kept


def _item(program: Program, direction: Direction, options: CodeIOOptions, seed: int, number: int) -> Item | None:
    for draw in range(_MOST_DRAWS):
        purpose = f"tasks.codeio.inputs.{program.digest}"
        recording = record(program, derive_seed(seed, purpose, row=number, attempt=draw))
        if isinstance(recording, Recording):
            item = Item(
                direction=direction, description=program.description, specification=program.specification,
                code=program.code, inputs=recording.inputs, output=recording.output, trace=recording.trace,
            )  # fmt: skip
            if _fits(item, options):
                return item
    return None


def _fits(item: Item, options: CodeIOOptions) -> bool:
    values = max(len(item.given), len(item.wanted))
    return values <= options.max_value_chars and len(item.code) <= options.max_program_chars
