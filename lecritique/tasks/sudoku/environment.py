"""The Sudoku environment.

Terse, single turn. User: `1..4..2.4...2..1` (row-major, `.` empty). Policy: the solved grid, `1324...`.
Terse, multi turn.  User: `a1b.c.d4...p1 b`, that is every cell as name and symbol, a space, the asked cell.
                    Policy: one digit, `3`. User: the next asked cell, `c`. And so on in row-major order.
Verbose: the same game in sentences, cells named `r1c2`, answers inside <answer> tags or at the end of a turn; the
                    policy may reason before it answers, in every turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lecritique.core.task import Message, Reference, Reply, Task
from lecritique.tasks.answer_tags import CLOSE, OPEN, inside_tags
from lecritique.tasks.protocol import Episode, SingleTurn
from lecritique.tasks.sudoku.generator import Puzzle, PuzzleSource
from lecritique.tasks.sudoku.grids import Grid, geometry, grid_lines, grid_pairs, grid_text, parsed_grid
from lecritique.tasks.sudoku.options import SudokuOptions
from lecritique.tasks.sudoku.solver import Board

# A last number that stands further from the end than this many characters is no answer.
_TAIL = 400


class SudokuEnvironment:
    """Sudoku puzzles with one solution each; reward 1 for the solved grid, else 0."""

    Options = SudokuOptions
    name = "sudoku"
    reward_range = (0.0, 1.0)

    def __init__(self, options: SudokuOptions) -> None:
        self.options = options.resolved(0)
        fewest, most = self.options.empty_range
        self._source = PuzzleSource(
            size=self.options.size,
            min_empty=fewest,
            max_empty=most,
            seed=self.options.seed or 0,
            min_difficulty=self.options.min_difficulty,
            max_difficulty=self.options.max_difficulty,
        )

    def __len__(self) -> int:
        return self.options.rows or 0

    def task(self, row: int) -> Task:
        """The puzzle of one row, with its solution as the reference and its difficulty in the metadata."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of task 'sudoku' does not exist, expected 0 to {len(self) - 1}")
        puzzle = self._source.puzzle(row)
        return Task(
            task_id=f"sudoku:{grid_text(puzzle.grid)}",
            messages=(Message(role="user", content=self._question(puzzle)),),
            reference=Reference(answer=self._reference(puzzle)),
            env=f"The solved grid:{' ' if self.options.style == 'terse' else chr(10)}{self._reference(puzzle)}",
            metadata={
                "puzzle": grid_text(puzzle.grid),
                "solution": grid_text(puzzle.solution),
                "empty": puzzle.empty,
                "difficulty": puzzle.difficulty,
            },
        )

    def start(self, task: Task) -> Episode:
        """Open an episode."""
        if self.options.form == "multi_turn":
            return MultiTurnSudoku(task, self.options)
        solution = task.metadata["solution"]
        return SingleTurn(lambda text: float(self._written(text) == solution))

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """The solved grid, or the digit of the cell that the last message asks for."""
        solution = task.metadata["solution"]
        if self.options.form == "single_turn":
            return solution if self.options.style == "terse" else f"{OPEN}\n{solution}\n{CLOSE}"
        names = cell_names(self.options)
        return written_digit(solution[names.index(messages[-1].content.split()[-1])], self.options)

    def holds_answer(self, task: Task, text: str) -> bool:
        """Whether `text` has a full grid, or in several turns a digit, right or wrong."""
        if self.options.form == "multi_turn":
            return read_digit(text, self.options) is not None
        written, size = self._written(text), self.options.size
        return len(written) == size * size and set(written) <= set("123456789"[:size])

    def _question(self, puzzle: Puzzle) -> str:
        terse, size = self.options.style == "terse", self.options.size
        if self.options.form == "single_turn":
            return grid_text(puzzle.grid) if terse else _verbose_single(puzzle.grid, size)
        first = cell_names(self.options)[puzzle.grid.index(0)]
        if terse:
            return f"{grid_pairs(puzzle.grid, size)} {first}"
        return f"{_verbose_rules(puzzle.grid, size)}{_verbose_turns(self.options)}\n{asked(first, self.options)}"

    def _reference(self, puzzle: Puzzle) -> str:
        if self.options.style == "verbose":
            return grid_lines(puzzle.solution, self.options.size)
        if self.options.form == "multi_turn":
            return grid_pairs(puzzle.solution, self.options.size)
        return grid_text(puzzle.solution)

    def _written(self, text: str) -> str:
        if self.options.style == "terse":
            return text.strip()
        return "".join(inside_tags(text).split())


class MultiTurnSudoku:
    """An episode that asks for one empty cell after the other.

    A digit that breaks no rule of the current board is kept even when it contradicts the solution; the episode
    then runs on, to a cell without legal digits or to a full grid that is not the solution.
    """

    def __init__(self, task: Task, options: SudokuOptions) -> None:
        self._options = options
        self._names = cell_names(options)
        self._solution = parsed_grid(task.metadata["solution"], options.size)
        self._board = Board(parsed_grid(task.metadata["puzzle"], options.size), options.size)
        self._waiting = [cell for cell, digit in enumerate(self._board.values) if digit == 0]
        self._retries_left = options.max_retries or 0

    def reply(self, text: str) -> Reply:
        """Take one digit for the asked cell."""
        if not self._waiting:
            raise ValueError("the episode is over, expected no further turn")
        cell = self._waiting[0]
        digit = read_digit(text, self._options)
        if digit is None or not self._board.legal(cell, digit):
            return self._invalid(cell)
        self._board.place(cell, digit)
        self._waiting.pop(0)
        if not self._waiting:
            return Reply(reward=float(tuple(self._board.values) == self._solution))
        return self._ask(self._waiting[0], "")

    def _invalid(self, cell: int) -> Reply:
        if self._retries_left == 0:
            self._waiting.clear()
            return Reply(reward=0.0)
        self._retries_left -= 1
        return self._ask(cell, "That is not a digit that the rules allow in this cell.\n")

    def _ask(self, cell: int, remark: str) -> Reply:
        question = asked(self._names[cell], self._options)
        if self._options.style == "verbose":
            question = remark + question
        return Reply(messages=(Message(role="user", content=question),))


def cell_names(options: SudokuOptions) -> tuple[str, ...]:
    """The names of the cells in the style of the options, row-major."""
    shape = geometry(options.size)
    return shape.terse_names if options.style == "terse" else shape.verbose_names


def asked(name: str, options: SudokuOptions) -> str:
    """The question for one cell; its last word is the cell's name."""
    return name if options.style == "terse" else f"Next cell: {name}"


def written_digit(digit: str, options: SudokuOptions) -> str:
    """A digit as a policy should answer it."""
    return f"{OPEN}{digit}{CLOSE}" if options.answer_from == "tags" else digit


def read_digit(text: str, options: SudokuOptions) -> int | None:
    """The digit that a policy answered; None when it is not exactly one ASCII digit of this grid size."""
    readers = {"tags": inside_tags, "last_number": last_number}
    inner = readers[options.answer_from](text) if options.answer_from in readers else text
    inner = inner.strip()
    # Membership in a fixed string, not isdigit(): other scripts have digits too.
    return int(inner) if len(inner) == 1 and inner in "123456789"[: options.size] else None


def last_number(text: str) -> str:
    """The last number that stands on its own, so neither in `r1c2` nor in `1.5`; empty without one."""
    numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)*(?![\w])", text[-_TAIL:])
    return numbers[-1] if numbers else ""


def _verbose_rules(grid: Grid, size: int) -> str:
    box = {4: 2, 9: 3}[size]
    return (
        f"Here is a {size}x{size} Sudoku. Every row, every column and every {box}x{box} box must hold each digit from "
        f"1 to {size} once. A dot is an empty cell.\n\n{grid_lines(grid, size)}\n\n"
    )


def _verbose_single(grid: Grid, size: int) -> str:
    return (
        f"{_verbose_rules(grid, size)}Solve it; you may reason before you answer. Write the completed grid inside "
        f"{OPEN} and {CLOSE}, one row of {size} digits a line."
    )


def _verbose_turns(options: SudokuOptions) -> str:
    place = f"inside {OPEN} and {CLOSE}" if options.answer_from == "tags" else "as the last number of your turn"
    return (
        "I will ask for one empty cell at a time, named by row and column: r1c2 is row 1, column 2. "
        f"Answer with its digit {place}; you may reason before that. An answer cannot be changed later.\n"
    )
