"""One comparison at a time writes into a directory, and what another has finished meanwhile is not run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.core.errors import ConfigurationError
from lecritique.runs.directory import locked
from lecritique.runtime.comparison import Job, Plan, run


def planned(out: Path) -> Plan:
    job = Job(
        arm="mean",
        seed=0,
        config=compose(load_recipe("demo"), arm="mean"),
        path=out / "mean" / "seed-0",
        command=("false",),
        parameters=1,
    )
    return Plan(out=out, jobs=(job,), finished=(), record={"schema": 1})


def test_a_second_comparison_is_refused_and_leaves_the_record_alone(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / "compare.json").write_text("the first one's")
    first = locked(tmp_path / ".lock")
    assert first is not None
    with first, pytest.raises(ConfigurationError, match="is being written by another comparison"):
        run(planned(tmp_path), jobs=1, cores=1, watch=lambda running, ended: None)
    assert (tmp_path / "compare.json").read_text() == "the first one's"


def test_a_run_that_was_finished_since_the_plan_is_left_as_it_is(tmp_path):
    plan = planned(tmp_path)
    status = plan.jobs[0].path / "status.json"
    status.parent.mkdir(parents=True)
    status.write_text(json.dumps({"state": "finished"}))
    told: list[list[str]] = []
    codes = run(plan, jobs=1, cores=1, watch=lambda running, ended: told.append([job.name for job in ended]))
    assert codes == {"mean seed 0": 0} and told[-1] == ["mean seed 0"]
    assert [path.name for path in (tmp_path / "mean").iterdir()] == ["seed-0"]  # not set aside
    again = run(plan, jobs=1, cores=1, watch=lambda running, ended: None)  # the first has let go
    assert again == codes
