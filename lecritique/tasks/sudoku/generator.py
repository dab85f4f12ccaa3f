"""Puzzles with exactly one solution, fixed by (seed, row)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from lecritique.core.errors import ConfigurationError
from lecritique.core.seeds import derive_seed
from lecritique.tasks.sudoku.difficulty import wrong_guesses
from lecritique.tasks.sudoku.grids import Grid, grid_text
from lecritique.tasks.sudoku.solver import Board, digits_of, fill, replaceable

# Draws per row before the asked number of different puzzles is taken not to exist.
_MAX_DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """A puzzle, its only solution, and its difficulty.

    Difficulty, on 4x4: how many placed digits a solver that fills cells in row-major order, as an episode does, and
    tries digits in ascending order has to take back (the cell with fewest candidates first solves nearly all of
    them without a step back). On 9x9: `difficulty.wrong_guesses`.
    """

    grid: Grid
    solution: Grid
    difficulty: int

    @property
    def empty(self) -> int:
        """Number of empty cells."""
        return self.grid.count(0)


class PuzzleSource:
    """The puzzles of one seed, made when they are first asked for.

    Size 4: rows are made in order and a puzzle that was there before is drawn again, so a longer source begins
    with the rows of a shorter one. Size 9: each row on its own; with 6.7e21 solved grids two equal puzzles
    are not to be expected.
    """

    def __init__(
        self,
        *,
        size: int,
        min_empty: int,
        max_empty: int,
        seed: int,
        min_difficulty: int = 0,
        max_difficulty: int = 1_000_000,
    ) -> None:
        self._size = size
        self._empty_range = (min_empty, max_empty)
        self._difficulty_range = (min_difficulty, max_difficulty)
        self._seed = seed
        self._made: dict[int, Puzzle] = {}
        self._taken: set[Grid] = set()

    def puzzle(self, row: int) -> Puzzle:
        """The puzzle of one row.

        Raises:
            ConfigurationError: there are fewer different puzzles than rows.
        """
        if row not in self._made:
            for missing in range(len(self._made), row + 1) if self._size == 4 else (row,):
                self._made[missing] = self._new(missing)
        return self._made[row]

    def _new(self, row: int) -> Puzzle:
        fewest, most = self._empty_range
        for draw in range(_MAX_DRAWS):
            seed = derive_seed(self._seed, "tasks.sudoku", row=row, attempt=draw)
            puzzle = drawn_puzzle(self._size, most_empty=most, fewest_empty=fewest, seed=seed)
            if puzzle.empty >= fewest and self._is_wanted(puzzle):
                if self._size == 4:
                    self._taken.add(puzzle.grid)
                return puzzle
        easiest, hardest = self._difficulty_range
        raise ConfigurationError(
            f"task.rows: no new puzzle for row {row} in {_MAX_DRAWS} draws, expected fewer rows or a wider range than "
            f"task.min_empty = {fewest} to task.max_empty = {most}, task.min_difficulty = {easiest} to "
            f"task.max_difficulty = {hardest}"
        )

    def _is_wanted(self, puzzle: Puzzle) -> bool:
        easiest, hardest = self._difficulty_range
        return easiest <= puzzle.difficulty <= hardest and puzzle.grid not in self._taken


def drawn_puzzle(size: int, *, fewest_empty: int, most_empty: int, seed: int) -> Puzzle:
    """One puzzle: a random solved grid from which cells are removed in random order while its solution stays unique.

    The wanted number of empty cells is uniform on [fewest_empty, most_empty]; removal can stall below it.
    """
    random = Random(seed)
    board = Board((0,) * (size * size), size)
    fill(board, lambda mask: _shuffled(digits_of(mask), random))
    solution = tuple(board.values)
    wanted = fewest_empty + int(random.random() * (most_empty - fewest_empty + 1))
    removed = 0
    for cell in _shuffled(list(range(size * size)), random):
        if removed == wanted:
            break
        board.clear(cell)
        if replaceable(board, cell, solution[cell]):
            board.place(cell, solution[cell])
        else:
            removed += 1
    grid = tuple(board.values)
    solved, taken_back = fill(board, choose=Board.first if size == 4 else Board.tightest)
    if not solved or tuple(board.values) != solution:
        raise AssertionError(f"puzzle {grid_text(grid)} of seed {seed} lost its unique solution")
    difficulty = taken_back if size == 4 else wrong_guesses(grid, size)
    return Puzzle(grid=grid, solution=solution, difficulty=difficulty)


def _shuffled(items: list[int], random: Random) -> list[int]:
    # Python guarantees the sequence of random() for a seed across versions, but not that of shuffle().
    for last in range(len(items) - 1, 0, -1):
        other = int(random.random() * (last + 1))
        items[last], items[other] = items[other], items[last]
    return items
