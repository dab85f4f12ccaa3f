"""Answers between tags, so that reasoning may stand before them."""

from __future__ import annotations

OPEN, CLOSE = "<answer>", "</answer>"


def inside_tags(text: str) -> str:
    """What stands inside the last complete pair of answer tags; empty without one."""
    end = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, end) if end >= 0 else -1
    return text[start + len(OPEN) : end] if start >= 0 else ""
