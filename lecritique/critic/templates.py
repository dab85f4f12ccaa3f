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


SIBLINGS_HEADING = "Other attempts at the same task, best first, each with what it earned:"


def sibling_block(text: str, episode_return: float, *, cut: bool) -> str:
    """One other response between delimiters; `text` holds none any more."""
    mark = ' cut="end"' if cut else ""
    return f'<sibling return="{episode_return:.6g}"{mark}>{text}</sibling>'


def teacher_message(problem: str, reference: Reference, content: ReferenceContent) -> str:
    """The one user message of a teacher: the problem, then what it alone may know (VP, in our words).

    With a worked solution: a reference block, the solution followed by the final answer. With the answer alone: a
    verified target, and the request to keep what is valid in the reasoning so far.

    Raises:
        DataError: when a solution is asked for and the reference has none.
        ConfigurationError: for an unknown `content`.
    """
    if content == "answer":
        return (
            f"{problem}\n\nThe verified final answer is: {reference.answer}\n"
            "Take it as the target. Keep every step of the reasoning so far that is valid, and go on from there."
        )
    reference_text(reference, content)  # refuses what cannot be told
    closing = f"\n\nFinal answer: {reference.answer}" if content == "both" else ""
    return (
        f"{problem}\n\nReference solution:\n{reference.solution}{closing}\n(End of the reference solution.)\n"
        "Solve the problem in your own words."
    )


def placed_text(text: str, placement: ContextPlacement) -> str:
    """`text` as it is inserted: behind a user message it follows after one space."""
    return f" {text}" if placement == "user_suffix" else text
