"""Training and evaluation rows: disjoint by content, complete, and the same on every machine."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.registry import load_environment
from lecritique.tasks.splits import content_hash, split_of, split_rows


def task(*contents: str, task_id: str = "t") -> Task:
    return Task(task_id=task_id, messages=tuple(Message(role="user", content=content) for content in contents))


class Listed:
    """Questions from a list."""

    name = "listed"
    reward_range = (0.0, 1.0)

    def __init__(self, *questions: str) -> None:
        self.questions = questions

    def __len__(self) -> int:
        return len(self.questions)

    def task(self, row: int) -> Task:
        return task(self.questions[row], task_id=f"row-{row}")


def test_the_hash_is_this_number_on_every_machine() -> None:
    assert content_hash(task("1..4..2.4...2..1")) == 9078600171091044371


def test_it_reads_the_opening_messages_alone() -> None:
    one = task("solve 2+2")
    assert content_hash(one) == content_hash(task(" solve\n 2+2 ", task_id="other"))
    assert content_hash(one) == content_hash(
        dataclasses.replace(one, reference=Reference(answer="4"), metadata={"a": 1})
    )
    different = [task("solve 2+3"), task("solve", "2+2"), task("solve 2", "+2"), task("s olve 2+2")]
    assert len({content_hash(t) for t in [one, *different]}) == 5


def test_splits_share_no_row_and_no_question_and_are_everything() -> None:
    questions = [f"q{i % 300}" for i in range(400)]
    parts = {name: split_rows(Listed(*questions), name, evaluation_fraction=0.25) for name in ("train", "evaluation")}
    assert sorted([*parts["train"], *parts["evaluation"]]) == list(range(400))
    asked = [{questions[row] for row in rows} for rows in parts.values()]
    assert not asked[0] & asked[1]
    # Binomial(300, 1/4): standard deviation 7.5.
    assert 45 <= len(asked[1]) <= 105


@given(st.permutations([f"q{i}" for i in range(20)]))
def test_the_order_of_rows_changes_no_questions_split(questions) -> None:
    rows = split_rows(Listed(*questions), "evaluation", evaluation_fraction=0.3)
    assert {questions[row] for row in rows} == {
        f"q{i}" for i in range(20) if split_of(task(f"q{i}"), evaluation_fraction=0.3) == "evaluation"
    }


@given(st.text(max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_fraction_keeps_the_evaluation_rows_of_a_smaller_one(text, a, b) -> None:
    small, large = sorted((a, b))
    if split_of(task(text), evaluation_fraction=small) == "evaluation":
        assert split_of(task(text), evaluation_fraction=large) == "evaluation"
    assert split_of(task(text), evaluation_fraction=0.0) == "train"
    assert split_of(task(text), evaluation_fraction=1.0) == "evaluation"


def test_a_fraction_outside_the_unit_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\], got 1.5"):
        split_of(task("q"), evaluation_fraction=1.5)


def test_another_process_splits_alike() -> None:
    code = (
        "from lecritique.tasks.registry import load_environment as e; from lecritique.tasks.splits import split_rows;"
        "print(split_rows(e('sudoku', {'rows': 40}), 'evaluation', evaluation_fraction=.3))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = split_rows(load_environment("sudoku", {"rows": 40}), "evaluation", evaluation_fraction=0.3)
    assert found == {str(here)} and 0 < len(here) < 40
