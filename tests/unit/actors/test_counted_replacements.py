"""`engine_restarts` counts the replacements of the whole run, whichever process and whichever engine made them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from lecritique.runtime.actor_roles import ActorRoles
from lecritique.runtime.replacements import replacements_in
from lecritique.runtime.restoring import train_on_actors
from lecritique.runtime.resuming import resume
from tests.integration.short_runs import small_config
from tests.unit.actors.thread_cluster import Death, ThreadCluster, run_on_actors


def counted(run: Path) -> list[float]:
    return [json.loads(line)["engine_restarts"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_count_goes_on_when_the_run_goes_back_and_when_it_is_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    deaths = (Death("engine 0", "work", 2), Death("policy trainer", "do", 3))
    run_on_actors(run, small_config("runtime.type=ray", "run.steps=2", "run.checkpoint_every=1"), ThreadCluster(deaths))
    assert counted(run) == [1.0, 1.0]
    found = resume(run, ["run.steps=3"])
    length = found.base.language.context_length
    cluster = ThreadCluster((Death("engine 0", "work", 1),))
    with (
        closing(found.directory) as directory,
        closing(ActorRoles(found.base.config, cluster, directory, context_length=length)) as actors,
    ):
        train_on_actors(found.base, found.begin(actors=actors), directory, first=found.first)
    assert counted(run) == [1.0, 1.0, 2.0]


def test_a_replacement_that_dies_while_it_loads_is_counted_as_the_events_have_it(tmp_path: Path) -> None:
    deaths = (Death("engine 0", "work", 2), Death("engine 0", "make", 2))
    run_on_actors(tmp_path / "run", small_config("runtime.type=ray", "run.steps=1"), ThreadCluster(deaths))
    assert counted(tmp_path / "run") == [2.0] and replacements_in(tmp_path / "run") == 2
    lost = [event for event in map(json.loads, (tmp_path / "run/events.jsonl").read_text().splitlines())
            if event["kind"] == "actor_lost"]  # fmt: skip
    assert [event["reason"] for event in lost] == [
        "killed by the test", "engine 0 ended while it loaded: killed by the test",
    ]  # fmt: skip


@pytest.mark.parametrize(("event", "counts"), [
    ({"kind": "replica_lost", "replacement": 0}, 1), ({"kind": "replica_lost", "replacement": None}, 0),
    ({"kind": "actor_lost", "role": "engine 3", "replaced": True}, 1),
    ({"kind": "actor_lost", "role": "engine 3", "replaced": False}, 0),
    ({"kind": "actor_lost", "role": "evaluator 0", "replaced": True}, 0),
    ({"kind": "trainer_lost"}, 0),
])  # fmt: skip
def test_events_that_are_replacements_of_engines(tmp_path: Path, event: dict[str, object], counts: int) -> None:
    assert replacements_in(tmp_path) == 0
    lines = [json.dumps({"time": "", **event}), json.dumps({"kind": "started"}), '{"kind": "replica_lo']
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert replacements_in(tmp_path) == counts
