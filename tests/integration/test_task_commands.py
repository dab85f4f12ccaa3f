"""`lecritique tasks freeze` and `validate`: from a shell's point of view."""

import pytest

from lecritique.tasks.registry import task_names
from tests.integration.command_line import call

pytest.importorskip("reasoning_gym")


def test_frozen_items_are_used_by_a_task(capfd, monkeypatch, tmp_path):
    path = tmp_path / "gcd.jsonl"
    arguments = ("tasks", "freeze", "reasoning_gym", "dataset=gcd", "rows=4", "--out", str(path))
    answer = call(capfd, monkeypatch, *arguments)
    assert answer.code == 0 and "4 items of reasoning_gym written" in answer.out
    first = path.read_bytes()
    shown = call(capfd, monkeypatch, "tasks", "show", "reasoning_gym", f"file={path}", "--row", "3")
    assert shown.code == 0 and "row 3 of 4" in shown.out
    again = call(capfd, monkeypatch, *arguments)
    assert again.code == 2 and "exists" in again.err + again.out
    path.unlink()
    assert call(capfd, monkeypatch, *arguments).code == 0
    assert path.read_bytes() == first
    other = tmp_path / "other.jsonl"
    assert call(capfd, monkeypatch, *arguments[:-1], str(other), "--seed", "1").code == 0
    assert other.read_bytes() != first


def test_the_list_says_what_each_task_is_and_an_unknown_one_shows_nothing(capfd, monkeypatch):
    listed = call(capfd, monkeypatch, "tasks", "list")
    assert listed.code == 0 and "sudoku  Sudoku puzzles with one solution each" in listed.out
    assert all(f"{name}  " in listed.out for name in task_names())
    unknown = call(capfd, monkeypatch, "tasks", "show", "sudku")
    assert unknown.code == 2 and unknown.out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("freeze", "sudoku", "--out", "x.jsonl"), "no items to freeze"),
        (("freeze", "reasoning_gym", "dataset=rush_hour", "--out", "x.jsonl"), "no reference answer"),
        (("freeze", "codeo", "--out", "x.jsonl"), "did you mean 'codeio'"),
        (("validate",), "expected the NAME of one task, or --all"),
        (("validate", "sudoku", "--all"), "expected the NAME of one task, or --all"),
    ],
)
def test_calls_that_cannot_be_answered(capfd, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    answer = call(capfd, monkeypatch, "tasks", *arguments)
    assert answer.code == 2
    assert words in " ".join((answer.err + answer.out).split())
    assert list(tmp_path.iterdir()) == []


def test_validate_all_prints_every_outcome_and_its_exit_code(capfd, monkeypatch):
    from lecritique.tasks import validate_all as module
    from lecritique.tasks.validate_all import Job

    sound = Job(label="fine", task="reasoning_gym", options={"dataset": "gcd", "rows": 3}, part=True)
    listed = Job(label="listed", task="math", options={}, not_validated="it needs a file")
    broken = Job(label="bad", task="reasoning_gym", options={"dataset": "no_such"}, part=True)
    monkeypatch.setattr(module, "all_jobs", lambda: [sound, listed])
    answer = call(capfd, monkeypatch, "tasks", "validate", "--all", "--items", "3", "--junk-items", "1")
    assert answer.code == 0
    assert "fine: ok; 3 rows" in answer.out and "listed: not validated: it needs a file" in answer.out
    assert "1 ok, 0 broken, 1 not validated" in answer.out
    monkeypatch.setattr(module, "all_jobs", lambda: [sound, broken])
    answer = call(capfd, monkeypatch, "tasks", "validate", "--all", "--items", "3", "--junk-items", "1")
    assert answer.code == 2 and "unknown data set 'no_such'" in answer.out
    assert "1 ok, 1 broken, 0 not validated" in answer.out


def test_the_mixture_is_a_recipe_that_composes(capfd, monkeypatch):
    # Its own model is on a hub; asking for that takes most of a minute where there is no network.
    small = ("model.name=tiny", "sampling.max_total_tokens=4096", "sampling.max_turn_tokens=2048")
    answer = call(capfd, monkeypatch, "train", "reasoning-gym", "--dry-run", "task.rows=30", *small)
    assert answer.code == 0, answer.err


def test_recipes_of_tasks_name_options_that_exist():
    from lecritique.config.load import load_recipe, recipe_names
    from lecritique.tasks.registry import resolve_options

    for name in recipe_names():
        task = dict(load_recipe(name).tree["task"])
        assert resolve_options(task.pop("type"), task) is not None
