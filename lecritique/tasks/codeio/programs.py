"""Programs with a generator of inputs: where they come from, and which are fit to ask about."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lecritique.core.errors import DataError

_ACCEPTED = Path(__file__).with_name("accepted.txt")
_FIELDS = ("task_description", "input_output_spec", "code_sample", "input_generator")

# Modules without input, output, clocks or processes. numpy is one of this package's own dependencies.
_MODULES = """
    abc array base64 bisect calendar cmath collections copy dataclasses datetime decimal difflib enum fractions
    functools hashlib heapq itertools json math numbers numpy operator queue random re statistics string struct
    textwrap types typing unicodedata
"""
_NAMES = "__import__ breakpoint compile delattr eval exec exit globals hash id input locals open quit vars"
_ATTRIBUTES = """
    ctypeslib distutils f2py fromfile genfromtxt load loadtxt memmap now save savetxt savez savez_compressed system
    testing today tofile utcnow SystemRandom seed
"""
# Attributes between double underscores that ordinary classes use; others lead into the interpreter.
_DUNDERS = """
    init new name class dict doc str repr len call hash iter next contains getitem setitem eq ne lt le gt ge
    add sub mul truediv floordiv mod pow neg abs and or xor bool int float
"""
_PURE_MODULES = frozenset(_MODULES.split())
_REFUSED_NAMES = frozenset(_NAMES.split())
_REFUSED_ATTRIBUTES = frozenset(_ATTRIBUTES.split())
_USUAL_DUNDERS = frozenset(f"__{name}__" for name in _DUNDERS.split())


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function `main_solution` and a function `generate_inputs(rng)` that draws arguments for it.

    Args:
        row: line of the file, counted from 0.
        description: what the program answers, in words.
        specification: its arguments and its result, in words.
        code: source that defines `main_solution`.
        generator: source that defines `generate_inputs`.
    """

    row: int
    description: str
    specification: str
    code: str
    generator: str

    @property
    def digest(self) -> str:
        """Eight hex digits of the code and the generator."""
        return hashlib.blake2b(f"{self.code}\0{self.generator}".encode(), digest_size=4).hexdigest()


def bundled_programs() -> list[Program]:
    """The programs of reasoning-gym's data file that passed the quality filter when it was last run over them.

    Raises:
        ConfigurationError: reasoning-gym is not installed.
        DataError: its file is not the one that was filtered.
    """
    accepted = set(_ACCEPTED.read_text(encoding="ascii").split())
    found = [program for program in all_bundled_programs() if program.digest in accepted]
    if len({program.digest for program in found}) < len(accepted):
        raise DataError(
            f"the programs of the installed reasoning-gym are not those that were filtered: {len(found)} of "
            f"{len(accepted)} were found, expected the version that the extra reasoning-gym pins"
        )
    return found


@cache
def all_bundled_programs() -> tuple[Program, ...]:
    """Every program of reasoning-gym's data file."""
    from lecritique.tasks.reasoning_gym.library import data_file

    with gzip.open(data_file("codeio.jsonl.gz"), "rt", encoding="utf-8") as lines:
        return tuple(_programs(lines, "reasoning-gym's codeio.jsonl.gz"))


def programs_of(path: str) -> list[Program]:
    """The programs of a JSONL file with the fields of reasoning-gym's.

    Raises:
        DataError: the file cannot be read, or a line lacks a field.
    """
    try:
        with open(path, encoding="utf-8") as lines:
            return list(_programs(lines, path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"task.programs = {path!r} cannot be read: {error}") from error


def _programs(lines: Iterable[str], name: str) -> Iterator[Program]:
    for row, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            fields: Any = json.loads(line)
        except ValueError as error:
            raise DataError(f"line {row + 1} of {name} is no JSON: {error}") from error
        lacking = [key for key in _FIELDS if not isinstance(fields, dict) or not isinstance(fields.get(key), str)]
        if lacking:
            raise DataError(f"line {row + 1} of {name} lacks the text fields {', '.join(lacking)}")
        description, specification, code, generator = (fields[key] for key in _FIELDS)
        yield Program(
            row=row, description=description, specification=specification, code=code, generator=generator
        )  # fmt: skip


def fault(program: Program) -> str:
    """Why the source alone makes a program unfit: empty where it does not.

    Input and output, clocks, processes, code from text, and names that change between processes.
    """
    try:
        trees = [ast.parse(program.code), ast.parse(program.generator)]
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"it is no Python: {error}"
    for tree, wanted in zip(trees, ("main_solution", "generate_inputs"), strict=True):
        if not any(isinstance(node, ast.FunctionDef) and node.name == wanted for node in tree.body):
            return f"it does not define {wanted}"
    return next((found for tree in trees for node in ast.walk(tree) if (found := _refused(node))), "")


def _refused(node: ast.AST) -> str:
    modules: Sequence[str] = ()
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or "."]
        if bad := [alias.name for alias in node.names if alias.name in _REFUSED_ATTRIBUTES]:
            return f"it imports {bad[0]}"
    for module in modules:
        if module.split(".")[0] not in _PURE_MODULES:
            return f"it imports {module}"
    if isinstance(node, ast.Name) and node.id in _REFUSED_NAMES:
        return f"it uses {node.id}"
    if isinstance(node, ast.Attribute):
        dunder = node.attr.startswith("__") and node.attr.endswith("__") and node.attr not in _USUAL_DUNDERS
        if node.attr in _REFUSED_ATTRIBUTES or dunder:
            return f"it uses .{node.attr}"
    return ""
