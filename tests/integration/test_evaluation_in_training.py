"""Evaluation between steps: training is the same to the last bit, and what cannot be evaluated is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lecritique.analysis.read import load_run
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.seeds import derive_seed
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.build import build, load_base
from lecritique.runtime.evaluation import evaluate_set, evaluation_metrics
from lecritique.runtime.resuming import resume
from lecritique.runtime.training import train
from tests.integration.run_files import differences
from tests.integration.short_runs import small_config, small_parts

HELD_OUT = ("data.evaluation_fraction=0.4", "run.steps=3", "run.save_rollouts_every=1")
EVALUATED = ("run.eval_every=1", "eval.k=3", "eval.temperature=0.7", "eval.top_k=5")


def trained_run(path, *overrides: str, arm: str = "pvf"):
    base = load_base(small_config(*HELD_OUT, *overrides, arm=arm))
    train(build(base), RunDirectory.create(path, base.config))
    return path


@pytest.mark.parametrize("arm", ["pvf", "vaspo"])
def test_training_is_the_same_to_the_last_bit(tmp_path, arm):
    plain = trained_run(tmp_path / "plain", arm=arm)
    evaluated = trained_run(tmp_path / "evaluated", *EVALUATED, arm=arm)
    added = {
        "evaluation_score", "evaluation_pass_at_k", "evaluation_failed", "evaluation_truncated_fraction",
        "evaluation_unread_fraction",
    }  # fmt: skip
    assert differences(plain, evaluated) == sorted(f"metric {name}" for name in added)
    versions = [(run / "versions.jsonl").read_text() for run in (plain, evaluated)]
    assert versions[0] == versions[1]


def test_metrics_and_events_say_what_was_found(tmp_path):
    path = trained_run(tmp_path / "run", "run.eval_every=2", "eval.k=2", 'eval.tasks.easy={max_empty=6,rows=3}',
                       'eval.tasks.hard={min_empty=10,rows=2}', arm="mean")  # fmt: skip
    run = load_run(path)
    assert np.isfinite(run.series("evaluation_score")).tolist() == [False, True, True]
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    found = [event for event in events if event["kind"] == "evaluation"]
    assert [event["step"] for event in found] == [2, 3]
    for event, score in zip(found, run.series("evaluation_score")[1:], strict=True):
        assert {name: figures["problems"] for name, figures in event["sets"].items()} == {"easy": 3, "hard": 2}
        assert score == pytest.approx(np.mean([figures["score"] for figures in event["sets"].values()]))


def test_it_measures_the_policy_as_it_is_now():
    """The engine holds the policy of the step before until it decodes again."""
    parts = small_parts("run.eval_every=1", "data.evaluation_fraction=0.4", "eval.k=4", arm="mean")
    try:
        before, again = evaluation_metrics(parts)[1], evaluation_metrics(parts)[1]
        head = parts.learner.policy.model.get_output_embeddings().weight
        head.data.zero_()  # every token is as likely as any other now
        parts.learner.policy._version += 1
        parts.engine.adopt(parts.learner.policy.publish())
        after = evaluation_metrics(parts)[1]
    finally:
        parts.engine.close()
    assert before == again and before["evaluation"]["score"] > 0
    assert after["evaluation"]["score"] == 0


def test_its_samples_are_none_of_trainings():
    parts = small_parts("run.eval_every=1", "data.evaluation_fraction=0.4")
    seeds = {problems.seed for problems in parts.evaluation}
    parts.engine.close()
    assert seeds == {derive_seed(0, "evaluation.evaluation")} and not seeds & {0, derive_seed(0, "data")}
    assert not set(parts.evaluation[0].rows) & set(parts.data.rows)


def test_a_sample_depends_on_nothing_beside_it():
    parts = small_parts("run.eval_every=1", "data.evaluation_fraction=0.6", "eval.k=2")
    problems = parts.evaluation[0]
    try:
        whole = evaluate_set(problems, engine=parts.engine, renderer=parts.renderer)
        skipped = problems.rows[::2]
        rest = evaluate_set(problems, engine=parts.engine, renderer=parts.renderer, done=skipped)
    finally:
        parts.engine.close()
    assert rest == [result for result in whole if result.row not in skipped] and rest


def test_a_resumed_run_may_evaluate_otherwise(tmp_path):
    path = trained_run(tmp_path / "run", arm="mean")
    found = resume(path, ["run.steps=4", "run.eval_every=1", "eval.k=2"])
    train(found.begin(), found.directory, first=found.first)
    assert np.isfinite(load_run(path).series("evaluation_score")).tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("overrides", "kind", "said"),
    [
        (("run.eval_every=1",), ConfigurationError, "'data.evaluation_fraction' or 'eval.tasks'"),
        (
            ("run.eval_every=1", "data.evaluation_fraction=0.3", "runtime.loop=asynchronous"),
            ConfigurationError,
            "'runtime.loop' = 'asynchronous' never rests",
        ),
        (("run.eval_every=1", "eval.tasks.a={rwos=3}"), ConfigurationError, "rwos"),
        (("run.eval_every=1", "eval.tasks.a={type='no_such'}"), ConfigurationError, "no_such"),
        (("run.eval_every=1", "data.evaluation_fraction=0.000001"), DataError, "'evaluation' has no problem"),
        (("run.eval_every=-1",), ConfigurationError, "run.eval_every"),
        (("eval.k=0",), ConfigurationError, "eval.k"),
        (("eval.temperature=0",), ConfigurationError, "eval.temperature"),
        (("eval.tasks=3",), ConfigurationError, "eval.tasks"),
    ],
)
def test_bad_input_is_refused_before_the_run_starts(overrides, kind, said):
    with pytest.raises(kind) as refused:
        load_base(small_config(*overrides))
    assert said in str(refused.value)
