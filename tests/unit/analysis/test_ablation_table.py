"""The ablation table: evaluations while training and in folders, paired with a reference arm, against plain sums."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lecritique.analysis.evaluation_figures import ablation, ablation_table, set_plots
from lecritique.analysis.evaluation_records import evaluations, training_scores
from lecritique.analysis.read import load_comparison
from lecritique.core.errors import DataError
from tests.unit.analysis.make_runs import make_comparison

SET = {"task": {"type": "knights_knaves"}, "problems": 3, "k": 2, "reward_range": [0.0, 1.0]}


def record(run, *events):
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"kind": "evalu')


def evaluation(step, **sets):
    return {"kind": "evaluation", "step": step, "sets": {name: {"score": score} for name, score in sets.items()}}


def folder(path, source, scores, described=SET):
    """`scores` maps a set to its problems' samples by row."""
    path.mkdir(parents=True)
    settings = {"policy": {"source": str(source)}, "sets": dict.fromkeys(scores, described)}
    (path / "eval.json").write_text(json.dumps(settings))
    lines = [
        {
            "set": name, "row": row, "task_id": "t", "split": None, "scores": samples,
            "statuses": ["ok"] * len(samples), "answered": [None] * len(samples), "tokens": [1] * len(samples),
        }
        for name, rows in scores.items()
        for row, samples in rows.items()
    ]  # fmt: skip
    (path / "problems.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"set": "torn')
    return path


@pytest.fixture
def two_arms(tmp_path):
    return make_comparison(tmp_path / "cmp", arms={"ppo": {}, "vaspo": {}}, seeds=(0, 1), steps=6, save_every=100)


def test_the_last_evaluation_of_each_seed_counts_and_sets_weigh_the_same(two_arms):
    for arm, shift in (("ppo", 0.0), ("vaspo", 0.1)):
        for seed in (0, 1):
            record(
                two_arms / arm / f"seed-{seed}",
                evaluation(2, a=0.9, b=0.9),
                evaluation(6, a=0.2 + shift + 0.1 * seed, b=0.5 + shift),
            )
    found = {column.title: column for column in ablation(load_comparison(two_arms), "ppo").columns}
    a, average = found["a, after step 6"], found["average of 2 sets, after step 6"]
    assert a.estimates["ppo"].estimate == pytest.approx(0.25) and a.differences["vaspo"].estimate == pytest.approx(0.1)
    assert average.estimates["vaspo"].estimate == pytest.approx(np.mean([0.3, 0.6, 0.4, 0.6]))
    assert a.estimates["ppo"].low == pytest.approx(0.2) and a.estimates["ppo"].high == pytest.approx(0.3)
    assert [plot.title for plot in set_plots(load_comparison(two_arms))] == ["a", "b"]


def test_what_a_resume_superseded_is_left_out(two_arms):
    run = two_arms / "ppo" / "seed-0"
    record(run, evaluation(2, a=0.1), evaluation(4, a=0.9), {"kind": "resumed", "step": 3}, {"kind": "evaluation"}, 3)
    assert training_scores(load_comparison(two_arms))["ppo", 0] == {2: {"a": 0.1}}


def test_folders_are_paired_by_problem_and_failed_samples_are_wrong(two_arms, tmp_path):
    comparison = load_comparison(two_arms)
    run = two_arms / "ppo" / "seed-0"
    folders = [
        folder(tmp_path / "e1", run / "checkpoints" / "3", {"s": {0: [1, 0], 1: [None, 1], 2: [0, 0]}}),
        folder(tmp_path / "e2", "/elsewhere/vaspo/seed-0", {"s": {0: [1, 1], 1: [1, 1]}}),
    ]
    found = ablation(comparison, "ppo", evaluations(comparison, folders))
    column = next(column for column in found.columns if column.title == "s, avg@2")
    assert column.estimates["ppo"].estimate == pytest.approx(1 / 3)
    assert column.estimates["vaspo"].estimate == 1.0
    # Problems 0 and 1 are common: 1 - 0.5 each, so that every resample of them has the same mean.
    difference = column.differences["vaspo"]
    assert (difference.estimate, difference.low, difference.high) == (0.5, 0.5, 0.5)
    assert found.notes == [f"{tmp_path / 'e2'}: 2 of 3 problems so far."]
    html = ablation_table(comparison, found)
    assert "s, avg@2" in html and "+0.500 (+0.500 to +0.500)" in html and "the reference" in html


def test_averages_over_folders_need_every_set(two_arms, tmp_path):
    comparison = load_comparison(two_arms)
    both = {"s": {0: [1, 1], 1: [0, 0]}, "t": {0: [1, 0]}}
    folders = [
        folder(tmp_path / "e1", two_arms / "ppo" / "seed-0", both),
        folder(tmp_path / "e2", two_arms / "vaspo" / "seed-0", {"s": {0: [1, 1]}}, SET | {"k": 4}),
    ]
    found = ablation(comparison, "ppo", evaluations(comparison, folders))
    average = found.columns[-1]
    assert average.title == "average of 2 sets, equally" and average.estimates["ppo"].estimate == pytest.approx(0.5)
    assert np.isnan(average.estimates["vaspo"].estimate)
    assert "The evaluations of s differ in their settings: do not compare them." in found.notes


def test_a_folder_of_another_policy_or_twice_the_same_is_refused(two_arms, tmp_path):
    comparison = load_comparison(two_arms)
    stranger = folder(tmp_path / "e1", "/elsewhere/mean/seed-0", {"s": {0: [1, 1]}})
    with pytest.raises(DataError, match="which is no run of"):
        evaluations(comparison, [stranger])
    twice = [folder(tmp_path / name, two_arms / "ppo" / "seed-0", {"s": {0: [1, 1]}}) for name in ("e2", "e3")]
    with pytest.raises(DataError, match="are both evaluations of arm ppo, seed 0, on 's'"):
        evaluations(comparison, twice)
    (tmp_path / "e4").mkdir()
    for content in (None, "nonsense", "[]", '{"policy": {"source": 3}, "sets": {}}', '{"policy": {"source": "x"}}'):
        if content is not None:
            (tmp_path / "e4" / "eval.json").write_text(content)
        with pytest.raises(DataError, match="no folder of an evaluation"):
            evaluations(comparison, [tmp_path / "e4"])
