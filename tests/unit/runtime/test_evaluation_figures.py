"""Figures of an evaluation by hand: what failed stays in the denominator, and every set counts the same."""

from __future__ import annotations

import numpy as np
import pytest

from lecritique.analysis.evaluation import average_name, default_pass_ks, evaluation_summary
from lecritique.numerics.statistics.bootstrap import cluster_bootstrap
from lecritique.runs.evaluations import ProblemResult
from lecritique.runtime.evaluation import evaluates, scored


def result(row: int, *scores: float | None, set: str = "a", split: str | None = None, **columns) -> ProblemResult:
    k = len(scores)
    statuses = tuple("ok" if s is not None else "verifier" for s in scores)
    return ProblemResult(
        set=set, row=row, task_id=f"t{row}", split=split, scores=scores, statuses=columns.get("statuses", statuses),
        answered=columns.get("answered", (True,) * k), tokens=columns.get("tokens", (3,) * k),
    )  # fmt: skip


def settings(**sets: dict) -> dict:
    shared = {"reward_range": [0.0, 1.0], "k": 2, "task": {"type": "math"}}
    return {"split_by": None, "sets": {name: {**shared, **own} for name, own in sets.items()}}


def test_what_failed_early_stays_in_the_denominator():
    """Known fault 54: 100 tasks, 20 fail early, 40 right."""
    scores = [None] * 20 + [1.0] * 40 + [0.0] * 40
    found = scored([result(row, score) for row, score in enumerate(scores)], k=1, reward_range=(0.0, 1.0))
    assert (found.score, found.failed, found.samples, found.pass_at_k) == (0.4, 20, 100, 0.4)


@pytest.mark.parametrize(("n", "c", "k", "wanted"), [(4, 1, 4, 1.0), (4, 1, 2, 0.5), (8, 3, 4, 0.9285714285714286)])
def test_pass_at_k_by_hand(n, c, k, wanted):
    found = scored([result(0, *[1.0] * c, *[0.0] * (n - c))], k=k, reward_range=(0.0, 1.0))
    assert found.pass_at_k == pytest.approx(wanted, abs=1e-15)


def test_pass_at_k_is_not_reported_for_too_few_samples():
    summary = evaluation_summary([result(0, 1.0, 0.0)], settings(a={}), pass_ks=(1, 2, 4))
    assert summary["sets"]["a"]["pass_at_k"] == {"1": 0.5, "2": 1.0, "4": None}


def test_a_failure_earns_the_lowest_reward_of_the_range():
    found = scored([result(0, None, 1.0), result(1, -1.0, None)], k=1, reward_range=(-1.0, 1.0))
    assert found.score == pytest.approx((-1 + 1 - 1 - 1) / 4) and found.failed == 2 and found.pass_at_k == 0.25


def test_a_part_of_the_reward_is_not_correct():
    found = scored([result(0, 0.75, 0.25)], k=2, reward_range=(0.0, 1.0))
    assert found.score == 0.5 and found.pass_at_k == 0.0


def test_counts_by_kind():
    results = [
        result(0, None, 0.0, statuses=("verifier", "truncated"), answered=(None, False), tokens=(0, 8)),
        result(1, None, 1.0, statuses=("environment", "ok"), answered=(None, True), tokens=(0, 4)),
    ]
    figures = evaluation_summary(results, settings(a={}))["sets"]["a"]
    assert figures["failures"] == {"environment": 1, "verifier": 1}
    assert (figures["failed"], figures["truncated"], figures["unread"], figures["readable"]) == (2, 1, 1, 2)
    assert figures["mean_tokens"] == 3.0


def test_sets_count_equally_whatever_their_size():
    results = [result(row, 1.0, 1.0) for row in range(3)] + [result(0, 0.0, 0.0, set="b")]
    summary = evaluation_summary(results, settings(a={}, b={}))
    assert summary["average"]["score"] == 0.5 and summary["average"]["interval"] == [0.5, 0.5]


def test_one_set_has_no_average():
    assert "average" not in evaluation_summary([result(0, 1.0, 0.0)], settings(a={}))


def test_the_interval_is_the_problem_bootstrap():
    results = [result(row, float(row % 2), float(row % 3 == 0)) for row in range(7)]
    means = np.array([np.mean(one.scores) for one in results])
    literal = cluster_bootstrap({"score": lambda rows: float(means[rows].mean())}, np.arange(7))["score"]
    figures = evaluation_summary(results, settings(a={}))["sets"]["a"]
    assert figures["interval"] == pytest.approx([literal.low, literal.high], abs=1e-12)
    assert literal.low < figures["score"] < literal.high


def test_splits_part_the_problems():
    results = [result(0, 1.0, 1.0, split="4"), result(1, 0.0, 0.0, split="5"), result(2, 0.0, 1.0, split="5")]
    figures = evaluation_summary(results, settings(a={}))["sets"]["a"]
    assert {name: (s["problems"], s["score"]) for name, s in figures["splits"].items()} == {
        "4": (1, 1.0),
        "5": (2, 0.25),
    }


def test_the_papers_averages_have_their_names():
    math = settings(**{name: {} for name in ("aime24", "aime25", "aime26", "hmmt25", "minerva", "olympiadbench")})
    assert average_name(math) == "the six math sets of VP, equally"
    del math["sets"]["minerva"]
    assert average_name(math) == "5 sets, equally"
    knights = {
        n: {"task": {"type": "knights_knaves", "split": n}} for n in ("held_out", "roles_9", "roles_10", "roles_11")
    }
    assert average_name(settings(**knights)) == "the four Knights and Knaves splits of VP, equally"
    knights["roles_11"] = knights["roles_10"]
    assert average_name(settings(**knights)) == "4 sets, equally"


@pytest.mark.parametrize(("k", "wanted"), [(1, (1,)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (32, (1, 2, 4, 8, 16, 32))])
def test_which_k_are_reported(k, wanted):
    assert default_pass_ks(k) == wanted


def test_when_a_run_evaluates():
    assert [done for done in range(1, 8) if evaluates(3, done=done, steps=7)] == [3, 6, 7]
    assert not any(evaluates(0, done=done, steps=7) for done in range(1, 8))
