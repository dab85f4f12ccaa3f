"""The folder of an evaluation: results come back, what does not belong is refused by name."""

from __future__ import annotations

import pytest

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.runs.evaluations import PROBLEMS, EvaluationFolder, ProblemResult

SETTINGS = {"policy": {"weights": "abc"}, "sets": {"a": {"k": 2, "temperature": 0.6}}}
RESULT = ProblemResult(
    set="a", row=3, task_id="t", split=None, scores=(1.0, None), statuses=("ok", "verifier"), answered=(True, None),
    tokens=(4, 0),
)  # fmt: skip
LINE = '{"set":"a","row":3,"task_id":"t","split":null,"scores":[1.0],"statuses":["ok"],"answered":[true],"tokens":[4]}'


def filled(path) -> None:
    folder = EvaluationFolder(path, SETTINGS)
    folder.append(RESULT)
    folder.close()


def test_results_come_back(tmp_path):
    filled(tmp_path / "e")
    folder = EvaluationFolder(tmp_path / "e", SETTINGS)
    assert folder.results == [RESULT] and folder.done("a") == {3} and folder.done("b") == frozenset()
    folder.close()


def test_a_line_that_a_kill_cut_off_is_done_again(tmp_path):
    filled(tmp_path / "e")
    with open(tmp_path / "e" / PROBLEMS, "a") as file:
        file.write(LINE[:30])
    folder = EvaluationFolder(tmp_path / "e", SETTINGS)
    assert folder.results == [RESULT]
    folder.append(RESULT)
    folder.close()
    again = EvaluationFolder(tmp_path / "e", SETTINGS)
    assert again.results == [RESULT, RESULT]
    again.close()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policy": {"weights": "def"}}, "'policy.weights' = 'abc', this call has 'def'"),
        ({"sets": {"a": {"k": 4, "temperature": 0.6}}}, "'sets.a.k' = 2, this call has 4"),
        ({"sets": {"a": {"k": 2, "temperature": 0.6}, "b": {"k": 2}}}, "'sets.b.k' = None, this call has 2"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, changed, said):
    filled(tmp_path / "e")
    with pytest.raises(ConfigurationError) as refused:
        EvaluationFolder(tmp_path / "e", {**SETTINGS, **changed})
    assert said in str(refused.value)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigurationError, match="already holds other files"):
        EvaluationFolder(tmp_path, SETTINGS)


def test_two_processes_do_not_share_it(tmp_path):
    folder = EvaluationFolder(tmp_path / "e", SETTINGS)
    with pytest.raises(ConfigurationError, match="still going"):
        EvaluationFolder(tmp_path / "e", SETTINGS)
    folder.close()


@pytest.mark.parametrize(
    "line",
    [
        "not json", "[1]", "{}", LINE.replace('"row":3,', ""), LINE.replace("[4]", "[4,5]"),
        LINE.replace("[1.0]", '["x"]'), LINE.replace("[1.0]", "[NaN]"), LINE.replace("[1.0]", "7"), '{"a":' * 5000,
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path, line):
    filled(tmp_path / "e")
    with open(tmp_path / "e" / PROBLEMS, "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"problems\.jsonl, line 2"):
        EvaluationFolder(tmp_path / "e", SETTINGS)
