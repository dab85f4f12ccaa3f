"""Validation of all tasks: two processes each, hangs ended, nothing skipped in silence."""

import os

import pytest

from lecritique.tasks import validate_all as module
from lecritique.tasks.registry import class_of, task_names
from lecritique.tasks.validate_all import Job, all_jobs, validate_all


def job(name, **more):
    return Job(label=name, task=f"tests.tasks.broken_environments:{name}", options={}, **more)


def outcomes(*jobs):
    return {outcome.job.label: outcome for outcome in validate_all(jobs, items=3, junk_items=1)}


def kinds(outcome):
    return {problem.kind for problem in outcome.report.problems}


def test_each_kind_of_outcome(monkeypatch):
    monkeypatch.setattr(module, "_JOB_SECONDS", 20.0)
    found = outcomes(
        job("Sound"), job("HashDependent"), job("Slow"), job("Dying"), job("Unloadable"),
        job("Unloadable2", part=True), Job(label="listed", task="x", options={}, not_validated="it needs a file"),
        Job(label="chain_sum", task="reasoning_gym", options={"dataset": "chain_sum", "rows": 5}, part=True),
    )  # fmt: skip
    assert list(found)[-1] == "chain_sum"
    assert found["Sound"].verdict == found["chain_sum"].verdict == "ok"
    assert "3 rows, gold answers of 3" in found["Sound"].lines()[0]
    assert kinds(found["HashDependent"]) == {"depends on the process"}
    assert kinds(found["Slow"]) == {"hang"} and "1.3 s, expected at most 0.1 s" in found["Slow"].lines()[-1]
    assert kinds(found["Dying"]) == {"hang"}
    assert found["Unloadable"].verdict == found["listed"].verdict == "not validated"
    assert "no data here" in found["Unloadable"].lines()[0]
    assert found["listed"].lines() == ["listed: not validated: it needs a file"]
    assert kinds(found["Unloadable2"]) == {"cannot be loaded"}


def test_a_verifier_without_an_end_is_ended_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(module, "_JOB_SECONDS", 8.0)
    found = outcomes(job("Hanging"), job("Sound"))
    assert kinds(found["Hanging"]) == {"hang"}
    assert found["Sound"].verdict == "ok"


def test_every_built_in_task_is_there_and_each_safe_data_set():
    jobs = all_jobs()
    assert {found.task for found in jobs} == set(task_names())
    pytest.importorskip("reasoning_gym")
    gym = {found.label.removeprefix("reasoning_gym "): found for found in jobs if found.task == "reasoning_gym"}
    assert len(gym) == 106
    assert sum(not found.not_validated for found in gym.values()) >= 90
    assert "PYTHONHASHSEED" in gym["word_ladder"].not_validated
    assert gym["chain_sum"].part and gym["chain_sum"].options["rows"] == 200
    assert class_of("reasoning_gym").validation_parts()["rush_hour"] == "its items have no reference answer"


@pytest.mark.slow
def test_every_task_keeps_its_promises():
    broken = [line for found in validate_all(all_jobs()) if found.verdict == "broken" for line in found.lines()]
    assert broken == [], os.linesep.join(broken)
