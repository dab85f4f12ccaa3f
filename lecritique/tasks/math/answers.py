"""From a response to its final answer, and answers as text. Pure string work on hostile input, linear in its length."""

from __future__ import annotations

import re

# `\boxed` and `\fbox` with their opening brace, an escaped character, or a brace.
_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_WRAPPING = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|\\(?:left|right|quad|qquad|displaystyle)(?![A-Za-z])|~|\s")
_SAME = {"\\dfrac": "\\frac", "\\tfrac": "\\frac", "\u2212": "-", "\\%": "%", "\\$": "", "$": ""}
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
# Words that math-verify would read as products of letters: n*o equals o*n.
_SHORT_WORDS = frozenset(("yes", "no", "true", "false", "odd", "even", "none", "dne"))


def last_box(text: str) -> str | None:
    r"""What stands inside the last `\boxed{...}` (or `\fbox{...}`) with balanced braces; None without one.

    Of nested boxes the inner one counts: it opens last.
    """
    opened: list[tuple[int, bool]] = []
    best: tuple[int, int] | None = None
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word == "{" or (len(word) > 2 and word.endswith("{")):
            opened.append((token.end(), word != "{"))
        elif word == "}" and opened:
            start, is_box = opened.pop()
            if is_box and (best is None or start > best[0]):
                best = (start, token.start())
    return None if best is None else text[best[0] : best[1]]


def bare(answer: str) -> str:
    r"""An answer without its box, the math delimiters around the whole of it, and outer space."""
    answer = answer.strip()
    box = last_box(answer)
    if box is not None:
        answer = box.strip()
    for opening, closing in _DELIMITERS:
        inner = answer[len(opening) : len(answer) - len(closing)].strip()
        enclosed = answer.startswith(opening) and answer.endswith(closing)
        if enclosed and inner and opening not in inner and closing not in inner:
            return inner
    return answer


def as_text(answer: str) -> str:
    r"""A normal form for comparing answers as strings: no delimiters, spacing, `\text` or final stop.

    Words lose their case; anything else keeps it. Blank answers, and those that are nothing but spacing, give "".
    """
    answer = bare(answer)
    for _ in range(3):  # \textbf{\text{...}} and the like
        answer = _WRAPPING.sub(r"\1", answer)
    for spelling, normal in _SAME.items():
        answer = answer.replace(spelling, normal)
    answer = _SPACING.sub("", answer).rstrip(".")
    choice = re.fullmatch(r"\(([A-Za-z])\)", answer)
    if choice:
        return choice.group(1)
    return answer.casefold() if is_word(answer) else answer


def is_word(answer: str) -> bool:
    """Whether an answer is a word such as "Yes" and no product of variables."""
    letters = re.fullmatch(r"[^\W\d_]+(?:[-'][^\W\d_]+)*", answer)
    return letters is not None and (len(answer) >= 4 or answer.casefold() in _SHORT_WORDS)


def same_text(gold: str, answer: str) -> bool:
    """Whether two answers are the same string in normal form; an empty one equals nothing."""
    normal = as_text(answer)
    return bool(normal) and normal == as_text(gold)
