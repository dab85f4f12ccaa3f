"""Rows that a run trains on: what is left out, cut or refused is exactly that, counted, and alike for all arms."""

from __future__ import annotations

import json
import sys

import pytest

from lecritique.config.load import Recipe, compose
from lecritique.core.errors import DataError
from lecritique.core.task import Message, Reference, Task
from lecritique.critic.templates import teacher_message
from lecritique.runtime.base_reward import base_reward
from lecritique.runtime.build import build, load_base
from lecritique.tasks.splits import split_rows
from lecritique.tasks.stream import DataStream
from tests.integration.command_line import call, require_one_sentence

TASK = '''
from pydantic import BaseModel
from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.protocol import SingleTurn


class Echo:
    """Say it again."""

    class Options(BaseModel):
        lengths: tuple[int, ...] = (10, 40, 10)
        solutions: tuple[int, ...] = ()

    name = "echo"
    reward_range = (0.0, 1.0)

    def __init__(self, options):
        self.lengths = options.lengths
        self.solutions = options.solutions or (1,) * len(options.lengths)

    def __len__(self):
        return len(self.lengths)

    def task(self, row):
        solution = "s" * self.solutions[row] or None
        return Task(
            task_id=f"echo-{row}",
            messages=(Message(role="user", content=str(row) * self.lengths[row]),),
            reference=Reference(answer="1", solution=solution),
        )

    def start(self, task):
        return SingleTurn(lambda text: float(text.strip() == "1"))

    def gold(self, task, messages):
        return "1"
'''
# The frame of one user message on the bundled model: bos, user, end, assistant.
FRAME = 4
SOLUTION = "critic.context={type='reference',content='solution',placement='user_suffix'}"


@pytest.fixture(autouse=True)
def echo(tmp_path, monkeypatch):
    (tmp_path / "echo_task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("echo_task", None)


def base(*overrides: str, arm: str = "mean"):
    tree = {
        "run": {"steps": 2}, "task": {"type": "echo_task:Echo"}, "rollout": {"batch_size": 8, "group_size": 4},
        "sampling": {"max_turn_tokens": 8}, "critic": {"warmup_updates": 0}, "runtime": {"dtype": "float32"},
    }  # fmt: skip
    recipe = Recipe(name="echo", text="", tree=tree, arms={}, default_arm=None)
    return load_base(compose(recipe, arm=arm, overrides=overrides))


def test_fault_49_one_of_three_prompts_is_too_long_and_is_refused_left_out_or_cut() -> None:
    # Ten characters and the template fit exactly.
    limit = f"data.max_prompt_tokens={10 + FRAME}"
    with pytest.raises(DataError, match=rf"row 1: the prompt of task echo-1 has {40 + FRAME} tokens with its template"):
        base(limit)
    dropped = base(limit, "data.on_long_prompt=drop")
    assert dropped.data.rows == (0, 2) and dropped.data.counts.dropped_long_prompt == 1
    assert {g.row for g in DataStream(dropped.data.rows, 1).groups(0, 20)} == {0, 2}
    cut = base(limit, "data.on_long_prompt=truncate")
    assert cut.data.rows == (0, 1, 2) and cut.data.counts.truncated_prompt == 1
    asked = [cut.environment.task(row).messages[0].content for row in range(3)]
    assert asked == ["0" * 10, "1" * 10, "2" * 10]
    whole = base(f"data.max_prompt_tokens={40 + FRAME}")
    assert whole.data.rows == (0, 1, 2) and whole.data.counts.note == ""
    # One token less: the template counts.
    with pytest.raises(DataError, match="no row of task 'echo' is left"):
        base(f"data.max_prompt_tokens={9 + FRAME}", "data.on_long_prompt=drop")


def test_fault_49_a_row_that_leaves_the_critic_no_room_is_left_out_for_every_arm_and_counted(monkeypatch) -> None:
    """Prompt, space, solution and one whole turn are exactly as long as the model reads, or one token longer."""
    limit = 4096
    room = limit - FRAME - 10 - 8 - 1
    rows = f"task.solutions=[{room},{room + 1},5]"
    with_lengths = ("task.lengths=[10,10,10]", rows, "data.teachers=[]")
    privileged = base(*with_lengths, SOLUTION, arm="pvf")
    assert privileged.language.context_length == limit
    assert privileged.data.rows == (0, 2) and privileged.data.counts.dropped_long_context == 1
    # Arms without a critic, or with a clean one, see the contexts of the recipe's other arms.
    contexts = "data.contexts=[{type='reference',content='solution',placement='user_suffix'}]"
    for arm in ("mean", "value", "tether"):
        other = base(*with_lengths, contexts, arm=arm)
        assert other.data.rows == privileged.data.rows and other.data.counts == privileged.data.counts
    assert base(*with_lengths, arm="mean").data.rows == (0, 1, 2)


def test_fault_30_a_row_that_leaves_the_teacher_no_room_is_left_out_for_every_arm_and_counted() -> None:
    """The teacher's whole prompt and one turn are exactly as long as the model reads, or one token longer."""
    task, told = Task(task_id="t", messages=(Message(role="user", content="0" * 10),)), "solution"
    frame = len(teacher_message(task.messages[0].content, Reference(answer="1", solution="s"), told)) - 1 + FRAME
    room = 4096 - frame - 8
    rows = ("task.lengths=[10,10,10]", f"task.solutions=[{room},{room + 1},5]", "data.contexts=[]")
    own = base(*rows, "policy.teacher.content=solution", arm="opsd")
    assert own.data.rows == (0, 2) and own.data.counts.dropped_long_context == 1
    shared = base(*rows, "data.teachers=['solution']")
    assert shared.data.rows == own.data.rows and shared.data.counts == own.data.counts
    assert base(*rows, "data.teachers=[]").data.rows == (0, 1, 2)
    # A row without what its own teacher is told ends the run before it starts; another arm's teacher is no reason to.
    lacking = "task.solutions=[3,0,3]"
    with pytest.raises(
        DataError, match=r"echo-1 has no worked solution, which 'policy\.teacher\.content' = 'both' needs"
    ):
        base(lacking, "policy.teacher.content=both", arm="opsd")
    assert base(lacking, "data.teachers=['both']").data.rows == (0, 1, 2)


def test_fault_30_the_context_is_not_held_to_the_policys_prompt_limit() -> None:
    prepared = base(f"data.max_prompt_tokens={40 + FRAME}", "task.solutions=[20,20,2000]", SOLUTION, arm="pvf")
    assert prepared.data.rows == (0, 1, 2)
    parts = build(prepared)
    context = parts.learner.context(parts.environment.task(2))
    assert len(context) == 2001 and context.text == "s" * 2000
    parts.engine.close()


def test_a_row_without_what_its_own_critic_reads_ends_the_run_before_it_starts() -> None:
    with pytest.raises(DataError, match="echo-1 has no worked solution"):
        base("task.solutions=[3,0,3]", SOLUTION, arm="pvf")
    # What another arm would read is no reason to refuse this one.
    assert base("task.solutions=[3,0,3]", "data.contexts=[{type='reference',content='both'}]").data.rows == (0, 1, 2)


def test_evaluation_rows_are_in_no_epoch_of_training() -> None:
    lengths = ",".join(str(1 + i) for i in range(40))
    prepared = base(f"task.lengths=[{lengths}]", "data.evaluation_fraction=0.3")
    held = split_rows(prepared.environment, "evaluation", evaluation_fraction=0.3)
    assert held and prepared.data.counts.for_evaluation == len(held)
    parts = build(prepared)
    for epoch in range(3):
        rows = [g.row for g in parts.stream.groups(epoch * len(prepared.data.rows), len(prepared.data.rows))]
        assert sorted(rows) == sorted(set(range(40)) - set(held))
    parts.engine.close()


def test_the_base_models_reward_is_measured_on_the_same_rows(monkeypatch) -> None:
    prepared = base(f"data.max_prompt_tokens={10 + FRAME}", "data.on_long_prompt=drop")
    asked = []
    task = type(prepared.environment).task
    monkeypatch.setattr(
        type(prepared.environment), "task", lambda self, row: asked.append(row) or task(self, row)
    )  # fmt: skip
    base_reward(prepared, rollouts=16)
    assert set(asked) == {0, 2}


def test_the_command_line_says_what_became_of_the_rows_and_the_run_records_it(capfd, monkeypatch, tmp_path) -> None:
    given = ("train", "demo", "task.type=echo_task:Echo", f"data.max_prompt_tokens={10 + FRAME}")
    steps = ("run.steps=1", "rollout.batch_size=8", "critic.warmup_updates=0", "--arm", "mean", "--out", "run")
    require_one_sentence(call(capfd, monkeypatch, *given, *steps), "row 1", "'data.max_prompt_tokens' = 14")
    answer = call(capfd, monkeypatch, *given, "data.on_long_prompt=drop", *steps)
    assert answer.code == 0, answer.err
    assert "rows: 2 of 3 are trained on; 1 left out, prompt too long" in answer.out
    first = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])
    assert first["kind"] == "started" and first["data"]["dropped_long_prompt"] == 1 and first["data"]["rows"] == 3
