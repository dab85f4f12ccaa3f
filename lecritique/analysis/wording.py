"""Names and numbers as text for people."""

from __future__ import annotations

import math

MISSING = "\u2013"
MINUS = "\u2212"
TIMES = "\u00d7"


def number(value: float | None, digits: int = 3) -> str:
    """A number with a true minus, a dash where there is none."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}".replace("-", MINUS)
    return f"{value:,.{digits}f}".replace("-", MINUS)


def signed(value: float) -> str:
    """Three decimals with a sign, a true minus."""
    return f"{value:+.3f}".replace("-", MINUS)


def percent(value: float) -> str:
    """A share in whole percent."""
    return f"{100 * value:.0f}%".replace("-", MINUS)


def counted(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortened(name: str, length: int) -> str:
    """`name` in at most `length` printable characters, its middle left out."""
    name = "".join(c if c.isprintable() else "?" for c in name)
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}…{name[len(name) - (length - 1 - head) :]}"


def clean(text: str) -> str:
    """`text` with what UTF-8 cannot encode replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
