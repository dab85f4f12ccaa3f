"""How hard a 9x9 puzzle is: how often a solver that fills all singles first has to take a guess back."""

from __future__ import annotations

from functools import cache

from lecritique.tasks.sudoku.grids import Grid, geometry
from lecritique.tasks.sudoku.solver import Board, digits_of


def wrong_guesses(grid: Grid, size: int) -> int:
    """Guesses that led nowhere; 0 when singles alone solve the puzzle.

    The solver fills naked singles (cells with one candidate) and hidden singles (digits with one place left in a row,
    column or box) until none is left, then guesses the cell with the fewest candidates, digits in ascending order.

    Raises:
        ValueError: the clues break a rule, or the puzzle has no solution.
    """
    board = Board(grid, size)
    solved, wrong = _searched(board)
    if not solved:
        raise ValueError("a puzzle without a solution has no difficulty")
    return wrong


def _searched(board: Board) -> tuple[bool, int]:
    """Whether the board was filled in place, and how many guesses were wrong; unfilled boards are left changed."""
    if not _filled_singles(board):
        return False, 0
    spot = board.tightest()
    if spot is None:
        return True, 0
    cell, mask = spot
    wrong = 0
    for digit in digits_of(mask):
        trial = board.copy()
        trial.place(cell, digit)
        solved, below = _searched(trial)
        wrong += below
        if solved:
            return True, wrong
        wrong += 1
    return False, wrong


def _filled_singles(board: Board) -> bool:
    """Place singles until none is left; False when a cell or a digit has no place any more."""
    placed = True
    while placed:
        placed = False
        for unit in _units(board.size):
            found = _singles(board, unit)
            if found is None:
                return False
            for cell, digit in found:
                if not board.legal(cell, digit):
                    return False
                board.place(cell, digit)
                placed = True
    return True


def _singles(board: Board, unit: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Naked and hidden singles of one row, column or box as (cell, digit); None when something has no place."""
    candidates = [(cell, board.candidates(cell)) for cell in unit if board.values[cell] == 0]
    once = twice = 0
    for _, mask in candidates:
        twice |= once & mask
        once |= mask
    # As many digits are missing as cells are empty: with fewer candidates than that, some digit has no place.
    if once.bit_count() < len(candidates) or any(mask == 0 for _, mask in candidates):
        return None
    found = []
    for cell, mask in candidates:
        only = mask if mask.bit_count() == 1 else mask & ~twice
        if only.bit_count() > 1:
            return None
        if only:
            found.append((cell, only.bit_length() - 1))
    return found


@cache
def _units(size: int) -> tuple[tuple[int, ...], ...]:
    """The cells of every row, column and box."""
    shape = geometry(size)
    return tuple(
        tuple(cell for cell in range(shape.cells) if of_cell[cell] == index)
        for of_cell in (shape.rows, shape.columns, shape.boxes)
        for index in range(size)
    )
