"""JSON from hostile hands: parsing with limits, one canonical comparison of values."""

from __future__ import annotations

import json
import math
from typing import Any

_MOST_CHARACTERS = 1 << 20
_MOST_DEPTH = 100
# Python itself refuses longer integers in decimal, since reading them takes quadratic time.
_MOST_DIGITS = 4000


class JsonRefused(ValueError):
    """Text that is no JSON value, or one that is too big, too deep or ambiguous."""


def parse_json(text: str, *, most_characters: int = _MOST_CHARACTERS, most_depth: int = _MOST_DEPTH) -> Any:
    """The value of `text`. NaN and infinities are read, as Python writes them.

    Raises:
        JsonRefused: it is no JSON, has more than `most_characters`, nests deeper than `most_depth`, or an object
            names a key twice.
    """
    if len(text) > most_characters:
        raise JsonRefused(f"it has {len(text)} characters, at most {most_characters} are read")
    if _depth(text) > most_depth:
        raise JsonRefused(f"it nests deeper than {most_depth}")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except JsonRefused:
        raise
    except (ValueError, RecursionError) as error:
        raise JsonRefused(f"it is no JSON value: {str(error)[:100]}") from None


def same_value(first: Any, second: Any, *, tolerance: float = 0.0) -> bool:
    """Whether two JSON values are one: key order and 1 against 1.0 do not matter, true against 1 does.

    Two NaN are the same; numbers may differ by `tolerance` times the larger magnitude.
    """
    todo = [(first, second)]
    while todo:
        a, b = todo.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            todo += [(a[key], b[key]) for key in a]
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            todo += zip(a, b, strict=True)
        elif not _same_leaf(a, b, tolerance):
            return False
    return True


def _same_leaf(a: Any, b: Any, tolerance: float) -> bool:
    if not (_is_number(a) and _is_number(b)):
        return type(a) is type(b) and a == b
    if a == b or (a != a and b != b):
        return True
    if tolerance == 0 or any(isinstance(x, float) and not math.isfinite(x) for x in (a, b)):
        return False
    try:
        return math.isclose(a, b, rel_tol=tolerance)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside of strings."""
    depth = deepest = 0
    inside = escaped = False
    for character in text:
        if inside:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise JsonRefused("an object names a key twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise JsonRefused(f"an integer has {len(digits)} digits, at most {_MOST_DIGITS} are read")
    return int(digits)
