"""What an inhabitant can say, and which assignments of roles agree with it.

A statement is a nested tuple, written as in the published data set of Xie et al. (arXiv:2410.23123):
`("telling-truth", i)` and `("lying", i)` for person i, `("not", s)`, `("and", s, ...)`, `("or", s, ...)`,
`("->", s, s)`, `("<=>", s, s)`; ours are `("exactly", k)`, `("at-least", k)` and `("at-most", k)`, which count the
knights among all inhabitants.

N inhabitants have 2^N assignments, numbered so that bit i of the number says whether person i is a knight. A truth
table is an integer with one bit for each assignment, so that a connective costs one operation on 2^N bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

Statement = tuple[Any, ...]
Statements = tuple[Statement, ...]
Assignment = tuple[bool, ...]

ATOMS = ("telling-truth", "lying")
COUNTS = ("exactly", "at-least", "at-most")
# Connectives and how many operands each takes at least and at most.
ARITY = {"not": (1, 1), "and": (2, 8), "or": (2, 8), "->": (2, 2), "<=>": (2, 2)}
MOST_ROLES = 12
_MOST_DEPTH = 8


@cache
def full_table(roles: int) -> int:
    """The table that is true everywhere."""
    return (1 << (1 << roles)) - 1


@cache
def knight_table(person: int, roles: int) -> int:
    """Where `person` is a knight: blocks of 2^person zeros and as many ones."""
    half = 1 << person
    block = ((1 << half) - 1) << half
    return full_table(roles) // ((1 << 2 * half) - 1) * block


@cache
def _count_tables(roles: int) -> tuple[int, ...]:
    """Where exactly 0, 1, ..., N persons are knights."""
    tables = [full_table(roles)]
    for person in range(roles):
        knight = knight_table(person, roles)
        knave = full_table(roles) ^ knight
        tables = [
            (tables[k] & knave if k < len(tables) else 0) | (tables[k - 1] & knight if k else 0)
            for k in range(len(tables) + 1)
        ]
    return tuple(tables)


def truth_table(statement: Statement, roles: int) -> int:
    """Where `statement` is true."""
    kind = statement[0]
    if kind == "telling-truth":
        return knight_table(statement[1], roles)
    if kind == "lying":
        return full_table(roles) ^ knight_table(statement[1], roles)
    if kind in COUNTS:
        table = 0
        for knights, where in enumerate(_count_tables(roles)):
            table |= where if _count_holds(kind, knights, statement[1]) else 0
        return table
    return _joined(kind, [truth_table(part, roles) for part in statement[1:]], full_table(roles))


def _joined(kind: str, tables: Sequence[int], full: int) -> int:
    if kind == "not":
        return full ^ tables[0]
    if kind == "->":
        return (full ^ tables[0]) | tables[1]
    if kind == "<=>":
        return full ^ tables[0] ^ tables[1]
    table = tables[0]
    for other in tables[1:]:
        table = table & other if kind == "and" else table | other
    return table


def _count_holds(kind: str, knights: int, wanted: int) -> bool:
    if kind == "exactly":
        return knights == wanted
    return knights >= wanted if kind == "at-least" else knights <= wanted


def agreeing_table(speaker: int, statement: Statement, roles: int) -> int:
    """Where the role of `speaker` agrees with what was said: a knight said a truth or a knave said an untruth."""
    return full_table(roles) ^ knight_table(speaker, roles) ^ truth_table(statement, roles)


def solutions(statements: Statements) -> list[Assignment]:
    """Every assignment that agrees with all statements; statement i is said by person i."""
    roles = len(statements)
    table = full_table(roles)
    for speaker, statement in enumerate(statements):
        table &= agreeing_table(speaker, statement, roles)
    found = []
    while table:
        low = table & -table
        number = low.bit_length() - 1
        found.append(tuple(bool(number >> person & 1) for person in range(roles)))
        table ^= low
    return found


def checked_statement(found: object, roles: int, depth: int = 0) -> Statement:
    """`found`, read from a file, as a statement about `roles` persons.

    Lists stand for tuples and digits in quotes for numbers, as JSON writers of the published data leave them.

    Raises:
        ValueError: anything that is no statement.
    """
    if not isinstance(found, tuple | list) or not found or depth > _MOST_DEPTH:
        raise ValueError(f"got {str(found)[:80]!r}, expected a statement such as ('lying', 1)")
    kind, parts = found[0], found[1:]
    if kind in ATOMS or kind in COUNTS:
        limit = roles - 1 if kind in ATOMS else roles
        if len(parts) != 1 or not _is_number(parts[0]) or not 0 <= int(parts[0]) <= limit:
            raise ValueError(f"got {str(found)[:80]!r}, expected {kind!r} with one number from 0 to {limit}")
        return (kind, int(parts[0]))
    if kind not in ARITY:
        expected = ", ".join([*ATOMS, *ARITY, *COUNTS])
        raise ValueError(f"got the statement kind {str(kind)[:40]!r}, expected one of {expected}")
    fewest, most = ARITY[kind]
    if not fewest <= len(parts) <= most:
        raise ValueError(f"got {kind!r} with {len(parts)} parts, expected {fewest} to {most}")
    return (kind, *(checked_statement(part, roles, depth + 1) for part in parts))


def _is_number(found: object) -> bool:
    # isascii: other scripts have digits too, and int() would take them. len: int() of a million digits is slow.
    if isinstance(found, str):
        return found.isascii() and found.isdigit() and len(found) < 4
    return isinstance(found, int) and not isinstance(found, bool)
