"""A backtracking solver on bit masks: bit d of a mask stands for digit d."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lecritique.tasks.sudoku.grids import Grid, geometry


def digits_of(mask: int) -> list[int]:
    """The digits whose bits are set, ascending."""
    digits = []
    while mask:
        low = mask & -mask
        digits.append(low.bit_length() - 1)
        mask ^= low
    return digits


class Board:
    """A grid that is being filled, with the digits used so far in each row, column and box."""

    def __init__(self, grid: Grid, size: int) -> None:
        """Start from `grid`; raises ValueError when its clues break a rule."""
        self.size = size
        self.values = [0] * (size * size)
        self._geometry = geometry(size)
        self._all = (1 << (size + 1)) - 2
        self._rows = [0] * size
        self._columns = [0] * size
        self._boxes = [0] * size
        for cell, digit in enumerate(grid):
            if digit and not self.legal(cell, digit):
                raise ValueError(f"digit {digit} at {self._geometry.verbose_names[cell]} breaks a rule of the grid")
            if digit:
                self.place(cell, digit)

    def copy(self) -> Board:
        """An independent board with the same content."""
        twin = object.__new__(Board)
        twin.__dict__.update(self.__dict__)
        twin.values = self.values.copy()
        twin._rows, twin._columns, twin._boxes = self._rows.copy(), self._columns.copy(), self._boxes.copy()
        return twin

    def candidates(self, cell: int) -> int:
        """Mask of the digits that row, column and box of `cell` do not hold yet."""
        shape = self._geometry
        used = self._rows[shape.rows[cell]] | self._columns[shape.columns[cell]] | self._boxes[shape.boxes[cell]]
        return self._all & ~used

    def legal(self, cell: int, digit: int) -> bool:
        """Whether `digit` may be placed: the cell is empty and no rule is broken."""
        return self.values[cell] == 0 and bool(self.candidates(cell) >> digit & 1)

    def place(self, cell: int, digit: int) -> None:
        """Write a legal digit."""
        self.values[cell] = digit
        self._toggle(cell, digit)

    def clear(self, cell: int) -> None:
        """Empty a filled cell."""
        self._toggle(cell, self.values[cell])
        self.values[cell] = 0

    def tightest(self) -> tuple[int, int] | None:
        """The empty cell with the fewest candidates (the first of equals) and their mask; None when full."""
        best, best_mask, fewest = -1, 0, self.size + 1
        shape, rows, columns, boxes, everything = self._geometry, self._rows, self._columns, self._boxes, self._all
        row_of, column_of, box_of = shape.rows, shape.columns, shape.boxes
        for cell, digit in enumerate(self.values):
            if digit:
                continue
            mask = everything & ~(rows[row_of[cell]] | columns[column_of[cell]] | boxes[box_of[cell]])
            count = mask.bit_count()
            if count < fewest:
                best, best_mask, fewest = cell, mask, count
                if count <= 1:
                    break
        return None if best < 0 else (best, best_mask)

    def first(self) -> tuple[int, int] | None:
        """The first empty cell in row-major order and the mask of its candidates; None when full."""
        if 0 not in self.values:
            return None
        cell = self.values.index(0)
        return cell, self.candidates(cell)

    def _toggle(self, cell: int, digit: int) -> None:
        bit, shape = 1 << digit, self._geometry
        self._rows[shape.rows[cell]] ^= bit
        self._columns[shape.columns[cell]] ^= bit
        self._boxes[shape.boxes[cell]] ^= bit


def fill(
    board: Board,
    order: Callable[[int], Iterable[int]] = digits_of,
    choose: Callable[[Board], tuple[int, int] | None] = Board.tightest,
) -> tuple[bool, int]:
    """Fill `board` in place: whether it worked, and how many placed digits had to be taken back.

    `choose` picks the next cell, `order` says in which order the digits of its mask are tried.
    A board without a solution is left as it was.
    """
    spot = choose(board)
    if spot is None:
        return True, 0
    cell, mask = spot
    backtracks = 0
    for digit in order(mask):
        board.place(cell, digit)
        solved, below = fill(board, order, choose)
        backtracks += below
        if solved:
            return True, backtracks
        board.clear(cell)
        backtracks += 1
    return False, backtracks


def replaceable(board: Board, cell: int, digit: int) -> bool:
    """Whether the empty `cell` can hold another digit than `digit` in some complete grid.

    When `board` with `digit` in place has one solution, it keeps having one with `cell` empty exactly if this is False.
    """
    for other in digits_of(board.candidates(cell) & ~(1 << digit)):
        trial = board.copy()
        trial.place(cell, other)
        if fill(trial)[0]:
            return True
    return False
