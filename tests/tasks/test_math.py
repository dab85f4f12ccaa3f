"""The math environment: files, their checks, scores, gold and junk."""

import json
import os
import subprocess
import sys

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.core.errors import ConfigurationError, DataError, VerifierFailure
from lecritique.core.task import Reply
from lecritique.tasks.junk import JUNK
from lecritique.tasks.math.environment import MathEnvironment
from lecritique.tasks.math.pool import Comparison, Outcome
from lecritique.tasks.registry import load_environment
from lecritique.tasks.validate import validate_environment

GOLD = [
    "42", "-3", "0", r"\frac13", "$1/3$", r"x^2+1", "(1,2)", r"[0,1)", r"\{1,2\}", r"\infty", r"2\pi", "$x=3$",
    "1,000,000", "e", "Yes", "no",
    r"\text{odd}", "(B)", r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\log_2 3", r"3+4i", "0.5",
    r"The sum is $\boxed{\frac{7}{2}}$.", r"90^\circ", r"50\%", r"\emptyset", "2^{10}", r"n!", r"\sqrt{2}", "10^6",
]  # fmt: skip


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def deepmath_rows():
    return [
        {
            "question": f"Question {number}: how much is it?",
            "final_answer": answer,
            "difficulty": 5.0,
            "topic": "Mathematics",
            **{f"r1_solution_{k}": f"Way {k} to {number} ends in \\boxed{{{answer}}}." for k in (1, 2, 3)},
        }
        for number, answer in enumerate(GOLD)
    ]


def load(file, **options):
    return load_environment("math", {"file": str(file), "limit_seconds": 2.0, **options})


@pytest.fixture(scope="module")
def gold_file(tmp_path_factory):
    return written(tmp_path_factory.mktemp("math") / "gold.jsonl", deepmath_rows())


@pytest.fixture(scope="module")
def environment(gold_file):
    environment = load(gold_file, solution_columns=["r1_solution_1", "r1_solution_2", "r1_solution_3"])
    yield environment
    environment.close()


@pytest.mark.parametrize("options", [{}, {"require_box": False}], ids=["boxes", "any text"])
def test_gold_pays_and_junk_does_not(gold_file, options):
    environment = load(gold_file, limit_seconds=0.3, **options)
    report = validate_environment(environment, junk_items=20 if not options else 1)
    assert report.ok and report.junk_kinds >= 20, report.lines(50)
    environment.close()


def test_the_sample_that_comes_with_the_package_is_sound():
    (options,) = MathEnvironment.validation_parts().values()
    environment = load_environment("math", {**options, "limit_seconds": 0.5})
    report = validate_environment(environment, junk_items=2)
    assert report.ok and report.gold_rows == 200, report.lines(30)
    # The same numbers, written otherwise: not a comparison of strings.
    fraction, surd = environment.task(0), environment.task(6)
    assert environment.score(fraction, r"\boxed{1/6}") == environment.score(surd, r"\boxed{\sqrt{18}}") == 1.0
    assert environment.score(fraction, r"\boxed{1/7}") == environment.score(surd, r"\boxed{\sqrt{19}}") == 0.0
    environment.close()


def test_junk_in_a_box_scores_nothing(gold_file):
    environment = load(gold_file, limit_seconds=0.5)
    for row in (0, 3, 14):
        for kind, junk in JUNK.items():
            score = environment.score(environment.task(row), f"so \\boxed{{{junk}}}")
            assert score == 0.0, f"row {row}: {kind}"
    environment.close()


SPRAYS = {
    "boxes sprayed": "".join(f"\\boxed{{{n}}}" for n in range(100)),
    "a list in the box": "\\boxed{" + ", ".join(str(n) for n in range(100)) + "}",
    "a range in the box": r"\boxed{0 \le x \le 100}",
    "a set in the box": r"\boxed{\mathbb{Z}}",
    "or": r"\boxed{41 \text{ or } 42}",
    "unclosed": r"\boxed{42",
    "no box": "42",
    "the right box, then a wrong one": r"\boxed{42} \boxed{41}",
    "tower": r"\boxed{9^{9^{9^9}}}",
    "parentheses": "\\boxed{" + "(" * 500 + "1" + ")" * 500 + "}",
    "nan": r"\boxed{\text{nan}}",
    "division by zero": r"\boxed{\frac{42}{0}}",
    "long": "\\boxed{" + "1+" * 5000 + "1}",
    "injection": r"\boxed{__import__('os').system('exit 1') or 42}",
    "other digits": "\\boxed{\u0664\u0662x}",
    "empty text": r"\boxed{\text{}}",
}


@pytest.mark.parametrize("text", SPRAYS.values(), ids=SPRAYS)
def test_ways_of_not_answering_42(environment, text):
    task = environment.task(0)
    environment._pool.limit_seconds = 0.5
    assert environment.score(task, text) == 0.0
    environment._pool.limit_seconds = 2.0
    assert environment.score(task, "so $\\boxed{42.0}$.") == 1.0


def test_words_are_compared_as_words(environment):
    """Parsed as mathematics, `no` is n*o, which equals o*n."""
    yes, no = environment.task(14), environment.task(15)
    assert environment.score(yes, r"\boxed{\text{YES}}") == environment.score(no, r"\boxed{No.}") == 1.0
    assert environment.score(no, r"\boxed{on}") == environment.score(yes, r"\boxed{sey}") == 0.0


def test_without_a_box_only_where_that_is_allowed(gold_file, environment):
    assert environment.score(environment.task(0), "The answer is $42$.") == 0.0
    lenient = load(gold_file, require_box=False)
    assert lenient.score(lenient.task(0), "The answer is $42$.") == 1.0
    assert lenient.score(lenient.task(0), "The answer is $43$.") == 0.0
    lenient.close()


def test_a_comparison_that_fails_gives_no_reward(environment, monkeypatch):
    """Fault 47: never 0, which would say that the answer is wrong."""
    for outcome in (Outcome.RAISED, Outcome.DIED):
        monkeypatch.setattr(environment._pool, "compare", lambda *a, **k: Comparison(outcome=outcome))  # noqa: B023
        with pytest.raises(VerifierFailure, match="math-verify failed"):
            environment.start(environment.task(0)).reply(r"\boxed{41}")
    for outcome in (Outcome.TIMEOUT, Outcome.EXHAUSTED):
        monkeypatch.setattr(environment._pool, "compare", lambda *a, **k: Comparison(outcome=outcome))  # noqa: B023
        assert environment.start(environment.task(0)).reply(r"\boxed{41}") == Reply(reward=0.0)


def test_a_gold_answer_that_math_verify_cannot_compare_gives_no_reward(tmp_path):
    environment = load(written(tmp_path / "a.jsonl", [{"question": "q", "final_answer": "1/0"}]))
    with pytest.raises(VerifierFailure, match="ValueError"):
        environment.start(environment.task(0)).reply(r"\boxed{42}")
    assert environment.start(environment.task(0)).reply(r"\boxed{1/0}").reward == 1.0
    environment.close()


def test_question_answer_and_solution_of_a_row(environment):
    task = environment.task(3)
    assert task.messages[-1].content == (
        "Question 3: how much is it?\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    assert task.reference.answer == r"\frac13"
    assert task.reference.solution == r"Way 1 to 3 ends in \boxed{\frac13}."
    assert task.metadata["source_row"] == 3 and len({environment.task(row).task_id for row in range(30)}) == 30


def test_the_first_solution_that_is_not_blank(tmp_path):
    rows = [{"question": "q", "final_answer": "1", "a": None, "b": " ", "c": ["third"]}]
    columns = ["a", "b", "c"]
    environment = load(written(tmp_path / "a.jsonl", rows), solution_columns=columns)
    assert environment.task(0).reference.solution == "third"
    assert load(written(tmp_path / "a.jsonl", rows), solution_columns=columns[:2]).task(0).reference.solution is None


def test_the_prompt_is_the_users(gold_file):
    environment = load(gold_file, prompt_template="Q: {question} {A} \\boxed{}", system_prompt="Be brief.", rows=2)
    messages = environment.task(1).messages
    assert [message.role for message in messages] == ["system", "user"] and len(environment) == 2
    assert messages[1].content == "Q: Question 1: how much is it? {A} \\boxed{}"


@pytest.mark.parametrize(
    ("answer", "written_as"),
    [(42, "42"), (0, "0"), (2.0, "2"), (0.5, "0.5"), (["7"], "7"), (["$1$", "2"], "1, 2"), ("so \\boxed{5}", "5")],
)
def test_gold_answers_of_several_types(tmp_path, answer, written_as):
    environment = load(written(tmp_path / "a.jsonl", [{"question": "q", "final_answer": answer}]))
    assert environment.task(0).reference.answer == written_as


@pytest.mark.parametrize(
    "answer", ["", "  ", "$$", "\\boxed{}", None, [], [""], ["1", ""], {}, True, float("nan"), "\ud800", "x" * 501]
)
def test_a_gold_answer_that_is_none_is_refused_with_its_row(tmp_path, answer):
    """Fault 50."""
    rows = [{"question": f"q{n}", "final_answer": "1"} for n in range(3)] + [{"question": "q", "final_answer": answer}]
    with pytest.raises(DataError, match=r"a\.jsonl.*row 3.*'final_answer'.*expected a"):
        load(written(tmp_path / "a.jsonl", rows))


GOOD = {"question": "q", "final_answer": "1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(GOOD) + "\n{", r"row 1 \(line 2\) is not JSON"),
        ("\n" + json.dumps(GOOD) + "\n\n[1]", r"row 1 \(line 4\) is a list, expected a JSON object"),
        ("[" * 100_000, r"row 0 \(line 1\) is not JSON"),
        ('{"question": "q", "answer": "1"}', "row 0 has no column 'final_answer', its columns are answer, question"),
        ('{"problem": "q", "final_answer": "1"}', "row 0 has no column 'question'"),
        ('{"question": " ", "final_answer": "1"}', "row 0 has ' ' in column 'question', expected a question"),
        ('{"question": 3, "final_answer": "1"}', "row 0 has 3 in column 'question'"),
        ('{"question": "\\ud800", "final_answer": "1"}', "row 0 has .* in column 'question'"),
        (2 * (json.dumps(GOOD) + "\n"), "row 1 has the question of row 0.*task.repeated"),
        ("\n \n", "no rows"),
    ],
)
def test_a_bad_file_is_named_with_row_and_column(tmp_path, text, words):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        load(tmp_path / "a.jsonl")
    assert "a.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_a_solution_column_that_is_not_there_is_found_at_once(gold_file):
    with pytest.raises(DataError, match=r"no column 'r1_solution_9'.*did you mean 'r1_solution_"):
        load(gold_file, solution_columns=["r1_solution_9"])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ConfigurationError, "exactly one of task.file and task.dataset"),
        ({"file": "a.jsonl", "dataset": "b"}, ConfigurationError, "exactly one"),
        ({"file": "no.jsonl"}, DataError, "no such file"),
        ({"file": "a.csv"}, DataError, "expected a .jsonl or .parquet file"),
        ({"file": "empty"}, DataError, "or a folder of such files"),
        ({"file": "both"}, DataError, "both"),
        ({"file": "bad.parquet"}, DataError, "not a readable Parquet file"),
        ({"file": "a.jsonl", "split": "test"}, ConfigurationError, "task.split"),
        ({"file": "a.jsonl", "dataset_configuration": "x"}, ConfigurationError, "task.dataset_configuration"),
        ({"file": "a.jsonl", "prompt_template": "hello"}, ConfigurationError, "lacks {question}"),
        ({"file": "a.jsonl", "limit_seconds": 0.0}, ConfigurationError, "task.limit_seconds"),
        ({"file": "a.jsonl", "judge": {"type": "endpoint"}}, ConfigurationError, "task.judge.endpoint.url"),
        ({"file": "a.jsonl", "judge": {"type": "oracle"}}, ConfigurationError, "task.judge"),
    ],
)
def test_options_that_do_not_fit(tmp_path, monkeypatch, options, error, words):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "a.csv", "bad.parquet"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "a.jsonl").touch()
    (tmp_path / "both" / "a.parquet").touch()
    with pytest.raises(error, match=words):
        load_environment("math", options)


def test_repeated_questions_are_dropped_on_request(tmp_path):
    rows = [GOOD, GOOD, {**GOOD, "question": "r"}]
    environment = load(written(tmp_path / "a.jsonl", rows), repeated="drop")
    assert [environment.task(row).metadata["source_row"] for row in range(len(environment))] == [0, 2]


@pytest.mark.parametrize("shards", [1, 2])
def test_parquet_holds_the_same_rows(tmp_path, gold_file, shards):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows, folder = deepmath_rows(), tmp_path / "data"
    folder.mkdir()
    for shard in range(shards):
        table = pyarrow.Table.from_pylist(rows[shard * 15 : (shard + 1) * 15 if shards > 1 else None])
        parquet.write_table(table, folder / f"train-{shard}.parquet", row_group_size=4)
    options = {"solution_columns": ["r1_solution_2"]}
    from_parquet = load(folder if shards > 1 else folder / "train-0.parquet", **options)
    from_lines = load(gold_file, **options)
    assert len(from_parquet) == len(from_lines) == 30
    for row in range(30):
        ours, theirs = from_parquet.task(row), from_lines.task(row)
        assert (ours.task_id, ours.messages, ours.reference) == (theirs.task_id, theirs.messages, theirs.reference)
    with pytest.raises(DataError, match=r"train-0\.parquet.*row 0 has no column 'answer'"):
        load(folder, answer_column="answer")


def test_a_hub_data_set_holds_the_same_rows(tmp_path, gold_file):
    """The library itself, on a local folder: no hub is reachable in tests."""
    pytest.importorskip("datasets")
    folder = tmp_path / "hub"
    folder.mkdir()
    written(folder / "train.jsonl", deepmath_rows())
    options = {"dataset": str(folder), "solution_columns": ["r1_solution_3"]}
    environment = load_environment("math", options)
    other = load(gold_file, solution_columns=["r1_solution_3"])
    for row in range(30):
        assert environment.task(row).messages == other.task(row).messages
        assert environment.task(row).reference == other.task(row).reference
    with pytest.raises(DataError, match="row 0 has no column 'answer'"):
        load_environment("math", {**options, "answer_column": "answer"})
    with pytest.raises(DataError, match=r"task.dataset = .*split 'test'.*could not be loaded"):
        load_environment("math", {**options, "split": "test"})


def test_without_the_library_of_the_hub_its_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'lecritique\[datasets\]'"):
        load_environment("math", {"dataset": str(tmp_path)})


def test_two_processes_with_different_hash_seeds_agree(gold_file):
    script = (
        "from lecritique.tasks.registry import load_environment\n"
        f"e = load_environment('math', {{'file': {gold_file!r}, 'rows': 8}})\n"
        "tasks = [e.task(row) for row in range(len(e))]\n"
        "print([(t.task_id, e.score(t, '\\\\boxed{\\\\frac{2}{6}}'), e.score(t, e.gold(t, ()))) for t in tasks])\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert outputs[0] == outputs[1] and outputs[0].count("1.0, 1.0") == 2


SCHEMAS = {
    "aime24": {"id": 60, "problem": "P?", "solution": "...", "answer": "204"},
    "aime25": {"problem_idx": 1, "problem": "P?", "answer": 70, "problem_type": ["Algebra"]},
    "aime26": {"problem_idx": 1, "problem": "P?", "answer": 277},
    "hmmt25": {"problem_idx": 1, "problem": "P?", "answer": r"\frac{1}{576}", "problem_type": []},
    "minerva": {"problem": "P?", "solution": r"We get \boxed{4.5e33}.", "type": "x", "idx": 0},
    "olympiadbench": {"id": 1, "question": "P?", "solution": ["S"], "final_answer": ["$2$"], "context": None},
    "deepmath": {"question": "P?", "final_answer": "1", **{f"r1_solution_{k}": "S" for k in (1, 2, 3)}},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_recipes_read_files_of_the_published_columns(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(name)
    config = compose(recipe, arm=recipe.default_arm, overrides=[])
    options = dict(config.task.options)
    if name == "deepmath":
        options["file"] = f"{name}.jsonl"
        assert options.pop("dataset") == "zwhe99/DeepMath-103K"
        assert (config.rollout.batch_size, config.policy.minibatch_size) == (1024, 256)
    else:
        with pytest.raises(DataError, match=f"'{name}.jsonl': there is no such file"):
            load_environment("math", options)
        assert config.rollout.group_size == (8 if name in ("minerva", "olympiadbench") else 32)
        assert (config.sampling.temperature, config.sampling.top_p, config.sampling.top_k) == (0.6, 0.95, 20)
    written(tmp_path / f"{name}.jsonl", [SCHEMAS[name]])
    environment = load_environment("math", options)
    task = environment.task(0)
    assert environment.start(task).reply(environment.gold(task, task.messages)).reward == 1.0
    environment.close()
    missing = {key: value for key, value in SCHEMAS[name].items() if key != options["answer_column"]}
    written(tmp_path / f"{name}.jsonl", [missing])
    with pytest.raises(DataError, match=rf"'{name}.jsonl': row 0 has no column '{options['answer_column']}'"):
        load_environment("math", options)
