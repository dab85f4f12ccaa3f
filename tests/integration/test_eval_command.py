"""`lecritique eval`: the same policy by every name, resumed, refused by name, failures counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lecritique.rollout.engine import EmbeddedEngine
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.build import build, load_base
from lecritique.runtime.training import train
from tests.integration.command_line import Answer, call
from tests.integration.short_runs import small_config

TASK = "demo task.rows=6 task.min_empty=6"
FAILING = "tests.integration.evaluated_tasks:Failing"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run of two steps with a checkpoint after each."""
    path = tmp_path_factory.mktemp("runs") / "run"
    base = load_base(small_config("run.checkpoint_every=1", arm="mean"))
    train(build(base), RunDirectory.create(path, base.config))
    return path


@pytest.fixture
def evaluate(capfd, monkeypatch, tmp_path):
    def command(source: object, *arguments: str, out: str = "e") -> Answer:
        return call(capfd, monkeypatch, "eval", str(source), *arguments, "--out", str(tmp_path / out))

    return command


def summary(tmp_path, out: str = "e") -> dict:
    return json.loads((tmp_path / out / "summary.json").read_text())


def results(tmp_path, out: str = "e") -> list[dict]:
    lines = (tmp_path / out / "problems.jsonl").read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda result: (result["set"], result["row"]))


def test_a_run_its_checkpoint_and_its_folder_are_one_policy(run, evaluate, tmp_path):
    sources = [run, run / "checkpoints" / "step-00000002", run / "weights" / "policy"]
    for out, source in zip("abc", sources, strict=True):
        assert evaluate(source, "--task", TASK, "--k", "2", out=out).code == 0
    found = [summary(tmp_path, out) for out in "abc"]
    assert len({one["policy"]["weights"] for one in found}) == 1
    assert results(tmp_path, "a") == results(tmp_path, "b") == results(tmp_path, "c")
    assert [one["policy"]["step"] for one in found] == [2, 2, None]
    first = evaluate(run / "checkpoints" / "step-00000001", "--task", TASK, "--k", "2", out="d")
    assert first.code == 0 and summary(tmp_path, "d")["policy"]["weights"] != found[0]["policy"]["weights"]


def test_a_run_that_is_not_finished_gives_its_newest_checkpoint(run, evaluate, tmp_path):
    status = run / "status.json"
    before = status.read_text()
    status.write_text(before.replace("finished", "interrupted"))
    try:
        assert evaluate(run, "--task", TASK, "--k", "1").code == 0
    finally:
        status.write_text(before)
    assert evaluate(run, "--task", TASK, "--k", "1", out="f").code == 0
    assert summary(tmp_path) == summary(tmp_path, "f")


def test_a_second_call_does_only_what_is_missing(evaluate, tmp_path):
    arguments = ("--task", TASK, "--task", "demo task.rows=3", "--k", "2")
    assert evaluate("tiny", *arguments).code == 0
    wanted, whole = summary(tmp_path), results(tmp_path)
    file = tmp_path / "e" / "problems.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:4]) + '{"set": "demo')
    (tmp_path / "e" / "summary.json").unlink()
    again = evaluate("tiny", *arguments)
    assert again.code == 0 and "4 of 9 problems are done already" in again.out
    assert results(tmp_path) == whole and summary(tmp_path) == wanted
    assert wanted["average"]["of"] == "2 sets, equally"


def test_failures_stay_in_the_denominator(evaluate, tmp_path):
    assert evaluate("tiny", "--task", FAILING, "--k", "2", "--by", "kind").code == 0
    figures = summary(tmp_path)["sets"][FAILING]
    assert (figures["score"], figures["failed"], figures["samples"]) == (0.25, 4, 8)
    assert figures["failures"] == {"environment": 2, "verifier": 2}
    # What a task's own code makes of a hostile text counts as not told.
    assert (figures["unread"], figures["readable"]) == (6, 6)
    assert {name: split["score"] for name, split in figures["splits"].items()} == {"0": 0, "1": 0, "2": 0, "3": 1}


def test_all_samples_failing_measures_no_policy(evaluate, tmp_path):
    answer = evaluate("tiny", "--task", FAILING, "sampling.max_total_tokens=2", "--k", "2")
    assert answer.code == 4 and "every sample" in answer.err and "8 budget" in answer.err
    assert summary(tmp_path)["sets"][FAILING]["score"] == 0.0


def test_an_engine_that_fails_ends_it_and_the_problem_is_done_again(evaluate, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("lecritique.rollout.sampler.Sampler.chunk", _no_memory)
        answer = evaluate("tiny", "--task", TASK, "--k", "2")
    assert answer.code == 4 and "out of memory" in answer.err
    assert not (tmp_path / "e" / "problems.jsonl").exists()
    assert evaluate("tiny", "--task", TASK, "--k", "2").code == 0 and len(results(tmp_path)) == 6


def _no_memory(*_: object) -> None:
    raise RuntimeError("out of memory")


def test_an_interrupted_evaluation_keeps_what_is_finished(evaluate, tmp_path, monkeypatch):
    advance, calls = EmbeddedEngine.advance, []

    def interrupted(self: EmbeddedEngine) -> bool:
        calls.append(1)
        if len(list((tmp_path / "e").glob("problems.jsonl"))):
            raise KeyboardInterrupt
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedEngine, "advance", interrupted)
        answer = evaluate("tiny", "--task", TASK, "--task", "demo task.rows=3", "--k", "2")
    assert answer.code == 130 and calls
    kept = len(results(tmp_path))
    assert kept
    again = evaluate("tiny", "--task", TASK, "--task", "demo task.rows=3", "--k", "2")
    assert again.code == 0 and f"{kept} of 9 problems are done" in again.out


def test_sampling_is_its_own(evaluate, tmp_path):
    arguments = ("--task", TASK, "sampling.temperature=0.5", "sampling.top_p=0.9", "sampling.top_k=3", "--k", "1")
    assert evaluate("tiny", *arguments, "--rows", "2", "--seed", "7").code == 0
    found = summary(tmp_path)["sets"][TASK]
    assert (found["temperature"], found["top_p"], found["top_k"], found["problems"]) == (0.5, 0.9, 3, 2)


def test_every_set_has_the_samples_of_its_own_recipe(evaluate, tmp_path):
    """Section 9: avg@32 on AIME, avg@8 on Minerva, in one call."""
    two, three = f"{TASK} rollout.group_size=2", "demo task.rows=3 rollout.group_size=3"
    knights = "knights-eval task.rows=2 sampling.max_turn_tokens=2 sampling.max_total_tokens=4096"
    tasks = [word for text in (two, three, knights) for word in ("--task", text)]
    answer = evaluate("tiny", *tasks, "runtime.dtype=float32")
    assert answer.code == 0
    sets = summary(tmp_path)["sets"]
    assert [figures["k"] for figures in sets.values()] == [2, 3, 16]
    assert [figures["samples"] for figures in sets.values()] == [12, 9, 32]
    assert list(sets[three]["pass_at_k"]) == ["1", "2", "3"] and list(sets[two]["pass_at_k"]) == ["1", "2"]
    scores = [figures["score"] for figures in sets.values()]
    # Sets count the same in the average, however often their problems are asked.
    assert summary(tmp_path)["average"]["score"] == pytest.approx(sum(scores) / 3)
    assert evaluate("tiny", "--task", two, "--task", three, "--k", "1", out="k").code == 0
    assert [figures["k"] for figures in summary(tmp_path, "k")["sets"].values()] == [1, 1]


def test_rows_kept_for_evaluation_are_the_default(evaluate, tmp_path):
    held = ("--task", "demo task.rows=40 data.evaluation_fraction=0.3", "--k", "1")
    assert evaluate("tiny", *held).code == 0
    assert evaluate("tiny", *held, "--split", "train", out="t").code == 0
    rows = [{result["row"] for result in results(tmp_path, out)} for out in "et"]
    assert rows[0] and not rows[0] & rows[1] and rows[0] | rows[1] == set(range(40))


def test_it_says_when_the_run_trained_on_these_rows(run, evaluate):
    own = "demo task.rows=16 task.min_empty=6 task.max_empty=10"
    assert "trained on rows of this very task" in evaluate(run, "--task", own, "--k", "1").out
    assert "trained on" not in evaluate(run, "--task", TASK, "--k", "1", out="o").out


@pytest.mark.parametrize(
    ("source", "arguments", "said"),
    [
        ("tiny", (), "give --task"),
        ("tiny", ("--task", " "), "expected a recipe or a task type"),
        ("tiny", ("--task", "demo 'x"), "No closing quotation"),
        ("tiny", ("--task", "demo", "--task", "demo"), "is given twice"),
        ("tiny", ("--task", "dmeo"), "Did you mean 'demo'"),
        ("tiny", ("--task", "demo task.rwos=3"), "rwos"),
        ("tiny", ("--task", "demo", "--k", "0"), "'--k'"),
        ("tiny", ("--task", "demo", "--pass-at", "1,x"), "--pass-at"),
        ("tiny", ("--task", "demo", "--split", "evaluation"), "keeps no rows"),
        ("tiny", ("--task", "demo", "sampling.max_total_tokens=9999"), "over the context length"),
        ("tiny", ("--task", "demo runtime.dtype=float64", "--task", "demo task.rows=3"), "'runtime.dtype'"),
        ("no-such-model", ("--task", "demo"), "no-such-model"),
        ("./no/such/run", ("--task", "demo"), "there is no run, checkpoint or model folder './no/such/run'"),
        ("runs/no-such-run", (), "there is no run, checkpoint or model folder 'runs/no-such-run'"),
    ],
)
def test_bad_input_is_one_sentence(evaluate, source, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    answer = evaluate(source, *arguments)
    assert answer.code == 2 and said in answer.err and "Traceback" not in answer.err
    assert answer.err.strip().count("\n") == 0


def test_a_damaged_checkpoint_is_refused(run, evaluate, tmp_path):
    copy = tmp_path / "run" / "checkpoints" / "step-00000001"
    copy.mkdir(parents=True)
    assert evaluate(copy, "--task", TASK).code == 2
    assert "incomplete" in evaluate(copy, "--task", TASK, out="g").err


def test_a_run_without_a_checkpoint_is_refused(run, evaluate, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "environment.json"):
        (bare / name).write_text((run / name).read_text())
    answer = evaluate(bare, "--task", TASK)
    assert answer.code == 2 and "no checkpoint" in answer.err


def test_changed_settings_are_refused(evaluate):
    assert evaluate("tiny", "--task", TASK, "--k", "1").code == 0
    answer = evaluate("tiny", "--task", TASK, "--k", "2")
    assert answer.code == 2 and f"'sets.{TASK}.k' = 1, this call has 2" in answer.err
