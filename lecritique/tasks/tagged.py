"""Answers out of text: between tags, or as the last JSON value. Linear in hostile text."""

from __future__ import annotations

import json
from typing import Any

from lecritique.tasks.json_values import JsonRefused, parse_json

OPENING, CLOSING = "<answer>", "</answer>"
# Values are looked for in the end of a text, and parsing from one opening bracket after the other stops after so many
# characters in all: nested brackets would make it quadratic.
_MOST_CHARACTERS = 20_000
_MOST_PARSED_CHARACTERS = 1_000_000


def tagged_answer(text: str) -> str | None:
    """What stands between the last `<answer>` that is closed and its `</answer>`, or None."""
    end = text.rfind(CLOSING)
    start = text.rfind(OPENING, 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len(OPENING) : end]


def answered_json(text: str) -> Any:
    """The JSON value that `text` answers with.

    That is what the last pair of answer tags holds, else the text as a whole, else the last object or array in it.

    Raises:
        JsonRefused: there is none.
    """
    tagged = tagged_answer(text)
    answer = _unfenced(text if tagged is None else tagged)
    try:
        return parse_json(answer, most_characters=_MOST_CHARACTERS)
    except JsonRefused:
        return parse_json(last_json_text(answer))


def last_json_text(text: str) -> str:
    """The last object or array of `text`, as it stands there.

    Raises:
        JsonRefused: there is none.
    """
    text = text[-_MOST_CHARACTERS:]
    end = max(text.rfind("}"), text.rfind("]"))
    opening = "{" if end >= 0 and text[end] == "}" else "["
    start, parsed = end, 0
    while parsed <= _MOST_PARSED_CHARACTERS:
        start = text.rfind(opening, 0, max(start, 0))
        if start < 0:
            break
        candidate = text[start : end + 1]
        parsed += len(candidate)
        try:
            json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return candidate
    raise JsonRefused("the text holds no JSON object or array at its end")


def _unfenced(text: str) -> str:
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and len(text) > 6:
        first, _, rest = text.partition("\n")
        if rest and first[3:].strip().lower() in ("", "json"):
            return rest[:-3].strip()
    return text
