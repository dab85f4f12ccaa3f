"""Runs that end by what they have spent: in every unit, under both loops, across a kill and a resume."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lecritique.analysis.read import load_run
from lecritique.core.errors import ConfigurationError
from lecritique.models.size import policy_size, value_size
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.build import build, load_base
from lecritique.runtime.resuming import resume
from lecritique.runtime.run_state import restore_run, run_state
from lecritique.runtime.spending import PARTS
from lecritique.runtime.synchronous import train_step
from lecritique.runtime.training import train
from tests.integration.run_files import differences
from tests.integration.short_runs import small_config, small_parts, trained

TOTALS = ("rollouts_total", "generated_tokens_total", "flops_total", "seconds_total")
SAVING = ("run.checkpoint_every=1", "run.keep_checkpoints=99", "run.save_rollouts_every=100", "run.steps=40")


def run(path: Path, *overrides: str, arm: str = "pvf", on_step=lambda step, metrics: None) -> Path:
    base = load_base(small_config(*SAVING, *overrides, arm=arm))
    directory = RunDirectory.create(path, base.config)
    try:
        train(build(base), directory, on_step=on_step)
    finally:
        directory.close()
    return path


def status(path: Path) -> dict:
    return json.loads((path / "status.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def by_tokens(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("tokens") / "run", "run.budget.tokens=300")


def test_a_run_ends_with_the_step_that_reaches_its_budget(by_tokens):
    held = load_run(by_tokens)
    totals = held.series("generated_tokens_total")
    assert totals[-2] < 300 <= totals[-1] and 2 < len(totals) < 40
    said = status(by_tokens)
    assert (said["state"], said["ended_by"]) == ("finished", "budget")
    assert said["step"] == said["steps"] == len(totals) and said["spent"]["tokens"] == totals[-1]
    # The last step is treated as one: checkpoint, rollouts, weights.
    assert (by_tokens / "rollouts" / f"step-{len(totals) - 1:05d}.parquet").is_file()
    assert (by_tokens / "weights" / "policy").is_dir()
    assert (by_tokens / "checkpoints" / f"step-{len(totals):08d}").is_dir()


def test_totals_are_the_sums_of_the_steps(by_tokens):
    held = load_run(by_tokens)
    assert held.series("generated_tokens_total").tolist() == np.cumsum(held.series("generated_tokens")).tolist()
    assert held.series("rollouts_total").tolist() == np.cumsum(held.series("rollouts")).tolist()
    assert held.series("flops_total").tolist() == np.cumsum(sum(held.series(part) for part in PARTS)).tolist()
    assert held.series("seconds_total") == pytest.approx(np.cumsum(held.series("seconds")))
    # All rollouts were valid, so that their mean length gives the tokens too.
    tokens = held.series("response_tokens") * held.series("rollouts")
    assert held.series("generated_tokens").tolist() == pytest.approx(tokens.tolist())


@pytest.mark.parametrize("limit", ["rollouts=20", "flops=1e9", "seconds=0.1"])
def test_every_unit_ends_a_run(tmp_path, limit):
    unit, number = limit.split("=")
    held = load_run(run(tmp_path / "run", f"run.budget.{limit}", arm="leave_one_out"))
    totals = held.series(dict(zip(("rollouts", "tokens", "flops", "seconds"), TOTALS, strict=True))[unit])
    assert totals[-1] >= float(number) and (totals[:-1] < float(number)).all()
    if unit == "rollouts":
        assert totals.tolist() == [8, 16, 24]


def test_steps_end_a_run_whose_budget_is_larger(tmp_path):
    path = run(tmp_path / "run", "run.budget.tokens=1000000", "run.steps=2", arm="leave_one_out")
    assert (status(path)["ended_by"], status(path)["step"]) == ("steps", 2)


def test_an_interrupted_run_spends_on_where_its_checkpoint_left_it(by_tokens, tmp_path):
    def stop(step: int, metrics: dict[str, float]) -> None:
        if step == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", "run.budget.tokens=300", on_step=stop)
    assert status(tmp_path / "run")["spent"]["rollouts"] == 8
    found = resume(tmp_path / "run", [])
    train(found.begin(), found.directory, first=found.first)
    found.directory.close()
    assert differences(by_tokens, tmp_path / "run") == []
    seconds = load_run(tmp_path / "run").series("seconds_total")
    assert (np.diff(seconds) > 0).all()


def test_a_spent_budget_is_nothing_to_resume_and_a_larger_one_is(tmp_path, by_tokens):
    path = run(tmp_path / "run", "run.budget.rollouts=16", arm="leave_one_out")
    for overrides in ([], ["run.steps=80"], ["run.budget.rollouts=12"]):
        with pytest.raises(ConfigurationError, match=r"budget is spent \(16 of 1[26] rollouts\)"):
            resume(path, overrides)
    found = resume(path, ["run.budget.rollouts=20"])
    train(found.begin(), found.directory, first=found.first)
    found.directory.close()
    assert load_run(path).series("rollouts_total").tolist() == [8, 16, 24]
    whole = run(tmp_path / "whole", "run.budget.rollouts=20", arm="leave_one_out")
    assert load_run(whole).series("reward").tolist() == load_run(path).series("reward").tolist()


def test_a_run_killed_before_it_could_say_that_it_is_finished_makes_no_more_steps(tmp_path):
    path = run(tmp_path / "run", "run.budget.rollouts=16", arm="leave_one_out")
    (path / "status.json").write_text('{"state": "running", "step": 2, "steps": 40}')
    found = resume(path, [])
    train(found.begin(), found.directory, first=found.first)
    found.directory.close()
    assert (status(path)["state"], status(path)["step"], status(path)["ended_by"]) == ("finished", 2, "budget")
    assert load_run(path).steps.tolist() == [0, 1]


def test_a_checkpoint_of_an_earlier_version_starts_counting_at_nothing(tmp_path):
    parts = small_parts("run.budget.rollouts=99", arm="mean")
    train_step(parts, 0)
    state = {"step": 1, **run_state(parts)}
    del state["spending"]
    again = small_parts("run.budget.rollouts=99", arm="mean")
    restore_run(again, state)
    assert again.spending.total.rollouts == 0
    assert train_step(again, 1).metrics["rollouts_total"] == 8.0


@pytest.mark.parametrize("loop", ["synchronous", "asynchronous"])
def test_the_arithmetic_of_a_step_is_that_of_the_sequences_that_were_read(tmp_path, loop):
    """Counted again from the saved rollouts: every sequence once for each role that reads it."""
    overrides = ("run.steps=1", f"runtime.loop={loop}", "rollout.max_staleness=0", "run.saved_rollouts=8")
    base = load_base(small_config(*overrides, arm="pvf"))
    parts = build(base)
    policy, critic = policy_size(parts.learner.policy.model), value_size(parts.learner.values.trainer.model)
    train(parts, RunDirectory.create(tmp_path / "run", base.config))
    held = load_run(tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "rollouts" / "step-00000.parquet").to_pylist()
    assert len(rows) == 8
    read = dict.fromkeys(PARTS, 0)
    for row in rows:
        actions = [i for i, action in enumerate(row["action_mask"]) if action]
        length = actions[-1] + 1
        context = parts.learner.context(base.environment.task(row["row"]))
        with_context = length + len(context.token_ids)
        assert with_context > length
        pairs = [n * (n + 1) // 2 for n in (length, with_context)]
        read["flops_generation"] += policy.forward(length, pairs[0])
        read["flops_policy_training"] += policy.training(length, pairs[0])
        read["flops_value_scoring"] += critic.forward(with_context, pairs[1])
        read["flops_value_training"] += critic.training(with_context, pairs[1])
    assert {part: held.series(part)[0] for part in PARTS} == read


def test_a_teacher_and_epochs_are_counted():
    once = trained(small_parts(arm="vaspo"), 1)[0]
    twice = trained(small_parts("policy.epochs=2", arm="vaspo"), 1)[0]
    assert once["flops_teacher"] > 0 and once["flops_value_scoring"] > 0
    assert twice["flops_teacher"] == once["flops_teacher"]  # fixed through the update
    # Log-probs before the update, then one or two passes with gradients: 1 + 3 or 1 + 6 forward passes' worth.
    assert twice["flops_policy_training"] * 4 == once["flops_policy_training"] * 7
    assert once["flops_policy_training"] == 4 * once["flops_generation"]


def test_an_asynchronous_run_ends_by_its_budget_and_counts_what_it_cut_off(tmp_path):
    path = run(tmp_path / "run", "run.budget.rollouts=24", "runtime.loop=asynchronous", arm="value")
    held = load_run(path)
    totals = held.series("rollouts_total")
    assert totals[-1] >= 24 and (totals[:-1] < 24).all()
    assert status(path)["ended_by"] == "budget" and status(path)["spent"]["flops"] >= held.series("flops_total")[-1]
    # What is under way at the end is not in the totals, what ended before its step is.
    assert held.series("rollouts_total")[-1] >= held.series("rollouts").sum()


def test_what_is_spent_behind_a_step_counts_for_the_next_one():
    """An asynchronous run goes on sampling while its checkpoint is written: that does not make the step the last."""
    parts = small_parts("run.budget.rollouts=12", arm="mean")
    step = train_step(parts, 0)
    for members in step.rollouts:
        parts.spending.played(members)
    assert parts.spending.state()["rollouts"] == 16 and not parts.spending.exhausted
    assert parts.spending.step(0.5)["rollouts_total"] == 16.0 and parts.spending.exhausted
    parts.engine.close()
