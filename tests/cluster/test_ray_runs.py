"""Runs on real Ray actors: equal to one process to the last bit, and to themselves when actors are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.kill_and_resume import asynchronous_faults
from lecritique.core.errors import ConfigurationError
from tests.cluster.ray_runs import (
    NEEDS_RAY,
    ON_RAY,
    ROLES,
    SETTINGS,
    Killer,
    actors_of,
    real,
    records,
    wait_for_the_end,
)
from tests.integration.run_files import differences
from tests.integration.short_runs import small_config
from tests.unit.actors.thread_cluster import run_locally, run_on_actors

pytestmark = NEEDS_RAY
KILLABLE = ("runtime.actors.restarts=20", "runtime.actors.restores=20")


@pytest.mark.parametrize("arm", ["mean", "pvf", "tether"])
def test_ray_equals_one_process_to_the_last_bit(ray: Any, tmp_path: Path, arm: str) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    run_locally(local, small_config(*SETTINGS, "run.steps=3", arm=arm))
    run_on_actors(remote, small_config(*ON_RAY, "run.steps=3", arm=arm), ray)
    assert real(differences(local, remote)) == []
    # Actors end with the run, what they printed stays, what they handed over does not.
    roles = ROLES if arm != "mean" else ("engine 0", "policy trainer")
    assert sorted(actors_of(remote)) == sorted(roles)
    wait_for_the_end(actors_of(remote).values())
    assert sorted(path.stem for path in (remote / "logs").iterdir()) == sorted(r.replace(" ", "-") for r in roles)
    assert not (remote / "exchange").exists()


def test_an_asynchronous_run_without_staleness_equals_the_synchronous_loop(ray: Any, tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    same = ("runtime.loop=asynchronous", "rollout.max_staleness=0", "run.steps=3")
    run_locally(local, small_config(*SETTINGS, *same, arm="tether"))
    run_on_actors(remote, small_config(*ON_RAY, *same, arm="tether"), ray)
    assert real(differences(local, remote)) == []


def test_an_asynchronous_run_on_several_engines_and_evaluators(ray: Any, tmp_path: Path) -> None:
    two = ("runtime.actors.engines.replicas=2", "runtime.actors.evaluators.replicas=2")
    run_on_actors(tmp_path / "run", small_config(*ON_RAY, *two, "runtime.loop=asynchronous", "run.steps=6"), ray)
    assert asynchronous_faults(tmp_path / "run", steps=6) == []
    assert len(actors_of(tmp_path / "run")) == 6


@pytest.mark.parametrize(("loop", "kills"), [
    ("synchronous", 4), ("asynchronous", 4),
    pytest.param("synchronous", 20, marks=pytest.mark.slow), pytest.param("asynchronous", 20, marks=pytest.mark.slow),
])  # fmt: skip
def test_each_actor_killed_in_turn(ray: Any, tmp_path: Path, loop: str, kills: int) -> None:
    # A quick machine makes more than a step while one actor comes back.
    run, steps = tmp_path / "run", 2 * kills + 6
    same = (f"runtime.loop={loop}", f"run.steps={steps}")
    killer = Killer(run, ROLES * (kills // len(ROLES)), seed=kills)
    killer.start()
    run_on_actors(run, small_config(*ON_RAY, *KILLABLE, *same, arm="pvf"), ray)
    killer.end()
    assert len(killer.killed) == kills
    assert asynchronous_faults(run, steps=steps) == []
    kinds = [event["kind"] for event in records(run / "events.jsonl")]
    # One that is killed at the end, or found dead when the run goes back for a trainer, has no event of its own.
    assert 1 <= kinds.count("actor_lost") <= kills // 2
    assert 1 <= kinds.count("trainer_lost") == kinds.count("resumed") <= kills // 2
    if loop == "synchronous":
        straight = tmp_path / "straight"
        run_locally(straight, small_config(*SETTINGS, *same, arm="pvf"))
        assert real(differences(straight, run)) == []


def test_a_model_that_cannot_be_loaded_is_said_in_the_actors_own_words(ray: Any, tmp_path: Path) -> None:
    config = small_config(*ON_RAY, f"critic.init={tmp_path / 'nowhere'}", arm="pvf")
    with pytest.raises(Exception, match=r"'critic\.init' = .*nowhere' is not a directory"):
        run_on_actors(tmp_path / "run", config, ray)


def test_one_process_joins_one_cluster(ray: Any) -> None:
    from lecritique.actors.ray_cluster import ray_cluster
    from lecritique.actors.seats import cluster_settings

    settings = cluster_settings(small_config(*ON_RAY))
    with pytest.raises(ConfigurationError, match="connected to a Ray cluster already"), ray_cluster(settings):
        pass
