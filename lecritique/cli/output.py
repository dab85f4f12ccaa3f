"""What the command line prints with."""

from __future__ import annotations

import math
import sys
from typing import NoReturn

from rich.console import Console

# What is printed holds paths and texts of other people: no brackets or colons of theirs are markup.
console = Console(highlight=False, markup=False, emoji=False)


def fail(message: str, code: int) -> NoReturn:
    """Print one sentence, on one line, to standard error and exit."""
    print("lecritique:", *message.split(), file=sys.stderr)
    raise SystemExit(code)


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; a dash when it is undefined."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
