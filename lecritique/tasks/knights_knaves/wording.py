"""How puzzles, answers and worked solutions are written.

Terse, for tiny models: persons are `A`..`L`, roles `k` and `n`, so `Bk` says that B is a knight. `Bk&Cn` and, `|` or,
`>` implies, `=` exactly when, `~` not, compound parts in parentheses, `#=2` `#>2` `#<2` exactly, at least, at most two
knights. A puzzle is `A:Bk&Cn B:An`, an answer `AkBnCk`.
A terse worked solution: `Bk:A` B is a knight by A's statement, `(An:Bk:A!C)Ak` supposing that A is a knave gives B and
then a clash with C's statement, so A is a knight; it ends with `=` and the answer.
Verbose: sentences, with names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from lecritique.core.seeds import derive_seed
from lecritique.tasks.knights_knaves.deduction import Derived, Refuted, Step
from lecritique.tasks.knights_knaves.logic import Assignment, Statement, Statements

LETTERS = tuple("ABCDEFGHIJKL")
# fmt: off
COMMON_NAMES = (
    "Ada", "Amir", "Anna", "Ben", "Clara", "David", "Elena", "Felix", "Grace", "Hugo", "Ines", "Jonas",
    "Karim", "Laura", "Maria", "Nadia", "Oscar", "Paul", "Rosa", "Samuel", "Tara", "Viktor", "Wanda", "Yusuf",
)
UNCOMMON_NAMES = (
    "Aldous", "Brunhild", "Caspian", "Drusilla", "Eustace", "Fenella", "Godric", "Hestia", "Ignatz", "Jocasta",
    "Kestrel", "Leofric", "Melusine", "Nestor", "Oriel", "Peregrine", "Quilla", "Rowena", "Sigbert", "Thisbe",
    "Ulric", "Vesper", "Wulfstan", "Ysolde",
)
_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)
# fmt: on
NAMES = {"letters": LETTERS, "common": COMMON_NAMES, "uncommon": UNCOMMON_NAMES}
ROLE_WORDS = {
    "knight": ("knight", "knave"),
    "hero": ("hero", "villain"),
    "saint": ("saint", "sinner"),
    "angel": ("angel", "devil"),
}
_SIGNS = {"and": "&", "or": "|", "->": ">", "<=>": "=", "exactly": "#=", "at-least": "#>", "at-most": "#<"}
_SAYINGS = (
    "{name} says that {what}.",
    "{name} claims that {what}.",
    'According to {name}, "{what}".',
    '{name} remarked, "{what}".',
    '"{what}," {name} told you.',
    "You hear from {name} that {what}.",
    '{name} stated: "{what}".',
    "In the words of {name}: {what}.",
)


@dataclass(frozen=True, kw_only=True)
class Cast:
    """What the inhabitants are called, and the words for one who tells the truth and one who lies."""

    names: tuple[str, ...]
    words: tuple[str, str] = ROLE_WORDS["knight"]

    def role(self, knight: bool) -> str:
        """The role with its article: `a knight`."""
        word = self.words[0] if knight else self.words[1]
        return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"

    def claim(self, person: int, knight: bool) -> str:
        """`Ada is a knight`."""
        return f"{self.names[person]} is {self.role(knight)}"


def drawn_cast(names: str, role_words: str, roles: int, *, seed: int, row: int) -> Cast:
    """Different names out of one of the lists, fixed by (seed, row); letters come in their order."""
    pool = list(NAMES[names])
    if names != "letters":
        random = Random(derive_seed(seed, "tasks.knights_knaves.names", row=row))
        for place in range(roles):
            other = place + int(random.random() * (len(pool) - place))
            pool[place], pool[other] = pool[other], pool[place]
    return Cast(names=tuple(pool[:roles]), words=ROLE_WORDS[role_words])


def terse_puzzle(statements: Statements) -> str:
    """Everyone's statement in symbols."""
    return " ".join(f"{LETTERS[speaker]}:{terse_statement(said)}" for speaker, said in enumerate(statements))


def terse_statement(statement: Statement) -> str:
    """One statement in symbols."""
    kind = statement[0]
    if kind in ("telling-truth", "lying"):
        return terse_role(statement[1], kind == "telling-truth")
    if kind in ("exactly", "at-least", "at-most"):
        return f"{_SIGNS[kind]}{statement[1]}"
    parts = [terse_statement(part) for part in statement[1:]]
    wrapped = [f"({p})" if part[0] in _SIGNS else p for p, part in zip(parts, statement[1:], strict=True)]
    return f"~{wrapped[0]}" if kind == "not" else _SIGNS[kind].join(wrapped)


def terse_role(person: int, knight: bool) -> str:
    """`Bk` or `Bn`."""
    return LETTERS[person] + ("k" if knight else "n")


def terse_answer(solution: Assignment) -> str:
    """`AkBnCk`."""
    return "".join(terse_role(person, knight) for person, knight in enumerate(solution))


def terse_solution(steps: Sequence[Step], solution: Assignment) -> str:
    """A worked solution in symbols, with the answer after its `=`."""
    return f"{_terse_steps(steps)}={terse_answer(solution)}"


def _terse_steps(steps: Iterable[Step]) -> str:
    return "".join(
        f"{terse_role(step.person, step.knight)}:{LETTERS[step.speaker]}"
        if isinstance(step, Derived)
        else f"({terse_role(step.person, not step.knight)}:{_terse_steps(step.steps)}!{LETTERS[step.clash.speaker]})"
        f"{terse_role(step.person, step.knight)}"
        for step in steps
    )


def verbose_puzzle(statements: Statements, cast: Cast, *, wording: str, seed: int) -> str:
    """The rules, the inhabitants and what they say; `varied` draws the way each is reported from `seed`."""
    truthful, lying = cast.words
    random = Random(seed)
    said = []
    for name, statement in zip(cast.names, statements, strict=True):
        saying = _SAYINGS[int(random.random() * len(_SAYINGS))] if wording == "varied" else _SAYINGS[0]
        what = verbose_statement(statement, cast)
        if saying.startswith('"{what}') or '"{what}"' in saying:
            what = what[:1].upper() + what[1:]
        said.append(saying.format(name=name, what=what))
    listed = f"{', '.join(cast.names[:-1])} and {cast.names[-1]}"
    return (
        f"On an island every inhabitant is either {cast.role(True)}, who says only true things, or {cast.role(False)}, "
        f"who says only false things. You meet {_NUMBERS[len(cast.names)]} of them: {listed}.\n\n"
        + "\n".join(said)
        + f"\n\nWho is {cast.role(True)} and who is {cast.role(False)}? 'Of us' means all {len(cast.names)} together; "
        f"'or' does not exclude both. Everything needed to tell each {truthful} from each {lying} has been said."
    )


def verbose_statement(statement: Statement, cast: Cast) -> str:
    """One statement as the second half of `Ada says that ...`."""
    kind = statement[0]
    if kind in ("telling-truth", "lying"):
        return cast.claim(statement[1], kind == "telling-truth")
    if kind in ("exactly", "at-least", "at-most"):
        return _verbose_count(kind.replace("-", " "), statement[1], cast)
    parts = [verbose_statement(part, cast) for part in statement[1:]]
    nested = [part[0] in ("and", "or", "->", "<=>", "not") for part in statement[1:]]
    # A nested compound is put in parentheses: English alone does not say how far it reaches.
    parts = [f"({part})" if inner else part for part, inner in zip(parts, nested, strict=True)]
    if kind == "not":
        return f"it is not true that {parts[0]}"
    if kind == "->":
        return f"if {parts[0]}, then {parts[1]}"
    if kind == "<=>":
        return f"{parts[0]} exactly when {parts[1]}"
    return f" {kind} ".join(parts)


def _verbose_count(how: str, number: int, cast: Cast) -> str:
    word = cast.words[0]
    plural = word + ("es" if word.endswith("o") else "s")
    if number == 1:
        return f"{how} one of us is {cast.role(True)}"
    return f"{how} {_NUMBERS[number]} of us are {plural}"


def verbose_answer(solution: Assignment, cast: Cast) -> str:
    """`Ada is a knight, Ben is a knave`."""
    return ", ".join(cast.claim(person, knight) for person, knight in enumerate(solution))


def verbose_solution(steps: Sequence[Step], statements: Statements, solution: Assignment, cast: Cast) -> str:
    """A worked solution in sentences, one step a line, which ends with the answer."""
    lines = _verbose_steps(steps, statements, cast, {}, indent="")
    return "\n".join([*lines, f"So {verbose_answer(solution, cast)}."])


def _verbose_steps(
    steps: Sequence[Step], statements: Statements, cast: Cast, known: dict[int, bool], *, indent: str
) -> list[str]:
    """Lines of the steps; `known` grows with them."""
    lines = []
    for step in steps:
        if isinstance(step, Derived):
            lines.append(indent + _verbose_derived(step, statements, cast, known))
        else:
            lines += _verbose_refuted(step, statements, cast, known, indent)
        known[step.person] = step.knight
    return lines


def _verbose_derived(step: Derived, statements: Statements, cast: Cast, known: dict[int, bool]) -> str:
    speaker, said = cast.names[step.speaker], verbose_statement(statements[step.speaker], cast)
    result = cast.claim(step.person, step.knight)
    if step.person == step.speaker and step.speaker not in step.uses:
        because = _because(step.uses, known, cast)
        return f"{speaker} says that {said}. That is {_truth(step.knight)}{because}, so {result}."
    role = known[step.speaker]
    because = _because(step.uses - {step.speaker}, known, cast)
    return f"{cast.claim(step.speaker, role)} and says that {said}, which must be {_truth(role)}{because}; so {result}."


def _verbose_refuted(
    step: Refuted, statements: Statements, cast: Cast, known: dict[int, bool], indent: str
) -> list[str]:
    supposed = {**known, step.person: not step.knight}
    lines = [f"{indent}Suppose that {cast.claim(step.person, not step.knight)}."]
    lines += _verbose_steps(step.steps, statements, cast, supposed, indent=indent + "  ")
    speaker = step.clash.speaker
    because = _because(step.clash.uses - {speaker}, supposed, cast)
    said = verbose_statement(statements[speaker], cast)
    role = supposed[speaker]
    lines.append(
        f"{indent}  But {cast.claim(speaker, role)} and says that {said}, which is {_truth(not role)}{because}: a "
        "contradiction."
    )
    lines.append(f"{indent}Hence {cast.claim(step.person, step.knight)}.")
    return lines


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _because(persons: Iterable[int], known: dict[int, bool], cast: Cast) -> str:
    claims = [cast.claim(person, known[person]) for person in sorted(persons)]
    return f", because {' and '.join(claims)}" if claims else ""
