"""A cluster that is there before the run, of two nodes of Ray's own on this machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lecritique.core.errors import EXIT_CONFIGURATION, EXIT_OK
from tests.cluster.ray_runs import NEEDS_RAY, ON_RAY, SETTINGS, actors_of, real, wait_for_steps, wait_for_the_end
from tests.integration.command_line import finish, require_one_sentence, start
from tests.integration.run_files import differences
from tests.integration.short_runs import SMALL, small_config
from tests.unit.actors.thread_cluster import run_locally

pytestmark = NEEDS_RAY
SECONDS = 300.0
APART = "runtime.actors.strategy=strict_spread"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a head node and another one, each with two CPUs."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="lcray-")  # short: sockets lie in it
    node = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()
        cluster = Cluster()
        try:
            for _ in range(2):
                cluster.add_node(**node)
            cluster.wait_for_nodes()
            yield cluster.address
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def node_of(pid: int) -> int:
    """The process of Ray that has started an actor: one for each node."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_engine_and_trainer_on_different_nodes_equal_one_process(address: str, tmp_path: Path) -> None:
    run, straight, steps = tmp_path / "run", tmp_path / "straight", "run.steps=4"
    words = (*SMALL, *ON_RAY, steps, "runtime.address=auto", APART, "--out", str(run))
    process = start("train", "demo", "--arm", "mean", *words, cwd=tmp_path, RAY_ADDRESS=address)
    wait_for_steps(run, 1, process)
    pids = actors_of(run)
    assert sorted(pids) == ["engine 0", "policy trainer"] and len({node_of(pid) for pid in pids.values()}) == 2
    answer = finish(process, SECONDS)
    assert answer.code == EXIT_OK, answer.err
    wait_for_the_end(pids.values())  # and the cluster lives on, for the next test
    run_locally(straight, small_config(*SETTINGS, steps, arm="mean"))
    assert real(differences(straight, run)) == []


def test_more_actors_than_nodes_are_not_spread_and_leave_no_directory(address: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (*SMALL, *ON_RAY, f"runtime.address={address}", APART, "runtime.actors.start_seconds=3", "--out", str(run))
    answer = finish(start("train", "demo", "--arm", "pvf", *words, cwd=tmp_path), SECONDS)
    require_one_sentence(answer, "'runtime.actors.strategy' = 'strict_spread'", code=EXIT_CONFIGURATION)
    assert not run.exists()
