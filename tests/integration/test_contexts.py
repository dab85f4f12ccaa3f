"""Every task trains with every context that it supports: two steps each, on a bundled model."""

from __future__ import annotations

import math

import pytest

from lecritique.config.load import Recipe, compose
from lecritique.config.schema import (
    Context,
    EnvContext,
    NoContext,
    ReferenceContext,
    RubricContext,
    RunConfig,
    SiblingsContext,
)
from lecritique.critic.views import supported_contexts
from lecritique.runtime.build import build, load_base
from lecritique.runtime.synchronous import train_step
from lecritique.tasks.registry import load_environment

MATH_ROWS = """{"question": "2+2?", "final_answer": "4", "r1_solution_1": "two and two are 4"}
{"question": "3+3?", "final_answer": "6", "r1_solution_1": "three and three are 6"}
"""
# Task options, and the contexts beside none and siblings; a string stands for the file of MATH_ROWS.
TASKS = {
    "sudoku": ({"type": "sudoku", "rows": 8}, "answer env"),
    "sudoku in turns": ({"type": "sudoku", "rows": 8, "form": "multi_turn", "max_empty": 5}, "answer env"),
    "reasoning_gym": ({"type": "reasoning_gym", "dataset": "chain_sum", "rows": 8}, "answer"),
    "knights_knaves": (
        {"type": "knights_knaves", "rows": 8, "min_roles": 2, "max_roles": 2},
        "answer solution both",
    ),
    "math": ({"type": "math", "file": "FILE", "solution_columns": ["r1_solution_1"]}, "answer solution both"),
    "own task": ({"type": "examples.own_task:SortWords", "rows": 8}, "answer solution both rubric env"),
}
CONTEXTS: dict[str, Context] = {
    "none": NoContext(),
    "answer": ReferenceContext(),
    "answer behind": ReferenceContext(placement="user_suffix"),
    "solution": ReferenceContext(content="solution"),
    "both": ReferenceContext(content="both"),
    "rubric": RubricContext(),
    "env": EnvContext(),
    "siblings": SiblingsContext(),
    "siblings behind": SiblingsContext(placement="user_suffix"),
}
EVERYWHERE = ("none", "answer behind", "siblings", "siblings behind")
CASES = [(task, context) for task, (_, own) in TASKS.items() for context in (*EVERYWHERE, *own.split())]


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """The options of a task by its name in TASKS."""
    file = tmp_path_factory.mktemp("math") / "problems.jsonl"
    file.write_text(MATH_ROWS)
    return lambda name: {k: str(file) if v == "FILE" else v for k, v in TASKS[name][0].items()}


def config(options, context, *overrides: str) -> RunConfig:
    tree = {
        "run": {"steps": 2}, "task": options, "rollout": {"batch_size": 4, "group_size": 2},
        "sampling": {"temperature": 1.5, "max_turn_tokens": 12},
        "critic": {"warmup_updates": 0, "context": context.model_dump(), "replay": {"refill_size": 4}},
        "model": {"name": "tiny"}, "estimator": {"type": "value"}, "runtime": {"loop": "synchronous"},
    }  # fmt: skip
    return compose(Recipe(name="r", text="", tree=tree, arms={}, default_arm=None), overrides=overrides)


@pytest.mark.parametrize("name", TASKS)
def test_the_contexts_of_a_task_are_these(options, name) -> None:
    chosen = {key: value for key, value in options(name).items() if key != "type"}
    task = load_environment(options(name)["type"], chosen).task(0)
    found = {context for _, context in supported_contexts(task, "system_prefix")}
    assert found == {CONTEXTS[known] for known in ("none", "siblings", *TASKS[name][1].split())}


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_two_steps(options, name, kind) -> None:
    context = CONTEXTS[kind]
    parts = build(load_base(config(options(name), context)))
    try:
        rows = [train_step(parts, step).metrics for step in range(2)]
    finally:
        parts.engine.close()
    assert [row["value_updates"] for row in rows] == [1, 2] and [row["policy_steps"] for row in rows] == [1, 2]
    assert all(math.isfinite(row["value_loss"]) and row["groups_dropped"] == 0 for row in rows)
    assert ("contexts_trimmed" in rows[0]) == (context.type == "siblings")


def test_contexts_change_the_critic_alone(options) -> None:
    """The same rollouts and rewards in the first step, whatever the critic reads; other values."""
    seen = {}
    for kind in ("none", "answer", "answer behind", "env", "siblings"):
        parts = build(load_base(config(options("sudoku"), CONTEXTS[kind])))
        done = train_step(parts, 0)
        parts.engine.close()
        seen[kind] = ([m.trajectory.token_ids.tolist() for m in done.outcome.credit.members], done.metrics)
    rollouts, metrics = seen.pop("none")
    for others, told in seen.values():
        assert others == rollouts and told["reward"] == metrics["reward"]
        assert told["value_mse"] != metrics["value_mse"]


@pytest.mark.parametrize(("policy", "counted"), [("trim_context", "contexts_trimmed"), ("skip", "groups_too_long")])
def test_siblings_that_are_too_long_are_counted_in_a_run(options, policy: str, counted: str) -> None:
    limits = ("sampling.max_total_tokens=100", "sampling.max_turn_tokens=20", "critic.context.max_tokens=117")
    # Heading, delimiters and some of what one sibling says fit, not all of it.
    overflow = f"critic.context.on_overflow={policy}"
    parts = build(load_base(config(options("sudoku"), CONTEXTS["siblings"], *limits, overflow)))
    try:
        metrics = train_step(parts, 0).metrics
    finally:
        parts.engine.close()
    assert metrics[counted] > 0 and metrics["rollouts"] == 4
