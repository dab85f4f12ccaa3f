"""Grids and how they are written.

A grid is a tuple of size * size integers in row-major order, 0 for an empty cell. S is the side, C = S * S the cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase

Grid = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Row, column, box and names of every cell of a grid of one size.

    Terse names are `a`..`p` on 4x4 and two letters (row, column) `aa`..`ii` on 9x9, so that digits are always
    values; verbose names are `r1c1`, counted from 1.
    """

    size: int
    rows: Grid
    columns: Grid
    boxes: Grid
    terse_names: tuple[str, ...]
    verbose_names: tuple[str, ...]

    @property
    def cells(self) -> int:
        """Number of cells C."""
        return self.size * self.size


@cache
def geometry(size: int) -> Geometry:
    """The geometry of `size` 4 or 9."""
    box = {4: 2, 9: 3}[size]
    places = [divmod(cell, size) for cell in range(size * size)]
    if size == 4:
        terse = tuple(ascii_lowercase[: size * size])
    else:
        terse = tuple(ascii_lowercase[row] + ascii_lowercase[column] for row, column in places)
    return Geometry(
        size=size,
        rows=tuple(row for row, _ in places),
        columns=tuple(column for _, column in places),
        boxes=tuple(row // box * box + column // box for row, column in places),
        terse_names=terse,
        verbose_names=tuple(f"r{row + 1}c{column + 1}" for row, column in places),
    )


def grid_text(grid: Grid) -> str:
    """Row-major symbols, `.` for empty: `1..4..2.4...`."""
    return "".join(str(digit) if digit else "." for digit in grid)


def grid_lines(grid: Grid, size: int) -> str:
    """The symbols with one grid row a line, separated by spaces."""
    symbols = grid_text(grid)
    return "\n".join(" ".join(symbols[start : start + size]) for start in range(0, size * size, size))


def grid_pairs(grid: Grid, size: int) -> str:
    """Every cell as terse name and symbol: `a1b.c3...`."""
    return "".join(name + symbol for name, symbol in zip(geometry(size).terse_names, grid_text(grid), strict=True))


def parsed_grid(text: str, size: int) -> Grid:
    """The grid that `grid_text` wrote.

    Raises:
        ValueError: another length, or a symbol that is neither `.` nor a digit of this size.
    """
    symbols = "." + "123456789"[:size]
    if len(text) != size * size or any(symbol not in symbols for symbol in text):
        raise ValueError(f"got {text[:100]!r}, expected {size * size} symbols out of {symbols!r}")
    return tuple(symbols.index(symbol) for symbol in text)
