"""Hard puzzles: the measure of difficulty against a solver of one's own, thresholds, and how long they take."""

import itertools
import time

import pytest

from lecritique.core.errors import ConfigurationError
from lecritique.tasks.registry import load_environment
from lecritique.tasks.sudoku.difficulty import wrong_guesses
from lecritique.tasks.sudoku.generator import PuzzleSource
from lecritique.tasks.sudoku.grids import parsed_grid

# Published by Arto Inkala in 2010 as a puzzle that needs long chains of reasoning.
INKALA = "..53.....8......2..7..1.5..4....53...1..7...6..32...8..6.5....9..4....3......97.."
HARD = {"size": 9, "min_empty": 50, "max_empty": 56, "min_difficulty": 1}


def units():
    """Rows, columns and boxes as sets of (row, column)."""
    for index in range(9):
        yield {(index, other) for other in range(9)}
        yield {(other, index) for other in range(9)}
        yield {(index // 3 * 3 + i, index % 3 * 3 + j) for i, j in itertools.product(range(3), repeat=2)}


def filled_by_singles(puzzle):
    """The grid as far as naked and hidden singles fill it, by elimination on sets."""
    value = {divmod(cell, 9): int(symbol) for cell, symbol in enumerate(puzzle) if symbol != "."}
    progress = True
    while progress:
        progress = False
        possible = {}
        for cell in itertools.product(range(9), repeat=2):
            seen = {value[peer] for unit in units() if cell in unit for peer in unit if peer in value}
            if cell not in value:
                possible[cell] = set(range(1, 10)) - seen
        for cell, digits in possible.items():
            hidden = [
                digit
                for digit in digits
                if any(
                    cell in unit and all(digit not in possible.get(peer, ()) for peer in unit - {cell})
                    for unit in units()
                )
            ]
            for digit in digits if len(digits) == 1 else hidden:
                value[cell] = digit
                progress = True
            if progress:
                break
    return "".join(str(value.get(divmod(cell, 9), ".")) for cell in range(81))


def test_difficulty_0_means_that_singles_are_enough_and_more_that_they_are_not():
    easy = load_environment("sudoku", {**HARD, "min_difficulty": 0, "max_difficulty": 0, "rows": 3}, seed=1)
    hard = load_environment("sudoku", {**HARD, "rows": 3}, seed=1)
    for row in range(3):
        metadata = easy.task(row).metadata
        assert metadata["difficulty"] == 0
        assert filled_by_singles(metadata["puzzle"]) == metadata["solution"]
        metadata = hard.task(row).metadata
        assert metadata["difficulty"] >= 1
        assert "." in filled_by_singles(metadata["puzzle"])


def test_a_puzzle_known_to_be_hard_takes_many_wrong_guesses():
    assert wrong_guesses(parsed_grid(INKALA, 9), 9) >= 10
    solved = load_environment("sudoku", {"size": 9, "rows": 1}).task(0).metadata["solution"]
    assert wrong_guesses(parsed_grid("." + solved[1:], 9), 9) == 0


def test_a_puzzle_without_a_solution_or_with_contradicting_clues_has_no_difficulty():
    with pytest.raises(ValueError, match="breaks a rule"):
        wrong_guesses(parsed_grid("11" + "." * 79, 9), 9)
    # r1c9 can only be 9, which stands in its column.
    with pytest.raises(ValueError, match="without a solution"):
        wrong_guesses(parsed_grid("12345678." + "." * 8 + "9" + "." * 63, 9), 9)


def test_rows_are_made_one_by_one_and_in_any_order():
    long, short = (load_environment("sudoku", {**HARD, "rows": rows}, seed=3) for rows in (5000, 4))
    assert [short.task(row).task_id for row in (3, 0)] == [long.task(row).task_id for row in (3, 0)]
    assert long.task(4999).metadata["difficulty"] >= 1


def test_five_thousand_hard_puzzles_are_a_matter_of_minutes():
    environment = load_environment("sudoku", {**HARD, "rows": 5000}, seed=4)
    began = time.process_time()
    for row in range(0, 5000, 500):
        environment.task(row)
    # 60 ms each were measured: 5 minutes for 5,000 rows. This limit is twice that.
    assert time.process_time() - began < 10 * 0.12


def test_small_puzzles_have_thresholds_too():
    environment = load_environment("sudoku", {"min_difficulty": 3, "max_difficulty": 9, "min_empty": 10, "rows": 50})
    assert {environment.task(row).metadata["difficulty"] for row in range(50)} <= set(range(3, 10))


def test_thresholds_that_nothing_meets_are_named(monkeypatch):
    monkeypatch.setattr("lecritique.tasks.sudoku.generator._MAX_DRAWS", 5)
    source = PuzzleSource(size=4, min_empty=4, max_empty=4, seed=0, min_difficulty=500)
    with pytest.raises(ConfigurationError, match=r"task.min_difficulty = 500 to task.max_difficulty = 1000000"):
        source.puzzle(0)
    with pytest.raises(ConfigurationError, match="min_difficulty = 5 is above max_difficulty = 2"):
        load_environment("sudoku", {"min_difficulty": 5, "max_difficulty": 2})
