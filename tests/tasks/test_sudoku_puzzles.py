"""The puzzles themselves, judged by solvers that share nothing with the package's."""

import itertools
import time

import pytest

from lecritique.core.errors import ConfigurationError
from lecritique.tasks.registry import load_environment
from lecritique.tasks.sudoku.generator import PuzzleSource
from lecritique.tasks.sudoku.grids import grid_pairs, parsed_grid
from lecritique.tasks.sudoku.solver import Board, fill
from tests.tasks.two_processes import printed_under_two_hash_seeds


def all_4x4_grids():
    """Every solved 4x4 grid, by stacking row permutations: there are 288."""
    rows = list(itertools.permutations("1234"))
    grids = []
    for quad in itertools.product(rows, repeat=2):
        boxes = [set(quad[0][c : c + 2]) | set(quad[1][c : c + 2]) for c in (0, 2)]
        if all(len(box) == 4 for box in boxes):
            grids.append(quad)
    full = []
    for top, bottom in itertools.product(grids, repeat=2):
        columns = zip(*top, *bottom, strict=True)
        if all(len(set(column)) == 4 for column in columns):
            full.append("".join("".join(row) for row in top + bottom))
    return full


def solutions_9x9(text, most=2):
    """Up to `most` solutions, by plain sets of peers."""
    found = []
    cells = list(text)

    def allowed(cell):
        row, column = divmod(cell, 9)
        seen = set()
        for other in range(81):
            r, c = divmod(other, 9)
            if r == row or c == column or (r // 3 == row // 3 and c // 3 == column // 3):
                seen.add(cells[other])
        return [digit for digit in "123456789" if digit not in seen]

    def search():
        empty = [cell for cell in range(81) if cells[cell] == "."]
        if not empty:
            found.append("".join(cells))
            return
        cell = min(empty, key=lambda cell: len(allowed(cell)))
        for digit in allowed(cell):
            cells[cell] = digit
            search()
            if len(found) >= most:
                return
            cells[cell] = "."

    search()
    return found


def matches(puzzle, grid):
    return all(clue in (".", digit) for clue, digit in zip(puzzle, grid, strict=True))


def test_every_4x4_puzzle_has_exactly_its_solution_and_none_repeats():
    grids = all_4x4_grids()
    assert len(grids) == 288
    environment = load_environment("sudoku", {"rows": 400, "max_empty": 12}, seed=11)
    puzzles = [environment.task(row).metadata for row in range(400)]
    for metadata in puzzles:
        assert [grid for grid in grids if matches(metadata["puzzle"], grid)] == [metadata["solution"]]
        assert metadata["puzzle"].count(".") == metadata["empty"]
    assert len({metadata["puzzle"] for metadata in puzzles}) == 400
    assert {metadata["empty"] for metadata in puzzles} == set(range(4, 13))


def test_9x9_puzzles_have_exactly_one_solution():
    environment = load_environment("sudoku", {"size": 9, "rows": 3, "min_empty": 45, "max_empty": 52}, seed=2)
    for row in range(3):
        metadata = environment.task(row).metadata
        assert solutions_9x9(metadata["puzzle"]) == [metadata["solution"]]
        assert 45 <= metadata["empty"] <= 52


def test_difficulty_is_the_number_of_digits_taken_back_in_row_major_order():
    puzzle = "." * 4 + "3412" + "2143" + "4321"
    assert fill(Board(parsed_grid(puzzle, 4), 4), choose=Board.first) == (True, 0)
    # Ascending digits: 1 at the first cell is legal but leaves 2 nowhere to go; the solution starts with 2.
    puzzle = "..3." + "3..." + "...." + "14.."
    solved, taken_back = fill(Board(parsed_grid(puzzle, 4), 4), choose=Board.first)
    assert solved
    assert taken_back > 0
    environment = load_environment("sudoku", {"min_empty": 10, "rows": 200})
    assert len({environment.task(row).metadata["difficulty"] for row in range(200)}) > 3


def test_a_board_refuses_contradicting_clues_and_solves_what_it_can():
    with pytest.raises(ValueError, match="r1c2"):
        Board(parsed_grid("11" + "." * 14, 4), 4)
    hopeless = Board(parsed_grid("123." + "...4" + "." * 8, 4), 4)
    before = list(hopeless.values)
    assert fill(hopeless)[0] is False
    assert hopeless.values == before


def test_rows_do_not_depend_on_the_number_of_rows_or_on_the_order_of_asking():
    long = load_environment("sudoku", {"rows": 300}, seed=5)
    short = load_environment("sudoku", {"rows": 40}, seed=5)
    assert [short.task(row).task_id for row in reversed(range(40))] == [
        long.task(row).task_id for row in reversed(range(40))
    ]
    big = [load_environment("sudoku", {"size": 9, "rows": 10}, seed=5) for _ in range(2)]
    assert [big[0].task(row).task_id for row in (7, 2)] == list(reversed([big[1].task(row).task_id for row in (2, 7)]))
    other = load_environment("sudoku", {"rows": 40}, seed=6)
    assert {short.task(row).task_id for row in range(40)} != {other.task(row).task_id for row in range(40)}


def test_two_processes_with_different_hash_seeds_see_the_same_rows():
    script = (
        "from lecritique.tasks.registry import load_environment as load\n"
        "for options in ({'rows': 50}, {'size': 9, 'rows': 4}):\n"
        "    e = load('sudoku', options, seed=3)\n"
        "    print([(t.task_id, t.messages, t.reference) for t in map(e.task, range(len(e)))])\n"
    )
    outputs = printed_under_two_hash_seeds(script)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000


def test_the_puzzles_of_a_seed_are_pinned():
    environment = load_environment("sudoku", {}, seed=0)
    assert environment.task(0).metadata["puzzle"] == "342.123421..4..2"


def test_generation_is_fast_enough_to_wait_for():
    began = time.process_time()
    environment = load_environment("sudoku", {"rows": 2000})
    environment.task(1999)
    assert time.process_time() - began < 1.5


def test_more_rows_than_puzzles_is_an_error_that_names_the_keys(monkeypatch):
    monkeypatch.setattr("lecritique.tasks.sudoku.generator._MAX_DRAWS", 20)
    # 4x4 with one empty cell: 288 grids x 16 cells = 4608 puzzles.
    source = PuzzleSource(size=4, min_empty=1, max_empty=1, seed=0)
    with pytest.raises(ConfigurationError, match=r"task.rows.*task.min_empty = 1"):
        source.puzzle(4608)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_empty": 9, "max_empty": 3}, "min_empty = 9 is above max_empty = 3"),
        ({"max_empty": 13}, "at most 12"),
        ({"size": 9, "max_empty": 60}, "at most 56"),
        ({"on_invalid": "retry"}, "multi_turn"),
        ({"form": "multi_turn", "max_retries": 2}, "on_invalid"),
        ({"form": "multi_turn", "on_invalid": "retry", "max_retries": 0}, "max_retries = 0"),
        ({"size": 5}, "task.size.*got 5.*4 or 9"),
        ({"rows": 0}, "task.rows.*got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        load_environment("sudoku", options)


def test_one_given_bound_moves_the_other_default():
    assert load_environment("sudoku", {"min_empty": 11}).options.empty_range == (11, 11)
    assert load_environment("sudoku", {"max_empty": 2}).options.empty_range == (2, 2)
    assert load_environment("sudoku", {"max_empty": 6}).options.empty_range == (4, 6)


def test_letter_digit_pairs():
    assert grid_pairs(parsed_grid("1.34" + "." * 12, 4), 4).startswith("a1b.c3d4e.")
    assert grid_pairs((1, 0) + (0,) * 79, 9).startswith("aa1ab.ac.")
