"""What a policy answered: a role for everybody, read strictly from hostile text."""

from __future__ import annotations

import re

from lecritique.tasks.knights_knaves.logic import Assignment
from lecritique.tasks.knights_knaves.wording import LETTERS, Cast

# Nobody needs so much room for twelve claims.
_LONGEST_ANSWER = 10_000
_CLAUSE_ENDS = re.compile(r"[\n\r.,;!]|\band\b|\(\d{1,2}\)", re.IGNORECASE)
_OPENING = re.compile(
    r"^(?:[\s\-+*\u2022]|\d{1,2}[):]|(?:so|thus|hence|therefore|then|finally)\b[\s:]*)*", re.IGNORECASE
)
_MARKUP = re.compile(r"[*_`#>]")


def terse_reading(text: str, roles: int) -> Assignment | None:
    """The assignment that `AkBnCk` stands for: each person once, in any order; None when it is anything else."""
    pairs = text.strip()
    if len(pairs) != 2 * roles:
        return None
    found = {}
    for letter, role in zip(pairs[::2], pairs[1::2], strict=True):
        if letter not in LETTERS[:roles] or role not in ("k", "n"):
            return None
        found[letter] = role == "k"
    return tuple(found[letter] for letter in LETTERS[:roles]) if len(found) == roles else None


def verbose_reading(text: str, cast: Cast) -> Assignment | None:
    """The assignment that claims such as `Ada is a knight` make together.

    Claims stand one a line or one a clause, in any order and case, also `Ada: knight` or `Ada is not a knave`, and may
    be repeated. None when somebody is missing, when claims contradict each other, and when a clause that speaks of
    a role is no plain claim about one of the inhabitants (`either`, `if`, a stranger): then it is not clear what was
    answered.
    """
    if len(text) > _LONGEST_ANSWER:
        return None
    truthful = cast.words[0].lower()
    claim, speaks_of_role = _patterns(cast)
    persons = {name.lower(): person for person, name in enumerate(cast.names)}
    found: dict[int, bool] = {}
    for clause in _clauses(text):
        match = claim.fullmatch(clause)
        if match is None and speaks_of_role.search(clause):
            return None
        if match is None:
            continue
        person = persons[match["name"]]
        knight = (match["role"] == truthful) != (match["negation"] is not None)
        if found.setdefault(person, knight) != knight:
            return None
    return tuple(found[person] for person in range(len(persons))) if len(found) == len(persons) else None


def _clauses(text: str) -> list[str]:
    parts = _CLAUSE_ENDS.split(_MARKUP.sub("", text))
    return [" ".join(_OPENING.sub("", part).lower().split()) for part in parts]


def _patterns(cast: Cast) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """(a plain claim, anything that speaks of a role)."""
    names = "|".join(re.escape(name.lower()) for name in sorted(cast.names, key=len, reverse=True))
    words = "|".join(re.escape(word.lower()) for word in cast.words)
    claim = rf"(?P<name>{names}) ?(?:is|:|=|-|\u2013|\u2192) ?(?P<negation>not )?(?:an? |the )?(?P<role>{words})"
    return re.compile(claim), re.compile(words)
