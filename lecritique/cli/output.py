"""What the command line prints with."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console
from rich.table import Table

# What is printed holds paths and texts of other people: no brackets or colons of theirs are markup.
console = Console(highlight=False, markup=False, emoji=False)


def fail(message: str, code: int) -> NoReturn:
    """Print one sentence, on one line, to standard error and exit."""
    print("lecritique:", *message.split(), file=sys.stderr)
    raise SystemExit(code)


def print_table(table: Table) -> None:
    """Print a table; where it is wider than the terminal, its rows one after another, so that no cell is ever cut."""
    whole = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    if whole <= console.width:
        console.print(table)
        return
    for line in _records(table, console.width):
        console.print(line, soft_wrap=True)


def _records(table: Table, width: int) -> Iterator[str]:
    """Each row as its first cell, followed by `heading value` pairs that stay together where a line ends."""
    if table.title:
        yield from textwrap.wrap(str(table.title), width)
    headings = [str(column.header) for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = (str(cell).strip() for cell in cells)
        pairs = [f"{name} {cell}" for name, cell in zip(headings[1:], others, strict=True) if cell]
        words = [pair.replace(" ", "\u00a0") for pair in pairs]  # textwrap breaks lines at plain spaces alone
        text = "  ".join([f"{headings[0]} {first}", *words])
        lines = textwrap.wrap(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        yield from (line.replace("\u00a0", " ") for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; a dash when it is undefined."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
