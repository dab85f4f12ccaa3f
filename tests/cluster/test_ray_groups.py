"""Trainers in shards on several actors of Ray: the numbers of one process, and ranks that are killed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.kill_and_resume import asynchronous_faults
from lecritique.runtime.actor_roles import ActorRoles
from lecritique.runtime.restoring import train_on_actors
from lecritique.runtime.resuming import resume
from lecritique.runtime.training import train
from tests.cluster.ray_runs import (
    NEEDS_RAY,
    ON_RAY,
    SETTINGS,
    Killer,
    actors_of,
    records,
    wait_for_steps,
    wait_for_the_end,
)
from tests.integration.command_line import start
from tests.integration.run_files import outcomes
from tests.integration.short_runs import SMALL, small_config
from tests.unit.actors.run_distance import farthest
from tests.unit.actors.thread_cluster import run_locally, run_on_actors

pytestmark = NEEDS_RAY
TWO = ("runtime.actors.policy.ranks=2", "runtime.actors.critic.ranks=2")
RANKS = ("policy trainer", "policy trainer rank 1", "value trainer", "value trainer rank 1")


def test_a_run_goes_from_one_process_to_groups_on_ray_and_back(ray: Any, tmp_path: Path) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"
    run_locally(straight, small_config(*SETTINGS, "run.steps=4", arm="pvf"))
    run_locally(run, small_config(*SETTINGS, "run.steps=1", arm="pvf"))
    found = resume(run, ["runtime.type=ray", *TWO, "run.steps=3"])
    length = found.base.language.context_length
    with (
        closing(found.directory) as directory,
        closing(ActorRoles(found.base.config, ray, directory, context_length=length)) as actors,
    ):
        train_on_actors(found.base, found.begin(actors=actors), directory, first=found.first)
    assert sorted(actors_of(run)) == sorted((*RANKS, "engine 0", "evaluator 0"))
    wait_for_the_end(actors_of(run).values())
    alone = resume(run, ["runtime.type=local", "run.steps=4"])
    with closing(alone.directory) as directory:
        train(alone.begin(), directory, first=alone.first)
    assert farthest(straight, run) < (1e-9, "")
    assert outcomes(straight) == outcomes(run)


def test_an_asynchronous_run_on_groups_whose_ranks_are_killed(ray: Any, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", 8
    killer = Killer(run, ("policy trainer rank 1", "value trainer"), seed=0)
    killer.start()
    run_on_actors(run, small_config(*ON_RAY, *TWO, "runtime.loop=asynchronous", f"run.steps={steps}", arm="pvf"), ray)
    killer.end()
    assert killer.killed == ["policy trainer rank 1", "value trainer"]
    assert asynchronous_faults(run, steps=steps) == []
    kinds = [event["kind"] for event in records(run / "events.jsonl")]
    assert kinds.count("trainer_lost") == kinds.count("resumed") == 2
    wait_for_the_end(actors_of(run).values())


def test_ranks_end_with_the_process_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(
        "train", "demo", "--arm", "mean", *SMALL, *ON_RAY, *TWO, "--out", str(run), "run.steps=99", cwd=tmp_path
    )
    wait_for_steps(run, 1, process)
    process.kill()
    process.communicate()
    assert sorted(actors_of(run)) == ["engine 0", *RANKS[:2]]
    wait_for_the_end(actors_of(run).values())
