"""The wordings of privileged contexts, all in one file (method sheet, section 4)."""

from __future__ import annotations

from typing import Literal

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.task import Reference

ReferenceContent = Literal["answer", "solution", "both"]
ContextPlacement = Literal["system_prefix", "user_suffix"]


def answer_sentence(answer: str) -> str:
    """The final answer as a short sentence."""
    return f"Answer: {answer}."


def reference_text(reference: Reference, content: ReferenceContent) -> str:
    """The reference as a critic reads it: its answer, its worked solution, or the answer and then the solution.

    Raises:
        DataError: when a solution is asked for and the reference has none.
        ConfigurationError: for an unknown `content`.
    """
    if content == "answer":
        return answer_sentence(reference.answer)
    if content not in ("solution", "both"):
        raise ConfigurationError(f"reference content {content!r} is none of 'answer', 'solution', 'both'")
    if reference.solution is None or not reference.solution.strip():
        raise DataError(f"reference content {content!r} needs a worked solution; this reference has only an answer")
    if content == "solution":
        return reference.solution
    return f"{answer_sentence(reference.answer)}\n\n{reference.solution}"


def placed_text(text: str, placement: ContextPlacement) -> str:
    """`text` as it is inserted: behind a user message it follows after one space."""
    return f" {text}" if placement == "user_suffix" else text
