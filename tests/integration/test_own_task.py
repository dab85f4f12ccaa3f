"""The example of docs/own-task.md, through the command line as the document says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from lecritique.tasks.functions import named_function
from lecritique.tasks.registry import load_environment
from tests.integration.command_line import call, require_one_sentence

ROOT = Path(__file__).parents[2]
NAME = "examples.own_task:SortWords"


def test_it_keeps_an_environments_promises(capfd, monkeypatch) -> None:
    answer = call(capfd, monkeypatch, "tasks", "validate", NAME, "words=5", "rows=300")
    assert answer.code == 0 and answer.out.startswith("sort_words: ok; 300 rows, gold answers of 200")


def test_two_steps_with_its_reference(capfd, monkeypatch, tmp_path) -> None:
    answer = call(
        capfd, monkeypatch, "train", "demo", f"task.type={NAME}", "task.rows=16", "run.steps=2",
        "rollout.batch_size=8", "critic.replay.refill_size=8", "critic.warmup_updates=0",
        "critic.context.content=both", "--arm", "pvf", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert answer.code == 0, answer.err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["value_updates"] for row in rows] == [1, 2]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["task"]["verifier"] == "examples.own_task:exact_match"


def test_another_verifier_scores_the_same_questions(tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "lenient_checks.py").write_text(
        "def same_words(text, task):\n    return float(sorted(text.split()) == sorted(task.reference.answer.split()))\n"
    )
    monkeypatch.chdir(tmp_path)
    lenient = load_environment(NAME, {"rows": 5, "verifier": "lenient_checks:same_words"})
    strict = load_environment(NAME, {"rows": 5})
    task = strict.task(0)
    backwards = " ".join(reversed(task.reference.answer.split()))
    assert [e.start(task).reply(backwards).reward for e in (strict, lenient)] == [0.0, 1.0]
    answer = call(capfd, monkeypatch, "tasks", "validate", NAME, "verifier=lenient_checks:same_word")
    require_one_sentence(answer, "task.verifier", "no function 'same_word'", "did you mean 'same_words'?")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("same", "module:function"),
        (":f", "module:function"),
        ("no_such_module_here:f", "importing 'no_such_module_here'"),
    ],
)
def test_a_function_that_is_none_is_one_sentence_that_names_the_key(name: str, said: str) -> None:
    with pytest.raises(Exception, match=r"task\.verifier") as caught:
        named_function(name, key="task.verifier")
    assert said in str(caught.value) and caught.value.exit_code == 2


def test_what_each_reads_is_shown_below_and_beside_each_other(capfd, monkeypatch) -> None:
    shown = {}
    for columns in ("80", "140"):
        narrow = Console(width=int(columns), highlight=False, markup=False, emoji=False)
        monkeypatch.setattr("lecritique.cli.tasks.console", narrow)
        answer = call(capfd, monkeypatch, "tasks", "show", NAME, "rows=3", "--row", "1", "--context")
        assert answer.code == 0, answer.err
        shown[columns] = answer.out.split("context none", 1)[1]
        assert max(len(line) for line in shown[columns].splitlines()) <= int(columns)
    for out in shown.values():
        titles = ["reference, content = answer", "reference, content = both", "rubric", "env", "siblings"]
        assert all(f"context {title}" in out for title in titles)
        assert '<sibling return="1">' in out and "comes first" in out
    assert shown["80"].count("\nteacher:\n") == 7 and "│" not in shown["80"]
    assert shown["140"].count("┃ policy") == 7


def test_the_document_names_what_there_is() -> None:
    text = (ROOT / "docs" / "own-task.md").read_text()
    code = (ROOT / "examples" / "own_task.py").read_text()
    for line in (line for line in text.splitlines() if line.startswith("lecritique ")):
        assert line in code
    for path in ("examples/own_task.py", "lecritique/tasks/sudoku/environment.py", "lecritique/tasks/splits.py"):
        assert path in text and (ROOT / path).is_file()
