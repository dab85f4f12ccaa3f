"""Reasoning Gym: what scorers never see, what is scored behind walls, frozen items, curricula, tags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import lecritique
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.tasks.frozen import read_frozen, write_frozen
from lecritique.tasks.junk import HANGS, JUNK
from lecritique.tasks.reasoning_gym import scoring
from lecritique.tasks.reasoning_gym.environment import ReasoningGymEnvironment
from lecritique.tasks.reasoning_gym.sets import FREEZE_FIRST, SANDBOXED, safe_names
from lecritique.tasks.reasoning_gym.strictness import CONDITIONS, arithmetic_value, may_be_scored
from lecritique.tasks.registry import load_environment, resolve_options
from lecritique.tasks.sandbox import pool as pool_module
from lecritique.tasks.sandbox.isolation import SandboxUnavailable
from lecritique.tasks.validate import validate_environment

pytest.importorskip("reasoning_gym")

needs_sandbox = pytest.mark.skipif(
    os.environ.get("LECRITIQUE_SKIP_SANDBOX_TESTS") == "1", reason="LECRITIQUE_SKIP_SANDBOX_TESTS=1"
)
INJECTIONS = (
    "__import__('os').system('true')",
    "[__import__('os')]",
    "(lambda: 24)()",
    "open('/etc/passwd').read()",
    "exit()",
    "().__class__.__bases__[0].__subclasses__()",
    "S('x')",
    "sympify(24)",
    "symbols('x').__class__",
    "print(24)",
    "eval(1)",
    "x.func",
    "[c for c in 'AAAA']",
    "'a' * 10**9",
    "f'{1}'",
    "\\u0028",
)


def load(options, seed=0):
    return load_environment("reasoning_gym", options, seed=seed)


def reward(environment, row, text):
    return environment.start(environment.task(row)).reply(text).reward


def freeze(options, path, seed=0):
    resolved = resolve_options("reasoning_gym", options, seed=seed)
    return write_frozen(path, "reasoning_gym", ReasoningGymEnvironment.frozen(resolved), {})


@pytest.mark.parametrize("name", sorted(SANDBOXED))
@pytest.mark.parametrize("text", INJECTIONS)
def test_code_never_reaches_a_scorer(name, text):
    assert not may_be_scored(name, text, {"answer": "A", "metadata": {"numbers": [1, 2, 3, 4]}})


def test_a_condition_can_be_met():
    entry = {"answer": "0 1", "metadata": {"numbers": [4, 6, 1, 1]}}
    assert may_be_scored("spiral_matrix", "0 1", entry) and may_be_scored("spiral_matrix", "[0, 1]", entry)
    assert may_be_scored("simple_integration", "-6*x**3 + sin(2*x)/2 + C", entry)
    assert may_be_scored("simple_integration", "x**12/12 + x**(1/2)", entry)
    for huge in ("9**9**9", "x**9999", "x**(9)**9", "9** 9 **9", "x**-(12345)"):
        assert not may_be_scored("simple_integration", huge, entry)
    assert may_be_scored("puzzle24", "4*6*1/1", entry) and not may_be_scored("puzzle24", "24*1*1", entry)
    assert may_be_scored("chain_sum", "anything", entry)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 + 2*3", 7), ("(1+2)*3", 9), ("-4 - -4", 0), ("8/(3 - 8/3)", 24), ("6", 6), ("2**3", None), ("7//2", None),
     ("1/0", None), ("1.5", None), ("", None), ("(" * 90 + "1" + ")" * 90, 1), ("1 2", None), ("9" * 300, None),
     ("x", None), ("((((", None)],
)  # fmt: skip
def test_arithmetic_is_exact_and_nothing_else(text, value):
    assert arithmetic_value(text) == value


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("game_of_life_halting", ("yes", "true or false", "False False", "0")),
        ("complex_arithmetic", ("nan", "nan+nanj", "inf", "1e400")),
        ("coin_flip", ("1e999999999", "nan", "1e-5", "9" * 5000)),
        ("game_of_life", ("1", "{}", "[]", '"x"', "[[1]]", "null")),
        ("prime_factorization", ("x", "2 x 3", "", "\u00d7", "2 \u00d7 ", "1.5")),
        ("gsm_symbolic", ("I guess 1 2 3 4 5 6 7 8 9 10", "9**9", "nan")),
    ],
)
def test_data_sets_whose_scorers_are_lenient_or_raise_are_scored_strictly(name, wrong):
    assert name in CONDITIONS
    environment = load({"dataset": name, "rows": 10})
    for row in range(10):
        task = environment.task(row)
        assert reward(environment, row, environment.gold(task, task.messages)) == 1.0
        for text in wrong:
            assert reward(environment, row, text) == 0.0


@needs_sandbox
@pytest.mark.parametrize("name", sorted(SANDBOXED - set(FREEZE_FIRST)))
def test_data_sets_that_evaluate_answers_keep_their_promises_behind_walls(name):
    environment = load({"dataset": name, "rows": 8, "score_seconds": 2.0})
    report = validate_environment(environment, junk_items=3, hang_items=1)
    assert report.ok, report.lines()
    assert report.slowest_seconds < 3.0


@needs_sandbox
def test_an_answer_whose_scoring_does_not_end_is_cut_and_wrong():
    environment = load({"dataset": "simple_integration", "rows": 3, "score_seconds": 1.0})
    for row in range(3):
        started = time.monotonic()
        assert reward(environment, row, "(((x + 1)**999 + x)**999 + x)**999/((x + 2)**998 + x)**997") == 0.0
        assert time.monotonic() - started < 2.0
        task = environment.task(row)
        # The limit holds from the next answer on too: the worker is another one.
        patient = load({"dataset": "simple_integration", "rows": 3, "score_seconds": 20.0})
        assert reward(patient, row, environment.gold(task, task.messages)) == 1.0


def test_without_a_sandbox_they_are_refused(monkeypatch):
    def none(process):
        raise SandboxUnavailable("there is none here")

    monkeypatch.setattr(pool_module, "_probe", none)
    pool_module._shared.cache_clear()
    with pytest.raises(ConfigurationError, match=r"no sandbox: there is none here.*lecritique\[sandbox\]"):
        load({"dataset": "puzzle24", "rows": 1})
    assert len(load({"dataset": "chain_sum", "rows": 1})) == 1
    pool_module._shared.cache_clear()


@needs_sandbox
def test_puzzle24_wants_the_numbers_and_exactly_24():
    environment = load({"dataset": "puzzle24", "rows": 5})
    for row in range(5):
        numbers = environment.task(row).metadata["numbers"]
        assert sorted(numbers) != [1, 4, 5, 10]
        assert reward(environment, row, "4*5 + 4*1") == 0.0
        assert reward(environment, row, "24") == 0.0
        assert reward(environment, row, "+".join(map(str, numbers))) == float(sum(numbers) == 24)


def test_safe_names_are_neither_refused_nor_behind_walls():
    names = safe_names(["chain_sum", "puzzle24", "codeio", "word_ladder", "rush_hour"])
    assert names == ("chain_sum",)
    assert scoring.SANDBOXED is SANDBOXED


# Frozen items.


def test_frozen_items_are_the_items(tmp_path):
    options = {"datasets": {"chain_sum": 1, "gcd": 1}, "rows": 10, "dataset_options": {"gcd": {"max_value": 50}}}
    assert freeze(options, tmp_path / "items.jsonl", seed=3) == 10
    made, loaded = load(options, seed=3), load({"file": str(tmp_path / "items.jsonl")})
    assert len(loaded) == 10
    for row in range(10):
        assert loaded.task(row).messages == made.task(row).messages
        assert loaded.task(row).task_id == made.task(row).task_id
    assert validate_environment(loaded).ok
    assert len(load({"file": str(tmp_path / "items.jsonl"), "rows": 4})) == 4
    with pytest.raises(ConfigurationError, match=r"task.rows = 11, but"):
        load({"file": str(tmp_path / "items.jsonl"), "rows": 11})


@pytest.mark.parametrize("name", ["word_ladder", "list_functions", "ransom_note"])
def test_what_is_not_reproducible_is_used_from_a_frozen_file(name, tmp_path):
    path = tmp_path / "items.jsonl"
    freeze({"dataset": name, "rows": 12}, path)
    script = (
        "from lecritique.tasks.registry import load_environment as load\n"
        "from lecritique.tasks.validate import validate_environment as validate\n"
        f"report = validate(load('reasoning_gym', {{'file': {str(path)!r}}}), junk_items=3)\n"
        "assert report.ok, report.lines()\nprint(report.fingerprint)\n"
    )
    prints = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for hash_seed in ("1", "2")
    ]  # fmt: skip
    assert prints[0] == prints[1] and len(prints[0].strip()) == 32


@needs_sandbox
def test_frozen_and_sandboxed_at_once(tmp_path):
    path = tmp_path / "items.jsonl"
    freeze({"dataset": "polynomial_multiplication", "rows": 6}, path)
    report = validate_environment(load({"file": str(path)}), junk_items=2, hang_items=1)
    assert report.ok, report.lines()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no items"),
        ('{"a": 1}\n', "line 1"),
        ("{", "line 1.*no JSON"),
        ('{"frozen_task": "codeio", "format": 1}\n', "line 1"),
        ('{"frozen_task": "reasoning_gym", "format": 1}\n', "holds no items"),
        ('{"frozen_task": "reasoning_gym", "format": 1}\n{"dataset": "gcd"}\n', "line 2.*entry"),
        (
            '{"frozen_task": "reasoning_gym", "format": 1}\n'
            '{"dataset": "gcd", "entry": {"question": "q", "answer": " ", "metadata": {}}, "generator_options": {}}\n',
            "item 0 .*answer",
        ),
    ],
)
def test_files_that_are_no_frozen_items_are_refused_with_the_line(text, words, tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words):
        load({"file": str(path)})


def test_a_frozen_file_appears_complete_and_is_not_overwritten(tmp_path):
    path = tmp_path / "items.jsonl"

    def broken():
        yield {"a": 1}
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        write_frozen(path, "stub", broken(), {})
    assert os.listdir(tmp_path) == []
    assert write_frozen(path, "stub", [{"a": 1}], {"x": 2}) == 1
    assert read_frozen(str(path), "stub", {"a": int}) == [{"a": 1}]
    assert json.loads(path.read_text().splitlines()[0]) == {"frozen_task": "stub", "format": 1, "options": {"x": 2}}
    with pytest.raises(ConfigurationError, match="exists"):
        write_frozen(path, "stub", [], {})
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_frozen(tmp_path / "no" / "folder", "stub", [], {})


# Curricula, tags, the recipe.


def test_a_curriculum_sets_the_generators_options():
    low = load({"dataset": "chain_sum", "rows": 20, "curriculum": {"num_terms": 0}})
    high = load({"dataset": "chain_sum", "rows": 20, "curriculum": {"num_terms": 6}})

    def longest(environment):
        return max(environment.task(row).metadata["num_terms"] for row in range(20))

    assert longest(low) <= 3 < longest(high)
    both = {"dataset": "chain_sum", "rows": 5, "curriculum": {"num_terms": 6}, "dataset_options": {"max_terms": 2}}
    assert longest_of(load(both), 5) == 2
    mixed = load({"datasets": {"chain_sum": 1, "gcd": 1}, "rows": 6, "curriculum": {"chain_sum": {"num_terms": 0}}})
    assert len(mixed) == 6


def longest_of(environment, rows):
    return max(environment.task(row).metadata["num_terms"] for row in range(rows))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": "chain_sum", "curriculum": {"num_term": 0}}, "no attribute 'num_term'.*did you mean 'num_terms'"),
        ({"dataset": "chain_sum", "curriculum": {"num_terms": 99}}, "got level 99, expected 0 to"),
        ({"dataset": "chain_sum", "curriculum": {"num_terms": "hard"}}, "got level 'hard'"),
        ({"dataset": "acre", "curriculum": {"x": 0}}, "'acre'.*has no curriculum"),
        ({"datasets": {"gcd": 1}, "curriculum": {"lcm": {"x": 0}}}, "task.curriculum.lcm is for none"),
        ({"datasets": {"gcd": 1}, "curriculum": {"gcd": 1}}, "task.curriculum.gcd must be a table"),
        ({"file": "x", "dataset": "gcd"}, "exactly one"),
        ({"file": "x", "curriculum": {"num_terms": 1}}, "items of task.file are made"),
    ],
)
def test_curricula_and_files_that_do_not_fit_are_named(options, words):
    with pytest.raises(ConfigurationError, match=words):
        load(options)


def test_answers_between_tags():
    environment = load({"dataset": "chain_sum", "rows": 5, "answer": "tags"})
    report = validate_environment(environment, junk_items=3)
    assert report.ok, report.lines()
    task = environment.task(0)
    assert "<answer>" in task.messages[0].content
    answer = task.reference.answer
    assert reward(environment, 0, f"First 1, then 2.\n<answer> {answer}\n</answer> Done.") == 1.0
    for wrong in (
        answer,
        f"<answer>{answer}",
        f"<answer>it is {answer}</answer>",
        f"<answer>{answer}</answer><answer></answer>",
    ):
        assert reward(environment, 0, wrong) == 0.0
    own = load({"dataset": "chain_sum", "rows": 1, "answer": "tags", "prompt_template": "{question}"})
    assert "<answer>" not in own.task(0).messages[0].content


def test_the_recipe_holds_safe_data_sets_alone():
    recipe = Path(lecritique.__file__).parent / "recipes" / "reasoning-gym.toml"
    task = tomllib.loads(recipe.read_text(encoding="utf-8"))["task"]
    assert task.pop("type") == "reasoning_gym"
    assert len(safe_names(task["datasets"])) == len(task["datasets"]) >= 20
    environment = load({**task, "rows": 60})
    counts = dict.fromkeys(task["datasets"], 0)
    for row in range(60):
        counts[environment.task(row).metadata["dataset"]] += 1
    total = sum(task["datasets"].values())
    assert all(abs(count - 60 * task["datasets"][name] / total) <= 1 for name, count in counts.items())
    report = validate_environment(environment, items=60, junk_items=4, hang_items=1)
    assert report.ok, report.lines()


@pytest.mark.parametrize("kind", [*HANGS])
def test_texts_made_to_hang_are_answered_at_once(kind):
    environment = load({"dataset": "chain_sum", "rows": 1})
    started = time.monotonic()
    assert reward(environment, 0, HANGS[kind]) == 0.0
    assert time.monotonic() - started < 1.0
    assert kind not in JUNK
