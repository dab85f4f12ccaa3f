"""The asynchronous run: equal to the synchronous loop at staleness 0, bounded staleness, one outcome for each group."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from lecritique.config.load import compose, load_recipe
from lecritique.config.schema import RuntimeSection
from lecritique.core.errors import ConfigurationError, DivergenceError, RoleFailure
from lecritique.core.seeds import uniforms
from lecritique.runtime.asynchronous import Orchestrator, Step
from lecritique.runtime.build import build, load_base
from lecritique.runtime.ledger import Ledger
from lecritique.runtime.local_runtime import LocalRuntime
from tests.integration.asynchronous_runs import (
    ASYNCHRONOUS,
    asynchronous_parts,
    drive,
    lines,
    recorded,
    simulated,
    weights_of,
)
from tests.integration.short_runs import small_config

CLOCKS = ("second", "utilisation", "evaluator")


def without_clocks(row: dict[str, object], names: set[str]) -> dict[str, object]:
    return {k: v for k, v in row.items() if k in names and not any(clock in k for clock in CLOCKS)}


@pytest.mark.parametrize(
    ("arm", "more"),
    [
        ("mean", ()),
        ("value", ()),
        ("pvf", ("critic.updates_per_policy_step=2", "critic.replay.max_uses=4")),
        ("tether", ("critic.updates_per_policy_step=0.5",)),
        ("evpo", ()),
        ("pvf", ("critic.context={type='siblings'}", "sampling.max_total_tokens=512")),
        ("value", ("rollout.group_size=1", "critic.warmup='discard'")),
        ("pvf", ("critic.warmup_updates=2", "critic.warmup='leave_one_out'")),
        ("value", ("model.adapter={type='lora'}", "critic.backbone={type='shared'}")),
    ],
    ids=["mean", "value", "pvf", "tether", "evpo", "siblings", "one-rollout", "warm-up", "adapters"],
)
def test_fault_38_staleness_0_equals_the_synchronous_loop(arm: str, more: tuple[str, ...], tmp_path: Path) -> None:
    require_equal_runs(arm, more, tmp_path)


@pytest.mark.parametrize("more", [(), ("critic.updates_per_policy_step=2", "critic.replay.max_uses=4")])
def test_a_colocated_evaluator_gives_the_same_losses(more: tuple[str, ...], tmp_path: Path) -> None:
    require_equal_runs("pvf", (*more, "runtime.placement='colocated'"), tmp_path)


def require_equal_runs(arm: str, more: tuple[str, ...], tmp_path: Path) -> None:
    """The same run under both loops: weights, metrics and ledger."""
    expected, expected_rows = recorded(tmp_path / "a", "runtime.loop='synchronous'", *more, arm=arm)
    found, found_rows = recorded(tmp_path / "b", ASYNCHRONOUS, "rollout.max_staleness=0", *more, arm=arm)

    ours, theirs = weights_of(found), weights_of(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    names = set(expected_rows[0])
    assert [without_clocks(row, names) for row in found_rows] == [without_clocks(row, names) for row in expected_rows]
    assert lines(tmp_path / "a" / "ledger.jsonl") == lines(tmp_path / "b" / "ledger.jsonl")


def test_staleness_0_equals_the_synchronous_loop_over_several_turns(tmp_path: Path) -> None:
    turns = ("task.form='multi_turn'", "model.name='tiny-multi-turn'", "task.max_empty=6", "run.steps=2")
    expected, _ = recorded(tmp_path / "a", "runtime.loop='synchronous'", *turns, arm="tether")
    found, _ = recorded(tmp_path / "b", ASYNCHRONOUS, "rollout.max_staleness=0", *turns, arm="tether")
    ours, theirs = weights_of(found), weights_of(expected)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_two_weight_sets_differ_where_the_runs_do(tmp_path: Path) -> None:
    one, _ = recorded(tmp_path / "a", "runtime.loop='synchronous'", arm="pvf")
    other, _ = recorded(tmp_path / "b", "runtime.loop='synchronous'", "run.seed=1", arm="pvf")
    assert any(not torch.equal(a, b) for a, b in zip(weights_of(one).values(), weights_of(other).values(), strict=True))


def test_rollouts_are_in_flight_beyond_one_batch_and_each_group_has_one_outcome(tmp_path: Path) -> None:
    _, rows = recorded(tmp_path / "run", ASYNCHRONOUS, "run.steps=8", arm="tether")
    outcomes = lines(tmp_path / "run" / "ledger.jsonl")
    assert Counter(o["outcome"] for o in outcomes) == {"trained": 16}
    assert sorted(o["position"] for o in outcomes) == list(range(16))
    assert len({(o["row"], o["attempt"]) for o in outcomes}) == 16
    assert max(row["staleness_max"] for row in rows) >= 1
    assert [row["policy_steps"] for row in rows] == list(range(1, 9))
    assert (tmp_path / "run" / "timeline.jsonl").read_text().count("policy trainer") >= 1


def straggling(request: object) -> float:
    """One rollout in eight takes long."""
    return 0.5 if uniforms([request.seed], [1])[0] < 1 / 8 else 0.01  # type: ignore[attr-defined]


@pytest.mark.parametrize("on_stale", ["cancel", "withhold"])
def test_fault_36_nothing_older_than_the_bound_is_trained(on_stale: str) -> None:
    parts = simulated(
        asynchronous_parts(
            "run.steps=12", "rollout.max_staleness=1", "rollout.in_flight=40", f"rollout.on_stale='{on_stale}'"
        ),
        straggling,
    )
    driven = drive(parts)
    trained = [o for o in driven.outcomes if o["outcome"] == "trained"]
    stale = [o for o in driven.outcomes if o["outcome"] == "stale"]
    assert len(trained) == 24
    assert {o["staleness"] for o in trained} <= {0, 1}
    assert stale
    for step in driven.steps:
        assert step.prepared.policy_batch is not None
        assert max(step.prepared.policy_batch.ages) <= 1
    # What is cut off is forgotten; what is finished is shown to the critic, and to nobody else.
    assert any(o["staleness"] is None for o in stale) == (on_stale == "cancel")
    shown_to_critic = {s.rollout_id.group for step in driven.steps for s in step.prepared.value_samples}
    in_batches = {r.rollout_id.group for step in driven.steps for group in step.rollouts for r in group}
    assert shown_to_critic >= in_batches
    if on_stale == "withhold":
        assert shown_to_critic > in_batches


def test_fault_40_the_value_trainer_paused_holds_nobody_and_its_queue_is_bounded() -> None:
    parts = simulated(asynchronous_parts("run.steps=10", "critic.replay.capacity=16"), lambda request: 0.0)
    values = parts.learner.values
    assert values is not None
    released = threading.Event()
    held_at, queued = [], []

    def on_step(step: Step) -> None:
        held_at.append(released.is_set())
        assert runtime.value_training is not None
        queued.append(len(values._waiting) + sum(map(len, runtime.value_training._arrived)))
        if len(held_at) == 10:
            released.set()

    runtime = LocalRuntime(parts, pause_critic=lambda: (released.wait(60), None)[1])
    try:
        Orchestrator(runtime, Ledger(), on_step=on_step).run()
    finally:
        released.set()
    assert held_at == [False] * 10, "the policy took its steps while the value trainer was held"
    assert 8 < max(queued) <= 2 * 16 + 8
    assert values.metrics()["replay_evicted"] > 0


def test_scored_then_admitted_then_trained_for_every_trajectory() -> None:
    parts = asynchronous_parts("run.steps=8")
    values = parts.learner.values
    assert values is not None
    order: dict[object, list[str]] = {}
    updates_at_scoring: dict[object, int] = {}
    add, update = values.replay.add, values.trainer.update

    def watched_add(key: object, sample: object) -> None:
        assert sample.value_version <= values.trainer.updates  # type: ignore[attr-defined]
        updates_at_scoring[key] = sample.value_version  # type: ignore[attr-defined]
        order.setdefault(key, ["scored"]).append("admitted")
        add(key, sample)  # type: ignore[arg-type]

    def watched_update(batch: object) -> object:
        for sample in batch.samples:  # type: ignore[attr-defined]
            order[sample.rollout_id].append("trained")
            # What it was scored with had not trained on it.
            assert sample.value_version <= values.trainer.updates
        return update(batch)  # type: ignore[arg-type]

    values.replay.add, values.trainer.update = watched_add, watched_update  # type: ignore[method-assign, assignment]
    drive(parts)
    assert order
    assert any("trained" in events for events in order.values())
    for events in order.values():
        assert events[:2] == ["scored", "admitted"]
        assert set(events[2:]) <= {"trained"}
        assert len(events) <= 2 + values.replay.max_uses


def test_fault_27_a_group_is_credited_from_one_version_while_versions_change() -> None:
    parts = asynchronous_parts("run.steps=10", "critic.updates_per_policy_step=4", "critic.replay.max_uses=8")
    driven = drive(parts)
    seen = set()
    for step in driven.steps:
        for group in step.prepared.credit.groups:
            versions = {member.value_version for member in group}
            assert len(versions) == 1
            seen |= versions
    assert len(seen) > 1


def test_single_rollouts_train_without_groups() -> None:
    driven = drive(asynchronous_parts("rollout.group_size=1", "critic.warmup='discard'", "run.steps=4", arm="value"))
    assert Counter(o["outcome"] for o in driven.outcomes) == {"trained": 4 * 8}


def test_fault_15_batches_scored_by_a_cold_critic_are_withheld_and_said_so() -> None:
    parts = asynchronous_parts("run.steps=30", "critic.warmup_updates=3", "critic.warmup='discard'")
    driven = drive(parts)
    assert {o["outcome"] for o in driven.outcomes} == {"warmup", "trained"}
    for outcome in driven.outcomes:
        assert (outcome["value_version"] >= 3) or outcome["outcome"] == "warmup"


def test_in_the_shadow_the_critic_learns_and_the_policy_is_credited_by_its_group(tmp_path: Path) -> None:
    shadow, rows = recorded(tmp_path / "a", "runtime.loop='synchronous'", "critic.shadow=true", arm="pvf")
    alone, _ = recorded(tmp_path / "b", "runtime.loop='synchronous'", arm="leave_one_out")
    ours, theirs = shadow.learner.policy.model.state_dict(), alone.learner.policy.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert rows[-1]["value_updates"] > 0
    assert rows[-1]["explained_variance"] is not None
    with pytest.raises(ConfigurationError, match=r"critic\.shadow.*rollout\.group_size"):
        load_base(small_config("critic.shadow=true", "critic.warmup='discard'", "rollout.group_size=1", arm="pvf"))


def test_a_critic_starts_from_another_run(tmp_path: Path) -> None:
    first, _ = recorded(tmp_path / "a", "runtime.loop='synchronous'", arm="pvf")
    second = build(load_base(small_config("runtime.dtype='float64'", f"critic.init='{tmp_path / 'a'}'", arm="pvf")))
    assert first.learner.values is not None
    assert second.learner.values is not None
    ours, theirs = (p.learner.values.trainer.model.state_dict() for p in (second, first))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert second.learner.values.trainer.updates == 0


class Broken(Exception):
    pass


def _break(parts: object, role: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Broken("it broke")

    learner = parts.learner  # type: ignore[attr-defined]
    if role == "rollout engine":
        parts.engine.advance = fail  # type: ignore[attr-defined]
    elif role == "policy trainer":
        learner.policy.step = fail
    elif role == "value trainer":
        learner.values.trainer.update = fail
    else:
        parts.service.evaluator._answer = fail  # type: ignore[attr-defined]


@pytest.mark.parametrize("role", ["rollout engine", "policy trainer", "value trainer", "value evaluator"])
def test_the_first_failing_role_ends_the_run_with_its_name_and_stops_the_others(role: str) -> None:
    before = set(threading.enumerate())
    parts = asynchronous_parts("run.steps=50")
    _break(parts, role)
    with pytest.raises(RoleFailure, match=f"{role}.*it broke"):
        drive(parts)
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not set(threading.enumerate()) - before


def test_a_diverging_role_keeps_its_own_error() -> None:
    parts = asynchronous_parts("run.steps=5")
    model = parts.learner.policy.model
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(DivergenceError):
        drive(parts)


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("rollout.in_flight=4", ("rollout.in_flight", "rollout.batch_size")),
        ("rollout.in_flight=10", ("rollout.in_flight", "rollout.group_size")),
        ("rollout={max_staleness=0, in_flight=16, batch_size=8}", ("rollout.max_staleness", "rollout.in_flight")),
    ],
)
def test_settings_that_make_no_sense_name_both_keys(override: str, keys: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_base(small_config(ASYNCHRONOUS, override))
    assert all(key in str(caught.value) for key in keys)


def test_the_asynchronous_loop_is_the_default_and_the_demo_says_otherwise() -> None:
    assert RuntimeSection().loop == "asynchronous"
    assert compose(load_recipe("demo"), arm="pvf", overrides=[]).runtime.loop == "synchronous"
