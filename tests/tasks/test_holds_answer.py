"""Whether a text holds an answer at all, which is not whether it is right: evaluations count it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lecritique.tasks.math.environment as math_task
from lecritique.tasks.junk import HANGS, JUNK
from lecritique.tasks.registry import load_environment

SAMPLE = str(Path(math_task.__file__).with_name("sample.jsonl"))
CODE = {"rows": 3}
SUM = {"dataset": "chain_sum", "rows": 2, "answer": "tags"}
NEEDS = {"math": "math_verify", "reasoning_gym": "reasoning_gym", "codeio": "reasoning_gym"}
# Task, options, a wrong answer, texts without one.
CASES = {
    "sudoku, terse": ("sudoku", {"rows": 2, "style": "terse"}, "1" * 16, ("", "1" * 15, "5" * 16, "1" * 17)),
    "sudoku, verbose": ("sudoku", {"rows": 2, "style": "verbose"}, f"<answer>{'1' * 16}</answer>", ("", "1" * 16)),
    "sudoku, turns": ("sudoku", {"rows": 2, "form": "multi_turn", "style": "terse"}, "4", ("", "5", "44", "four")),
    "knights": ("knights_knaves", {"rows": 2, "style": "terse", "max_roles": 2, "min_roles": 2}, None, ("", "AkBx")),
    "math": ("math", {"file": SAMPLE}, r"\boxed{-12345}", ("", "42", r"\boxed{}", r"\boxed{42")),
    "math, no box": ("math", {"file": SAMPLE, "require_box": False}, "-12345", ("", " \n")),
    "codeio": ("codeio", CODE, "<answer>[]</answer>", ("", "no value here")),
    "reasoning gym": ("reasoning_gym", SUM, "<answer>x</answer>", ("", "<answer>")),
}  # fmt: skip


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request):
    kind, options, wrong, none = request.param
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    return load_environment(kind, options), wrong, none


def test_right_and_wrong_answers_are_answers(case):
    environment, wrong, _ = case
    task = environment.task(0)
    gold = environment.gold(task, task.messages)
    assert environment.holds_answer(task, gold) is True
    if wrong is not None:
        assert environment.start(task).reply(wrong).reward == 0.0 or environment.start(task).reply(wrong).messages
        assert environment.holds_answer(task, wrong) is True


def test_texts_without_one_are_none(case):
    environment, _, none = case
    task = environment.task(0)
    assert [text for text in none if environment.holds_answer(task, text)] == []


def test_hostile_texts_raise_nothing(case):
    environment, _, _ = case
    task = environment.task(0)
    assert {type(environment.holds_answer(task, text)) for text in [*JUNK.values(), *HANGS.values()]} == {bool}
