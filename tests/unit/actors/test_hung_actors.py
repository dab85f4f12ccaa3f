"""Whole runs whose actors, here threads, are stopped or lost in a call: found, replaced, and to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kill_and_resume import asynchronous_faults
from lecritique.core.errors import RoleFailure
from tests.cluster.ray_runs import real, records
from tests.integration.run_files import differences
from tests.integration.short_runs import small_config
from tests.unit.actors.thread_cluster import Death, ThreadCluster, run_locally, run_on_actors

SAME = ("runtime.dtype=float64", "runtime.decode_chunk_tokens=5", "run.checkpoint_every=1")
# A thread answers whether it lives at once, however busy the machine is.
STOPPED = ("runtime.type=ray", "runtime.actors.silent_seconds=0.4")
# Longer than any call of these runs takes.
LOST = ("runtime.type=ray", "runtime.actors.stuck_seconds=8")


def reasons(run: Path) -> list[str]:
    """What is said of each actor that was lost, of engines and evaluators first."""
    events = records(run / "events.jsonl")
    replaced = [f"{event['role']}: {event['reason']}" for event in events if event["kind"] == "actor_lost"]
    return replaced + [event["message"] for event in events if event["kind"] == "trainer_lost"]


def test_a_synchronous_run_in_which_everyone_is_stopped_once_equals_one_process(tmp_path: Path) -> None:
    deaths = (
        Death("engine 0", "work", 3, how="stops"),
        Death("evaluator 0", "values", 2, how="stops", done=True),
        Death("policy trainer", "do", 4, how="stops"),
        Death("value trainer", "do", 6, how="stops", done=True),
    )
    cluster = ThreadCluster(deaths)
    run_on_actors(tmp_path / "run", small_config(*SAME, *STOPPED, arm="pvf"), cluster)
    run_locally(tmp_path / "straight", small_config(*SAME, arm="pvf"))
    assert real(differences(tmp_path / "straight", tmp_path / "run")) == []
    assert sum(cluster.started.values()) == 4 + len(deaths)
    said = reasons(tmp_path / "run")
    assert [each.split(":")[0] for each in said[:2]] == ["engine 0", "evaluator 0"]
    assert "policy trainer" in said[2] and "value trainer" in said[3] and len(said) == 4
    assert all("0.4 seconds, 'runtime.actors.silent_seconds'" in each for each in said)


def test_an_asynchronous_run_in_which_everyone_is_stopped_once(tmp_path: Path) -> None:
    deaths = (
        Death("engine 0", "work", 4, how="stops"),
        Death("evaluator 0", "load", 4, how="stops"),
        Death("policy trainer", "do", 4, how="stops", done=True),
        Death("value trainer", "do", 6, how="stops"),
    )
    config = small_config(*SAME, *STOPPED, "runtime.loop=asynchronous", "run.steps=4", arm="pvf")
    cluster = ThreadCluster(deaths)
    run_on_actors(tmp_path / "run", config, cluster)
    assert asynchronous_faults(tmp_path / "run", steps=4) == []
    assert sum(cluster.started.values()) == 4 + len(deaths)
    assert all("silent_seconds" in each for each in reasons(tmp_path / "run"))


@pytest.mark.parametrize("death", [
    Death("engine 0", "work", 3, how="is lost"), Death("policy trainer", "do", 3, how="is lost"),
], ids=["engine", "policy trainer"])  # fmt: skip
def test_an_actor_that_lives_and_is_lost_in_a_call(tmp_path: Path, death: Death) -> None:
    cluster = ThreadCluster((death,))
    run_on_actors(tmp_path / "run", small_config(*SAME, *LOST, "run.steps=2", arm="mean"), cluster)
    (said,) = reasons(tmp_path / "run")
    assert f"did not answer '{death.method}' for 8 seconds, 'runtime.actors.stuck_seconds'" in said
    assert cluster.started[death.seat] == 2


def test_one_that_hangs_with_no_replacement_left_ends_the_run(tmp_path: Path) -> None:
    config = small_config(*SAME, *STOPPED, "runtime.actors.restarts=0", "run.steps=1", arm="mean")
    with pytest.raises(RoleFailure, match=r"engine 0 has ended \(it hung: .*replacements are used up"):
        run_on_actors(tmp_path / "run", config, ThreadCluster((Death("engine 0", "work", 2, how="stops"),)))
