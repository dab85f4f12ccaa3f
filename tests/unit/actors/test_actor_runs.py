"""Whole runs whose models are in actors, here threads: the same bits as in one process, also when actors die."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.kill_and_resume import asynchronous_faults
from lecritique.core.errors import EXIT_ROLE_FAILED, RoleFailure
from lecritique.runs.directory import read_status
from lecritique.runtime.actor_roles import ActorRoles
from lecritique.runtime.restoring import train_on_actors
from lecritique.runtime.resuming import resume
from tests.integration.run_files import differences
from tests.integration.short_runs import small_config
from tests.unit.actors.thread_cluster import Death, ThreadCluster, run_locally, run_on_actors

SAME = ("runtime.dtype=float64", "runtime.decode_chunk_tokens=5", "run.checkpoint_every=1")
ACTORS = (*SAME, "runtime.type=ray")
TIMING = ("metric utilisation_", "metric evaluator_latency", "metric engine_restarts")


def real(found: list[str]) -> list[str]:
    return [each for each in found if not each.startswith(TIMING)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synchronous run in one process."""
    path = tmp_path_factory.mktemp("straight") / "run"
    run_locally(path, small_config(*SAME, arm="pvf"))
    return path


ENGINE_AND_EVALUATOR = (
    Death("engine 0", "work", 2),
    Death("engine 0", "work", 7, done=True),
    Death("engine 0", "adopt", 4),
    Death("evaluator 0", "values", 1),
    Death("evaluator 0", "load", 4, done=True),
)
TRAINERS = (
    Death("policy trainer", "do", 2),
    Death("value trainer", "do", 5, done=True),
    Death("value trainer", "save", 2),
)


@pytest.mark.parametrize("deaths", [ENGINE_AND_EVALUATOR, TRAINERS], ids=["engine and evaluator", "trainers"])
def test_a_run_on_actors_equals_one_process_whoever_dies(straight: Path, tmp_path: Path, deaths: tuple[Death, ...]):
    cluster = ThreadCluster(deaths)
    config = small_config(*ACTORS, "runtime.actors.restarts=5", arm="pvf")
    run_on_actors(tmp_path / "run", config, cluster)
    assert real(differences(straight, tmp_path / "run")) == []
    assert sum(cluster.started.values()) == 4 + len(deaths)


def test_a_run_of_one_process_goes_on_on_actors(straight: Path, tmp_path: Path) -> None:
    run_locally(tmp_path / "run", small_config(*SAME, "run.steps=1", arm="pvf"))
    found = resume(tmp_path / "run", ["runtime.type=ray", "run.steps=2"])
    length = found.base.language.context_length
    with (
        closing(found.directory) as directory,
        closing(ActorRoles(found.base.config, ThreadCluster(), directory, context_length=length)) as actors,
    ):
        train_on_actors(found.base, found.begin(actors=actors), directory, first=found.first)
    assert real(differences(straight, tmp_path / "run")) == []


def test_an_asynchronous_run_that_loses_everyone_once(tmp_path: Path) -> None:
    deaths = (
        Death("engine 0", "work", 4),
        Death("evaluator 0", "values", 3),
        Death("policy trainer", "do", 4, done=True),
        Death("value trainer", "do", 6),
    )
    config = small_config(*ACTORS, "runtime.loop=asynchronous", "run.steps=4", arm="pvf")
    run_on_actors(tmp_path / "run", config, ThreadCluster(deaths))
    assert asynchronous_faults(tmp_path / "run", steps=4) == []


def random_deaths(seed: int) -> tuple[Death, ...]:
    """Five of each actor, at any of its calls, before or after they are done."""
    draw = random.Random(seed)
    calls = {
        ("engine 0", "work"): (3, 40), ("engine 0", "adopt"): (2, 14),
        ("evaluator 0", "values"): (3, 12), ("evaluator 0", "load"): (2, 12),
        ("policy trainer", "do"): (4, 24), ("policy trainer", "save"): (1, 10),
        ("value trainer", "do"): (4, 24), ("value trainer", "save"): (1, 10),
    }  # fmt: skip
    return tuple(
        Death(seat, method, number, done=draw.random() < 0.5)
        for (seat, method), (count, last) in calls.items()
        for number in draw.sample(range(2, last), count)
    )


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_deaths_at_random_calls(tmp_path: Path, loop: str, seed: int) -> None:
    same = (*SAME, "run.steps=14", f"runtime.loop={loop}")
    allowed = ("runtime.actors.restarts=20", "runtime.actors.restores=20")
    cluster = ThreadCluster(random_deaths(seed))
    run_on_actors(tmp_path / "run", small_config(*same, *allowed, "runtime.type=ray", arm="pvf"), cluster)
    assert asynchronous_faults(tmp_path / "run", steps=14) == []
    assert sum(cluster.started.values()) == 4 + 20
    if loop == "synchronous":
        run_locally(tmp_path / "straight", small_config(*same, arm="pvf"))
        assert real(differences(tmp_path / "straight", tmp_path / "run")) == []


def test_a_colocated_evaluator_is_lost_with_the_value_trainer(tmp_path: Path) -> None:
    config = small_config(*ACTORS, "runtime.loop=asynchronous", "runtime.placement=colocated", "run.steps=3", arm="pvf")
    cluster = ThreadCluster((Death("value trainer", "values", 2),))
    run_on_actors(tmp_path / "run", config, cluster)
    assert asynchronous_faults(tmp_path / "run", steps=3) == []
    assert cluster.started == {"policy trainer": 1, "value trainer": 2, "engine 0": 1}


@pytest.mark.parametrize(
    ("key", "death"),
    [
        ("restarts", Death("engine 0", "work", 2)),
        ("restores", Death("policy trainer", "do", 2)),
    ],
)
def test_with_no_replacement_left_the_run_ends(tmp_path: Path, key: str, death: Death) -> None:
    config = small_config(*ACTORS, f"runtime.actors.{key}=0", "run.steps=1", arm="pvf")
    with pytest.raises(RoleFailure, match=f"{death.seat} has ended") as ended:
        run_on_actors(tmp_path / "run", config, ThreadCluster((death,)))
    assert ended.value.exit_code == EXIT_ROLE_FAILED and read_status(tmp_path / "run") == "failed"


def ends_of(run: Path) -> list[dict[str, object]]:
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["kind"] in ("failed", "finished")]


NO_START = Death("policy trainer", "make", 2)


def test_a_trainer_that_cannot_be_made_again_ends_the_run_and_the_status_says_so(tmp_path: Path) -> None:
    config = small_config(*ACTORS, "runtime.actors.restores=1", "run.steps=3", arm="mean")
    with pytest.raises(
        RoleFailure, match=r"loaded: killed by the test\. 'runtime\.actors\.restores' = 1 times the run"
    ):
        run_on_actors(tmp_path / "run", config, ThreadCluster((Death("policy trainer", "do", 4), NO_START)))
    assert read_status(tmp_path / "run") == "failed"
    said = "policy trainer ended while it loaded: killed by the test."
    assert [(end["kind"], end["step"], end["message"]) for end in ends_of(tmp_path / "run")] == [("failed", 1, said)]


def test_a_trainer_that_cannot_be_made_again_is_tried_as_often_as_the_run_may_go_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(*ACTORS, "runtime.actors.restores=2", "run.steps=1", arm="mean")
    run_on_actors(tmp_path / "run", config, ThreadCluster((Death("policy trainer", "do", 2), NO_START)))
    assert read_status(tmp_path / "run") == "finished" and [end["kind"] for end in ends_of(tmp_path / "run")] == [
        "finished"
    ]
    assert "policy trainer ended while it loaded: killed by the test. The run goes back" in capsys.readouterr().err
