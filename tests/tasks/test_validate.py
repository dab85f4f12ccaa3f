"""The validator finds each kind of broken promise, and the single-turn boundary tells crashes from wrong answers."""

import numpy as np
import pytest

from lecritique.core.errors import BudgetExceeded, DataError, VerifierFailure
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.junk import JUNK
from lecritique.tasks.protocol import SingleTurn, checked_task
from lecritique.tasks.registry import load_environment
from lecritique.tasks.stream import DataStream
from lecritique.tasks.validate import validate_environment


class Stub:
    """Four rows with answers of their own; tests break one promise each."""

    name = "stub"
    reward_range = (0.0, 1.0)
    answers = ("alpha", "beta", "gamma", "delta")

    def __len__(self):
        return len(self.answers)

    def task(self, row):
        return Task(
            task_id=f"stub:{row}",
            messages=(Message(role="user", content="the same prompt in every row"),),
            reference=Reference(answer=self.answers[row]),
        )

    def start(self, task):
        return SingleTurn(lambda text: self.score(task, text))

    def score(self, task, text):
        return float(text == task.reference.answer)

    def gold(self, task, messages):
        return task.reference.answer


def kinds(environment):
    report = validate_environment(environment)
    assert report.ok == (not report.problems)
    assert report.exit_code == (0 if report.ok else 2)
    return {problem.kind for problem in report.problems}


def test_a_good_environment_passes_and_says_what_was_played():
    report = validate_environment(Stub(), items=3, junk_items=2)
    assert report.ok
    assert (report.rows, report.gold_rows, report.junk_rows, report.junk_kinds) == (4, 3, 2, len(JUNK))
    assert len(JUNK) >= 20
    assert report.lines() == [f"stub: ok; 4 rows, gold answers of 3, {len(JUNK)} kinds of junk on 2"]


def test_fault_50_a_blank_gold_answer_is_refused_with_its_row_number():
    class Blank(Stub):
        answers = ("alpha", "beta", " ", "delta")

    with pytest.raises(DataError, match=r"row 2 of task 'stub'.*blank"):
        checked_task(Blank(), 2)
    assert checked_task(Blank(), 1).reference.answer == "beta"
    report = validate_environment(Blank())
    assert {problem.row for problem in report.problems} == {2}
    assert any("blank" in problem.text for problem in report.problems)


def test_a_row_that_is_no_task_or_raises_anything_is_named():
    class Holes(Stub):
        def task(self, row):
            if row == 1:
                raise IndexError("out of rows")
            return None if row == 2 else super().task(row)

    with pytest.raises(DataError, match=r"row 1 of task 'stub' cannot be used: IndexError: out of rows"):
        checked_task(Holes(), 1)
    with pytest.raises(DataError, match=r"row 2 of task 'stub' is a NoneType, expected a Task"):
        checked_task(Holes(), 2)
    assert {"task raised", "no task"} <= kinds(Holes())


def test_gold_that_is_not_paid_or_blank_or_raises():
    class Unpaid(Stub):
        def score(self, task, text):
            return 0.5 * (text == task.reference.answer)

    class Silent(Stub):
        def gold(self, task, messages):
            return "  "

    assert kinds(Unpaid()) == {"gold unpaid"}
    assert kinds(Silent()) == {"gold raised"}


def test_junk_that_is_paid_or_crashes_the_verifier():
    class Generous(Stub):
        def score(self, task, text):
            return float(task.reference.answer == text or "correct" in text)

    class Fragile(Stub):
        def score(self, task, text):
            text.encode("utf-8")  # a lone surrogate cannot be encoded
            return super().score(task, text)

    report = validate_environment(Generous())
    assert {problem.kind for problem in report.problems} == {"junk paid"}
    assert all("grader request" in problem.text for problem in report.problems)
    assert report.lines(most=1)[-1] == "  and 3 more"
    assert kinds(Fragile()) == {"junk raised"}


def test_unstable_rows_and_repeated_ids():
    class Unstable(Stub):
        calls = 0

        def task(self, row):
            type(self).calls += 1
            task = super().task(row)
            return Task(
                task_id=task.task_id,
                messages=(Message(role="user", content=str(type(self).calls)),),
                reference=task.reference,
            )

    class Repeated(Stub):
        def task(self, row):
            task = super().task(row)
            return Task(task_id="same", messages=task.messages, reference=task.reference)

    assert kinds(Unstable()) == {"unstable row"}
    assert kinds(Repeated()) == {"repeated id"}


def test_an_episode_without_end_is_found():
    class Endless(Stub):
        def start(self, task):
            return load_environment(
                "sudoku", {"form": "multi_turn", "on_invalid": "retry", "max_retries": 5000, "rows": 1}
            ).start(load_environment("sudoku", {"rows": 1}).task(0))

    assert kinds(Endless()) == {"no end"}


@pytest.mark.parametrize("score", [float("nan"), float("inf"), None, "1", [1.0], 1j])
def test_what_is_no_number_is_a_verifier_failure_and_not_a_reward(score):
    with pytest.raises(VerifierFailure, match="finite number"):
        SingleTurn(lambda text: score).reply("x")


@pytest.mark.parametrize("score", [1, True, np.float32(1.0), 1.0])
def test_numbers_of_all_kinds_are_rewards(score):
    reward = SingleTurn(lambda text: score).reply("x").reward
    assert type(reward) is float
    assert reward == 1.0


def test_a_verifier_that_raises_is_a_verifier_failure():
    def broken(text):
        raise ZeroDivisionError("in the verifier")

    with pytest.raises(VerifierFailure, match="ZeroDivisionError: in the verifier"):
        SingleTurn(broken).reply("x")


def test_a_typed_failure_keeps_its_type():
    def failing(text):
        raise BudgetExceeded("no room")

    with pytest.raises(BudgetExceeded):
        SingleTurn(failing).reply("x")


def test_the_same_prompt_twice_gives_two_groups():
    environment, stream = Stub(), DataStream(4, seed=1)
    groups = stream.groups(0, 8)
    prompts = {environment.task(group.row).messages for group in groups}
    members = [RolloutId(group=group, member=member) for group in groups for member in range(3)]
    assert len(prompts) == 1
    assert len({member.group for member in members}) == 8
    assert {GroupId(row, attempt) for row in range(4) for attempt in range(2)} == set(groups)
