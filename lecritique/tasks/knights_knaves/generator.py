"""Puzzles with exactly one solution, fixed by (seed, row)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from lecritique.core.errors import ConfigurationError
from lecritique.core.seeds import derive_seed
from lecritique.tasks.knights_knaves.logic import (
    COUNTS,
    Assignment,
    Statement,
    Statements,
    agreeing_table,
    full_table,
    truth_table,
)

T = TypeVar("T")
KINDS = ("role", "not", "and", "or", "implies", "iff", "count")
_CONNECTIVES = {"and": "and", "or": "or", "implies": "->", "iff": "<=>"}
# Of the puzzles, one in so many is held out, by its content.
_HELD_OUT_SHARE = 8
# Draws of a puzzle per row, and of a statement, before what is asked for is taken not to exist.
_MAX_DRAWS, _MAX_STATEMENT_DRAWS = 4000, 400


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """What everyone says (statement i by person i) and the only solution; `content` is a hash of the statements."""

    statements: Statements
    solution: Assignment
    content: str

    @property
    def roles(self) -> int:
        """Number of inhabitants."""
        return len(self.statements)


def content_hash(statements: Statements) -> str:
    """Hash of the statements, whatever the inhabitants are called and however it is worded."""
    return hashlib.blake2b(repr(statements).encode(), digest_size=8).hexdigest()


def is_held_out(content: str) -> bool:
    """Whether a puzzle belongs to the held-out part, so that no seed puts it into training."""
    return int(content, 16) % _HELD_OUT_SHARE == 0


class PuzzleSource:
    """The puzzles of one seed and one part, made when they are first asked for.

    Rows are made in order and a puzzle that was there before is drawn again, so a longer source begins with the rows
    of a shorter one. Row r has `min_roles + r % (max_roles - min_roles + 1)` inhabitants.
    """

    def __init__(
        self, *, min_roles: int, max_roles: int, kinds: Sequence[str], max_depth: int, held_out: bool, seed: int
    ) -> None:
        self._min_roles, self._max_roles = min_roles, max_roles
        self._kinds = tuple(kind for kind in KINDS if kind in kinds)
        self._max_depth = max_depth
        self._held_out = held_out
        self._seed = seed
        self._made: list[Puzzle] = []
        self._taken: set[str] = set()

    def puzzle(self, row: int) -> Puzzle:
        """The puzzle of one row.

        Raises:
            ConfigurationError: there are fewer different puzzles than rows.
        """
        while len(self._made) <= row:
            self._made.append(self._new(len(self._made)))
        return self._made[row]

    def _new(self, row: int) -> Puzzle:
        roles = self._min_roles + row % (self._max_roles - self._min_roles + 1)
        random = Random(derive_seed(self._seed, "tasks.knights_knaves", row=row))
        for _ in range(_MAX_DRAWS):
            solution = tuple(random.random() < 0.5 for _ in range(roles))
            statements = _statements(solution, self._kinds, self._max_depth, random)
            if statements is None:
                continue
            content = content_hash(statements)
            if is_held_out(content) != self._held_out or content in self._taken:
                continue
            if _is_only(statements):
                self._taken.add(content)
                return Puzzle(statements=statements, solution=solution, content=content)
        raise ConfigurationError(
            f"task.rows: no new puzzle of {roles} roles for row {row} in {_MAX_DRAWS} draws, expected fewer rows, more "
            f"roles than task.min_roles = {self._min_roles}, or more of task.kinds than {', '.join(self._kinds)}"
        )


def _is_only(statements: Statements) -> bool:
    """Whether one assignment alone agrees with the statements."""
    roles = len(statements)
    table = full_table(roles)
    for speaker, statement in enumerate(statements):
        table &= agreeing_table(speaker, statement, roles)
    return table.bit_count() == 1


def _statements(solution: Assignment, kinds: Sequence[str], max_depth: int, random: Random) -> Statements | None:
    """One statement for each person that agrees with the wanted solution; None when none was found for somebody."""
    number = sum(knight << person for person, knight in enumerate(solution))
    roles = len(solution)
    said = []
    for speaker, knight in enumerate(solution):
        for _ in range(_MAX_STATEMENT_DRAWS):
            statement = _drawn(speaker, roles, kinds, max_depth, random)
            table = truth_table(statement, roles)
            # What is always or never true says nothing.
            if bool(table >> number & 1) == knight and table not in (0, full_table(roles)):
                said.append(statement)
                break
        else:
            return None
    return tuple(said)


def _drawn(speaker: int, roles: int, kinds: Sequence[str], depth: int, random: Random) -> Statement:
    """A statement in the mouth of `speaker`; nobody just calls themselves a knight or a knave."""
    kind = _picked(kinds, random)
    if kind == "role":
        others = [person for person in range(roles) if person != speaker]
        return _atom(_picked(others, random), random)
    return _compound(kind, roles, kinds, depth, random)


def _compound(kind: str, roles: int, kinds: Sequence[str], depth: int, random: Random) -> Statement:
    if kind == "count":
        return (_picked(COUNTS, random), int(random.random() * (roles + 1)))
    if kind == "not":
        return ("not", _part(None, roles, kinds, depth, random))
    # The two sides speak of different persons, or one of them is itself compound.
    first = int(random.random() * roles)
    second = (first + 1 + int(random.random() * (roles - 1))) % roles
    return (
        _CONNECTIVES[kind],
        _part(first, roles, kinds, depth, random),
        _part(second, roles, kinds, depth, random),
    )


def _part(person: int | None, roles: int, kinds: Sequence[str], depth: int, random: Random) -> Statement:
    """A part of a compound statement: compound itself in one case of four while `depth` allows."""
    inner = [kind for kind in kinds if kind != "role"]
    if depth > 1 and inner and random.random() < 0.25:
        return _compound(_picked(inner, random), roles, kinds, depth - 1, random)
    return _atom(int(random.random() * roles) if person is None else person, random)


def _atom(person: int, random: Random) -> Statement:
    return ("telling-truth" if random.random() < 0.5 else "lying", person)


def _picked(items: Sequence[T], random: Random) -> T:
    # Python guarantees the sequence of random() for a seed across versions, but not that of choice().
    return items[int(random.random() * len(items))]
