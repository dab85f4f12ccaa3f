"""Worked solutions: case analysis with propagation, in which every step has a stated reason.

A role follows from a statement in one of two ways: what the speaker said is known to be true or false, so the
speaker's role is known; or the speaker's role is known, so what was said must be true or false, and that leaves one
possibility for somebody. When nothing follows any more, a role is supposed; if that leads to a contradiction, the
opposite holds. Suppositions are nested only as deep as needed, and what a contradiction did not need is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lecritique.tasks.knights_knaves.logic import Assignment, Statement, Statements

Known = Mapping[int, bool]
# A value (None: not known yet) and the persons whose roles it follows from.
_Value = tuple[bool | None, frozenset[int]]
_UNKNOWN: _Value = (None, frozenset())


@dataclass(frozen=True, kw_only=True)
class Derived:
    """`person` has the role `knight`, by the statement of `speaker` and the roles of the persons in `uses`."""

    person: int
    knight: bool
    speaker: int
    uses: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Clash:
    """The roles of the persons in `uses`, the speaker among them, do not agree with what `speaker` said."""

    speaker: int
    uses: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Refuted:
    """`person` has the role `knight`, because supposing the opposite leads over `steps` to `clash`.

    `uses` are the persons whose roles were known before the supposition and were needed in it.
    """

    person: int
    knight: bool
    steps: tuple[Step, ...]
    clash: Clash
    uses: frozenset[int]


Step = Derived | Refuted


def worked_steps(statements: Statements) -> tuple[Step, ...]:
    """Steps that end with the role of everyone known.

    Raises:
        ValueError: the statements do not have exactly one solution.
    """
    for depth in range(len(statements) + 1):
        known: dict[int, bool] = {}
        steps, clash = _deduced(statements, known, depth)
        if clash is not None:
            raise ValueError("the statements contradict each other")
        if len(known) == len(statements):
            return tuple(steps)
    raise ValueError("the statements have more than one solution")


def concluded(steps: Iterable[Step], roles: int) -> Assignment:
    """The assignment that the steps arrive at."""
    known = {step.person: step.knight for step in steps}
    return tuple(known[person] for person in range(roles))


def _deduced(statements: Statements, known: dict[int, bool], depth: int) -> tuple[list[Step], Clash | None]:
    """Extend `known` as far as suppositions nested at most `depth` deep lead: the steps, and a contradiction if any."""
    steps: list[Step] = []
    while True:
        clash = _propagated(statements, known, steps)
        if clash is not None or depth == 0 or len(known) == len(statements):
            return steps, clash
        refuted = _refuted(statements, known, depth - 1)
        if refuted is None:
            return steps, None
        known[refuted.person] = refuted.knight
        steps.append(refuted)


def _propagated(statements: Statements, known: dict[int, bool], steps: list[Step]) -> Clash | None:
    """Add what follows without suppositions to `known` and `steps`, until nothing does or a statement clashes."""
    changed = True
    while changed:
        changed = False
        for speaker, statement in enumerate(statements):
            value, uses = value_of(statement, known, len(statements))
            role = known.get(speaker)
            if value is not None and role is not None and value != role:
                return Clash(speaker=speaker, uses=uses | {speaker})
            if value is not None:
                found = [] if role is not None else [(speaker, value, uses)]
            elif role is not None:
                forced = forced_by(statement, role, known, len(statements))
                found = [(person, knight, why | {speaker}) for person, knight, why in forced]
            else:
                continue
            for person, knight, why in found:
                if person not in known:
                    known[person] = knight
                    steps.append(Derived(person=person, knight=knight, speaker=speaker, uses=why))
                    changed = True
    return None


def _refuted(statements: Statements, known: Known, depth: int) -> Refuted | None:
    """The shortest contradiction that one supposition leads to, with further ones nested at most `depth` deep."""
    best: Refuted | None = None
    fewest = 0
    for nested in range(depth + 1):
        for person in range(len(statements)):
            for supposed in () if person in known else (True, False):
                trial = {**known, person: supposed}
                steps, clash = _deduced(statements, trial, nested)
                if clash is None:
                    continue
                needed, uses = _needed(steps, clash)
                length = sum(map(_length, needed))
                if best is None or length < fewest:
                    uses = (uses - {person}) & known.keys()
                    best = Refuted(person=person, knight=not supposed, steps=needed, clash=clash, uses=uses)
                    fewest = length
        if best is not None:
            return best
    return None


def _needed(steps: Sequence[Step], clash: Clash) -> tuple[tuple[Step, ...], frozenset[int]]:
    """The steps that the contradiction rests on, and every person whose role it rests on."""
    uses = set(clash.uses)
    kept = []
    for step in reversed(steps):
        if step.person in uses:
            kept.append(step)
            uses |= step.uses
    return tuple(reversed(kept)), frozenset(uses)


def _length(step: Step) -> int:
    return 1 if isinstance(step, Derived) else 2 + sum(map(_length, step.steps))


def value_of(statement: Statement, known: Known, roles: int) -> _Value:
    """Whether `statement` is true as far as known roles say, and from whose roles that follows (Kleene's logic)."""
    kind = statement[0]
    if kind in ("telling-truth", "lying"):
        person = statement[1]
        if person not in known:
            return _UNKNOWN
        return known[person] == (kind == "telling-truth"), frozenset({person})
    if kind == "not":
        value, uses = value_of(statement[1], known, roles)
        return (None if value is None else not value), uses
    if kind == "<=>":
        left, right = (value_of(part, known, roles) for part in statement[1:])
        if left[0] is None or right[0] is None:
            return _UNKNOWN
        return left[0] == right[0], left[1] | right[1]
    if kind in ("and", "or", "->"):
        return _junction(_as_or(statement), known, roles) if kind != "and" else _junction(statement, known, roles)
    return _counted(statement, known, roles)


def _as_or(statement: Statement) -> Statement:
    """`a -> b` as `not a or b`."""
    return ("or", ("not", statement[1]), statement[2]) if statement[0] == "->" else statement


def _junction(statement: Statement, known: Known, roles: int) -> _Value:
    """Value of `and`, which one false part decides, or `or`, which one true part decides."""
    deciding = statement[0] == "or"
    parts = [value_of(part, known, roles) for part in statement[1:]]
    decisive = [uses for value, uses in parts if value is deciding]
    if decisive:
        return deciding, min(decisive, key=len)
    if any(value is None for value, _ in parts):
        return _UNKNOWN
    return not deciding, frozenset().union(*(uses for _, uses in parts))


def _counted(statement: Statement, known: Known, roles: int) -> _Value:
    kind, wanted = statement
    knights = frozenset(person for person, knight in known.items() if knight)
    knaves = frozenset(known) - knights
    fewest, most = len(knights), roles - len(knaves)
    if kind == "at-least":
        if fewest >= wanted:
            return True, knights
        return (False, knaves) if most < wanted else _UNKNOWN
    if kind == "at-most":
        if most <= wanted:
            return True, knaves
        return (False, knights) if fewest > wanted else _UNKNOWN
    if fewest > wanted:
        return False, knights
    if most < wanted:
        return False, knaves
    return (True, knights | knaves) if fewest == most else _UNKNOWN


def forced_by(statement: Statement, value: bool, known: Known, roles: int) -> list[tuple[int, bool, frozenset[int]]]:
    """Roles that must hold for `statement`, itself undecided, to have `value`; known ones may be among them.

    Returns:
        (person, whether a knight, persons whose roles it follows from) of each.
    """
    kind = statement[0]
    if kind in ("telling-truth", "lying"):
        return [(statement[1], value == (kind == "telling-truth"), frozenset())]
    if kind == "not":
        return forced_by(statement[1], not value, known, roles)
    if kind == "<=>":
        return _forced_equivalence(statement, value, known, roles)
    if kind in ("and", "or", "->"):
        return _forced_junction(_as_or(statement), value, known, roles)
    return _forced_count(statement, value, known, roles)


def _forced_equivalence(
    statement: Statement, value: bool, known: Known, roles: int
) -> list[tuple[int, bool, frozenset[int]]]:
    for here, there in (statement[1:], statement[:0:-1]):
        given, uses = value_of(here, known, roles)
        if given is not None:
            forced = forced_by(there, given == value, known, roles)
            return [(person, knight, why | uses) for person, knight, why in forced]
    return []


def _forced_junction(
    statement: Statement, value: bool, known: Known, roles: int
) -> list[tuple[int, bool, frozenset[int]]]:
    parts = statement[1:]
    if value == (statement[0] == "and"):
        return [found for part in parts for found in forced_by(part, value, known, roles)]
    values = [value_of(part, known, roles) for part in parts]
    undecided = [part for part, (seen, _) in zip(parts, values, strict=True) if seen is None]
    if len(undecided) != 1 or any(seen is value for seen, _ in values):
        return []
    uses = frozenset().union(*(why for seen, why in values if seen is not None))
    return [(person, knight, why | uses) for person, knight, why in forced_by(undecided[0], value, known, roles)]


def _forced_count(
    statement: Statement, value: bool, known: Known, roles: int
) -> list[tuple[int, bool, frozenset[int]]]:
    """Everyone left is a knight, or a knave, where the count has reached what the statement allows."""
    kind, wanted = statement
    fewest, most = {"exactly": (wanted, wanted), "at-least": (wanted, roles), "at-most": (0, wanted)}[kind]
    if not value:
        if kind == "exactly":
            return _forced_miscount(wanted, known, roles)
        fewest, most = (0, wanted - 1) if kind == "at-least" else (wanted + 1, roles)
    knights = frozenset(person for person, knight in known.items() if knight)
    knaves = frozenset(known) - knights
    left = [person for person in range(roles) if person not in known]
    if len(knights) == most:
        return [(person, False, knights) for person in left]
    if roles - len(knaves) == fewest:
        return [(person, True, knaves) for person in left]
    return []


def _forced_miscount(wanted: int, known: Known, roles: int) -> list[tuple[int, bool, frozenset[int]]]:
    """The last person left must not bring the number of knights to `wanted`."""
    left = [person for person in range(roles) if person not in known]
    knights = sum(known.values())
    if len(left) != 1 or wanted - knights not in (0, 1):
        return []
    return [(left[0], wanted == knights, frozenset(known))]
