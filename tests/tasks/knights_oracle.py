"""Knights and Knaves by plain enumeration, and a checker of worked solutions; shares nothing with the solver."""

from __future__ import annotations

import itertools

from lecritique.tasks.knights_knaves.deduction import Derived, Refuted


def is_true(statement, assignment):
    """Whether the statement holds in a full assignment."""
    kind, *parts = statement
    if kind in ("telling-truth", "lying"):
        return assignment[parts[0]] is (kind == "telling-truth")
    if kind in ("exactly", "at-least", "at-most"):
        count = sum(assignment)
        return {"exactly": count == parts[0], "at-least": count >= parts[0], "at-most": count <= parts[0]}[kind]
    values = [is_true(part, assignment) for part in parts]
    return {
        "not": lambda: not values[0],
        "and": lambda: all(values),
        "or": lambda: any(values),
        "->": lambda: values[1] or not values[0],
        "<=>": lambda: values[0] is values[1],
    }[kind]()


def solutions_by_enumeration(statements):
    """Every assignment in which each person's role is the truth of what they say."""
    return [
        assignment
        for assignment in itertools.product([False, True], repeat=len(statements))
        if all(is_true(said, assignment) is role for said, role in zip(statements, assignment, strict=True))
    ]


def check_steps(statements, steps, known):
    """Assert that each step follows from the roles it names and its speaker's statement alone; `known` grows."""
    for step in steps:
        assert step.person not in known
        if isinstance(step, Derived):
            assert step.uses <= known.keys()
            possible = _agreeing(statements, step.speaker, {person: known[person] for person in step.uses})
            # Inside a supposition the roles may already be impossible together, and then everything follows.
            assert {assignment[step.person] for assignment in possible} <= {step.knight}
        else:
            check_refuted(statements, step, known)
        known[step.person] = step.knight


def check_refuted(statements, step, known):
    """Assert that the opposite leads to a contradiction, by the named outer roles alone."""
    assert isinstance(step, Refuted)
    assert step.uses <= known.keys()
    supposed = {person: known[person] for person in step.uses} | {step.person: not step.knight}
    check_steps(statements, step.steps, supposed)
    assert step.clash.uses <= supposed.keys()
    used = {person: supposed[person] for person in step.clash.uses}
    assert not _agreeing(statements, step.clash.speaker, used)


def _agreeing(statements, speaker, roles):
    """Assignments with these roles in which the role of `speaker` is the truth of what they say."""
    free = [person for person in range(len(statements)) if person not in roles]
    found = []
    for choice in itertools.product([False, True], repeat=len(free)):
        assignment = {**roles, **dict(zip(free, choice, strict=True))}
        full = tuple(assignment[person] for person in range(len(statements)))
        if is_true(statements[speaker], full) is full[speaker]:
            found.append(full)
    return found
