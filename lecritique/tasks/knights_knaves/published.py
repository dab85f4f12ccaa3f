"""Puzzles from a file in the published format: JSON Lines as of Xie et al. (arXiv:2410.23123).

Fields: `quiz` (the puzzle in words), `names`, `solution` (true for who tells the truth, whatever the words are), and,
where present, `knight_knave` (the words for the roles), `statements` (nested tuples, often written as one text)
and the worked solution in `cot_head`, `cot_repeat_steps`, `cot_foot`. Copies of the data that went through other
writers hold lists as text; those are read too.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.tasks.knights_knaves.deduction import worked_steps
from lecritique.tasks.knights_knaves.logic import MOST_ROLES, Assignment, Statements, checked_statement, solutions
from lecritique.tasks.knights_knaves.reading import verbose_reading
from lecritique.tasks.knights_knaves.wording import Cast, verbose_answer, verbose_solution

_LONGEST_FIELD = 50_000


@dataclass(frozen=True, kw_only=True)
class PublishedPuzzle:
    """One row: the puzzle in words, who is who, and a worked solution where the row has one or can be given one."""

    quiz: str
    cast: Cast
    solution: Assignment
    worked: str | None


def published_puzzles(path: str, most: int | None = None) -> list[PublishedPuzzle]:
    """The first `most` different puzzles of the file (None: all).

    Raises:
        ConfigurationError: there is no such file.
        DataError: a line that is no puzzle, or whose solution its statements do not have, by its number.
    """
    found: dict[str, PublishedPuzzle] = {}
    for number, line in _lines(path):
        if most is not None and len(found) == most:
            break
        try:
            puzzle = _puzzle(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"line {number} of {path!r} is no Knights and Knaves puzzle: {error}") from error
        found.setdefault(puzzle.quiz, puzzle)
    if not found:
        raise DataError(f"file {path!r} (task.path) holds no puzzle, expected one JSON object a line")
    return list(found.values())


def _lines(path: str) -> Iterator[tuple[int, str]]:
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"task.path = {path!r} cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _puzzle(line: str) -> PublishedPuzzle:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"got a JSON {type(row).__name__}, expected an object")
    quiz = row.get("quiz")
    if not isinstance(quiz, str) or not quiz.strip():
        raise ValueError(f"got quiz = {str(quiz)[:80]!r}, expected the puzzle in words")
    names = _names(_unpacked(row, "names"))
    cast = Cast(names=names, words=_words(_unpacked(row, "knight_knave")))
    solution = _solution(_unpacked(row, "solution"), len(names))
    if verbose_reading("\n".join(verbose_answer(solution, cast).split(", ")), cast) != solution:
        raise ValueError(f"got names = {str(names)[:80]!r}, expected names without punctuation")
    statements = _statements(_unpacked(row, "statements"), solution)
    worked = _worked(row, cast, solution, statements)
    return PublishedPuzzle(quiz=quiz.strip(), cast=cast, solution=solution, worked=worked)


def _unpacked(row: dict[str, Any], field: str) -> Any:
    """The field, read as a Python literal where it is text."""
    found = row.get(field)
    if not isinstance(found, str):
        return found
    if len(found) > _LONGEST_FIELD:
        raise ValueError(f"field {field} has {len(found)} characters, expected at most {_LONGEST_FIELD}")
    try:
        return json.loads(found)
    except ValueError:
        pass
    try:
        return ast.literal_eval(found)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise ValueError(f"field {field} is the text {found[:80]!r}, expected a list or tuple in it") from None


def _names(found: Any) -> tuple[str, ...]:
    fit = isinstance(found, list | tuple) and all(isinstance(name, str) and name.strip() for name in found)
    if not fit or not 2 <= len(found) <= MOST_ROLES or len({name.strip().lower() for name in found}) < len(found):
        raise ValueError(f"got names = {str(found)[:80]!r}, expected 2 to {MOST_ROLES} different names")
    return tuple(name.strip() for name in found)


def _words(found: Any) -> tuple[str, str]:
    if found is None:
        return Cast(names=()).words
    words = (found.get("knight"), found.get("knave")) if isinstance(found, dict) else (None, None)
    if not all(isinstance(word, str) and word.strip() for word in words) or words[0].lower() == words[1].lower():
        raise ValueError(f"got knight_knave = {str(found)[:80]!r}, expected the words for knight and knave")
    return words


def _solution(found: Any, roles: int) -> Assignment:
    fit = isinstance(found, list | tuple) and all(isinstance(value, bool) for value in found)
    if not fit or len(found) != roles:
        raise ValueError(f"got solution = {str(found)[:80]!r}, expected true or false for each of {roles} names")
    return tuple(found)


def _statements(found: Any, solution: Assignment) -> Statements | None:
    """The statements, whose only solution must be the given one; None where the row has none."""
    if found is None:
        return None
    if not isinstance(found, list | tuple) or len(found) != len(solution):
        raise ValueError(f"got statements = {str(found)[:80]!r}, expected one for each of {len(solution)} names")
    statements = tuple(checked_statement(part, len(solution)) for part in found)
    agreeing = solutions(statements)
    if agreeing != [solution]:
        raise ValueError(
            f"its statements have {len(agreeing)} solutions, expected exactly one, which is {list(solution)}"
        )
    return statements


def _worked(row: dict[str, Any], cast: Cast, solution: Assignment, statements: Statements | None) -> str | None:
    """The row's own worked solution, else one derived from its statements."""
    steps = row.get("cot_repeat_steps")
    if isinstance(steps, str):
        steps = [steps]
    if steps is not None and not (isinstance(steps, list) and all(isinstance(step, str) for step in steps)):
        raise ValueError(f"got cot_repeat_steps = {str(steps)[:80]!r}, expected a list of sentences")
    around = [row.get("cot_head"), row.get("cot_foot")]
    for field, text in zip(("cot_head", "cot_foot"), around, strict=True):
        if text is not None and not isinstance(text, str):
            raise ValueError(f"got {field} = {str(text)[:80]!r}, expected text")
    if steps:
        parts = [around[0], *steps, around[1], f"So {verbose_answer(solution, cast)}."]
        return "\n".join(part.strip() for part in parts if part and part.strip())
    if statements is None:
        return None
    return verbose_solution(worked_steps(statements), statements, solution, cast)
