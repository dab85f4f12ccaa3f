"""`lecritique train` with `runtime.type=ray`: interrupted and resumed, killed, and what cannot be placed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lecritique.core.errors import EXIT_CONFIGURATION, EXIT_INTERRUPTED, EXIT_OK
from lecritique.runs.directory import read_status
from tests.cluster.ray_runs import NEEDS_RAY, ON_RAY, SETTINGS, actors_of, real, wait_for_steps, wait_for_the_end
from tests.integration.command_line import finish, require_one_sentence, start
from tests.integration.run_files import differences
from tests.integration.short_runs import SMALL, small_config
from tests.unit.actors.thread_cluster import run_locally

pytestmark = NEEDS_RAY
SECONDS = 600.0
ARGUMENTS = ("train", "demo", "--arm", "pvf", *SMALL, *ON_RAY, "run.steps=8")


def test_an_interrupted_run_is_saved_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"
    process = start(*ARGUMENTS, "--out", str(run), cwd=tmp_path)
    wait_for_steps(run, 3, process)
    process.send_signal(signal.SIGINT)
    answer = finish(process, SECONDS)
    require_one_sentence_last(answer.err)
    assert answer.code == EXIT_INTERRUPTED and read_status(run) == "interrupted"
    wait_for_the_end(list(actors_of(run).values()))
    resumed = finish(start("train", "--resume", str(run), cwd=tmp_path), SECONDS)
    assert resumed.code == EXIT_OK, resumed.err
    run_locally(straight, small_config(*SETTINGS, "run.steps=8", arm="pvf"))
    assert real(differences(straight, run)) == []


def require_one_sentence_last(text: str) -> None:
    """What is said on stderr is the notice of the interrupt and the sentence of the end, nothing of Ray's."""
    lines = text.strip().splitlines()
    assert len(lines) == 2 and all(line.startswith("lecritique: ") for line in lines), text


def test_actors_end_with_the_process_that_is_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*ARGUMENTS, "--out", str(run), cwd=tmp_path)
    wait_for_steps(run, 1, process)
    pids = list(actors_of(run).values())
    process.kill()
    process.communicate()
    assert len(pids) == 4
    wait_for_the_end(pids)


def test_roles_that_find_no_place_are_one_sentence_and_no_directory(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*ARGUMENTS, "runtime.actors.policy.gpus=99", "runtime.device=cpu", "--out", str(run), cwd=tmp_path)
    answer = finish(process, SECONDS)
    require_one_sentence(answer, "99 GPUs", "'runtime.actors'", "the cluster has", code=EXIT_CONFIGURATION)
    assert not run.exists()


@pytest.mark.parametrize(
    ("address", "environment"), [("127.0.0.1:1", {}), ("auto", {"RAY_ADDRESS": "127.0.0.1:1"})], ids=["given", "found"]
)
def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path, address: str, environment: dict[str, str]) -> None:
    answer = finish(start(*ARGUMENTS, f"runtime.address={address}", cwd=tmp_path, **environment), SECONDS)
    words = (f"'runtime.address' = '{address}'", "no Ray cluster", "nobody answers at 127.0.0.1:1")
    require_one_sentence(answer, *words, code=EXIT_CONFIGURATION)
