"""The published data format: read as it is and as copies of it are, refused with the line where it is not."""

import json

import pytest

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.tasks.registry import load_environment
from lecritique.tasks.validate import validate_environment

QUIZ = (
    "A very special island is inhabited only by knights and knaves. You meet 2 inhabitants: Ella, and Zoey. Ella said "
    '"Zoey is a knave and Ella is a knight". Zoey noted, "Ella is a knave or Zoey is a knave". So who is who?'
)


def row(**changes):
    """A row of the fields of the published data, about two inhabitants: Ella lies, Zoey does not."""
    fields = {
        "quiz": QUIZ,
        "names": ["Ella", "Zoey"],
        "knight_knave": {"knight": "knight", "knave": "knave", "a_knight": "a knight", "a_knave": "a knave"},
        "solution": [False, True],
        "solution_text": "Ella is a knave, and Zoey is a knight.",
        "cot_head": "Let's think step by step.",
        "cot_repeat_steps": ["Ella cannot be a knight.", "Assume Zoey is a knight. No contradiction is found."],
        "cot_foot": "This leads to a feasible solution.",
        "statements": "(('and', ('lying', 1), ('telling-truth', 0)), ('or', ('lying', 0), ('lying', 1)))",
        "index": 7,
    } | changes
    return {name: value for name, value in fields.items() if value is not ...}


# Ella k, Zoey n: Ella's "Zoey n and Ella k" is true, Zoey's "Ella n or Zoey n" is true although Zoey lies: no.
# Ella n, Zoey k: Ella's is false, Zoey's is true: yes. Ella n, Zoey n: Zoey's is true: no. Both k: Ella's is false: no.


def environment(tmp_path, *rows, **options):
    path = tmp_path / "people2.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n\n", encoding="utf-8")
    return load_environment("knights_knaves", {"path": str(path), **options})


def test_a_row_becomes_a_task_with_its_own_worked_solution(tmp_path):
    made = environment(tmp_path, row())
    task = made.task(0)
    assert len(made) == 1
    assert task.messages[0].content.startswith(QUIZ)
    assert "inside <answer> and </answer>" in task.messages[0].content
    assert task.reference.answer == "Ella is a knave, Zoey is a knight"
    assert task.reference.solution.split("\n") == [
        "Let's think step by step.",
        "Ella cannot be a knight.",
        "Assume Zoey is a knight. No contradiction is found.",
        "This leads to a feasible solution.",
        "So Ella is a knave, Zoey is a knight.",
    ]
    assert validate_environment(made).ok


@pytest.mark.parametrize(
    "changes",
    [
        {"names": "['Ella', 'Zoey']", "solution": "[False, True]"},
        {"solution": "[false, true]", "knight_knave": "{'knight': 'knight', 'knave': 'knave'}"},
        {"statements": [["and", ["lying", "1"], ["telling-truth", "0"]], ["or", ["lying", 0], ["lying", 1]]]},
        {"statements": '[["and", ["lying", 1], ["telling-truth", 0]], ["or", ["lying", 0], ["lying", 1]]]'},
        {"knight_knave": ..., "statements": ..., "cot_head": ..., "cot_foot": None, "solution_text": ..., "index": ...},
        {"cot_repeat_steps": "Ella cannot be a knight."},
    ],
)
def test_copies_that_went_through_other_writers_are_read_too(tmp_path, changes):
    task = environment(tmp_path, row(**changes)).task(0)
    assert task.reference.answer == "Ella is a knave, Zoey is a knight"
    assert "Ella cannot be a knight." in task.reference.solution


def test_the_worked_solution_is_derived_where_the_row_has_none(tmp_path):
    bare = {"cot_head": ..., "cot_repeat_steps": ..., "cot_foot": ...}
    derived = environment(tmp_path, row(**bare)).task(0).reference.solution
    assert derived.endswith("So Ella is a knave, Zoey is a knight.")
    assert "Suppose that" in derived
    assert environment(tmp_path, row(**bare, statements=...)).task(0).reference.solution is None


def test_words_for_the_roles_are_the_row_s_own(tmp_path):
    flipped = row(knight_knave={"knight": "knave", "knave": "knight"}, quiz="Only knaves and knights live here.")
    made = environment(tmp_path, flipped)
    task = made.task(0)
    # `solution` says who tells the truth, whatever that is called.
    assert task.reference.answer == "Ella is a knight, Zoey is a knave"
    assert made.start(task).reply("<answer>Zoey is a knave, Ella is a knight</answer>").reward == 1.0
    assert made.start(task).reply("<answer>Zoey is a knight, Ella is a knave</answer>").reward == 0.0


def test_rows_are_cut_and_repeated_puzzles_left_out(tmp_path):
    rows = [row(quiz=f"{QUIZ} {number // 2}") for number in range(6)]
    assert len(environment(tmp_path, *rows)) == 3
    assert len(environment(tmp_path, *rows, rows=2)) == 2


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "line 2 .*no Knights and Knaves puzzle"),
        ("[1]", "line 2 .*got a JSON list, expected an object"),
        ("[" * 100_000, "line 2"),
        (row(quiz=" "), "got quiz = ' '"),
        (row(quiz=...), "got quiz = 'None'"),
        (row(names=["Ella"]), "expected 2 to 12 different names"),
        (row(names=["Ella", "ELLA"]), "different names"),
        (row(names=["Ella", 3]), "different names"),
        (row(names="__import__('os').abort()"), "field names is the text"),
        (row(names=["Dr. Who", "Zoey"]), "without punctuation"),
        (row(solution=[True]), "true or false for each of 2 names"),
        (row(solution=[1, 0]), "true or false"),
        (row(solution="(" * 5000), "field solution is the text"),
        (row(solution="9" * 60_000), "has 60000 characters"),
        (row(knight_knave={"knight": "a", "knave": "A"}), "words for knight and knave"),
        (row(knight_knave=[1]), "words for knight and knave"),
        (row(statements="(('lying', 1),)"), "expected one for each of 2 names"),
        (row(statements=[["lying", 2], ["lying", 0]]), "'lying' with one number from 0 to 1"),
        (row(statements=[["xor", ["lying", 1]], ["lying", 0]]), "statement kind 'xor'"),
        (row(statements=[["and", ["lying", 1]], ["lying", 0]]), "'and' with 1 parts"),
        (row(statements=[[], ["lying", 0]]), "expected a statement such as"),
        (row(statements=[["lying", 1], ["lying", 0]]), "have 2 solutions, expected exactly one"),
        (row(solution=[True, False]), r"have 1 solutions, expected exactly one, which is \[True, False\]"),
        (row(cot_repeat_steps=[3]), "expected a list of sentences"),
        (row(cot_head=3), "got cot_head = '3'"),
    ],
)
def test_a_line_that_is_no_puzzle_is_refused_by_its_number(tmp_path, bad, words):
    with pytest.raises(DataError, match=words) as caught:
        environment(tmp_path, row(), bad)
    assert "line 2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no puzzle"):
        environment(tmp_path, "", " ")
    with pytest.raises(ConfigurationError, match=r"task\.path"):
        load_environment("knights_knaves", {"path": str(tmp_path)})
