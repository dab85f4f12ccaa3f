"""Trainers in shards on several actors, here processes and threads: the numbers of one process, whoever dies."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch

from benchmarks.kill_and_resume import asynchronous_faults
from lecritique.actors.cluster import ActorLost, Seat
from lecritique.actors.crew import Casting, Crew
from lecritique.actors.groups import TrainerGroup
from lecritique.actors.liveness import Patience
from lecritique.actors.seats import cluster_settings, described, seats_of
from lecritique.analysis.read import load_run
from lecritique.config.resume import allowed_changes
from lecritique.core.errors import CheckpointError, ConfigurationError, RoleFailure
from lecritique.distributed.leading import restore_on_all
from lecritique.models.ranks import Alone
from lecritique.runs.state_files import write_tree
from lecritique.runtime.actor_roles import ActorRoles
from lecritique.runtime.build import load_base
from lecritique.runtime.restoring import train_on_actors
from lecritique.runtime.resuming import resume
from lecritique.runtime.training import train
from tests.integration.run_files import differences, outcomes, state_of
from tests.integration.short_runs import small_config
from tests.unit.actors.group_ranks import HELD, Rank
from tests.unit.actors.process_cluster import ProcessCluster, Strike
from tests.unit.actors.run_distance import farthest, of_tensors
from tests.unit.actors.thread_cluster import Death, ThreadCluster, run_locally, run_on_actors

SAME = ("runtime.dtype=float64", "runtime.decode_chunk_tokens=5", "run.checkpoint_every=1")
TWO = ("runtime.type=ray", "runtime.actors.policy.ranks=2", "runtime.actors.critic.ranks=2")


@pytest.fixture(scope="module")
def group_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three synchronous steps with both trainers on two ranks."""
    path = tmp_path_factory.mktemp("group") / "run"
    run_on_actors(path, small_config(*SAME, *TWO, "run.steps=3", arm="pvf"), ProcessCluster())
    return path


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in one process."""
    path = tmp_path_factory.mktemp("local") / "run"
    run_locally(path, small_config(*SAME, "run.steps=3", arm="pvf"))
    return path


def test_two_ranks_have_the_numbers_of_one_process(group_run: Path, local_run: Path) -> None:
    assert farthest(local_run, group_run) < (1e-9, "")
    assert outcomes(local_run) == outcomes(group_run)
    assert max(abs(load_run(local_run).series("policy_loss"))) > 1e-3
    # A checkpoint of two is one of one process: the same files, no shards.
    names = [
        sorted(each.name for each in (run / "checkpoints/step-00000003").iterdir()) for run in (group_run, local_run)
    ]
    assert names[0] == names[1]


def test_a_checkpoint_of_two_ranks_goes_on_in_one_process_and_back(
    group_run: Path, local_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_on_actors(run, small_config(*SAME, *TWO, "run.steps=1", arm="pvf"), ProcessCluster())
    alone = resume(run, ["runtime.type=local", "run.steps=2"])
    with closing(alone.directory) as directory:
        train(alone.begin(), directory, first=alone.first)
    again = resume(run, [*TWO, "runtime.actors.critic.ranks=1", "run.steps=3"])
    assert again.changes["runtime.type"] == ("local", "ray")
    length = again.base.language.context_length
    with (
        closing(again.directory) as directory,
        closing(ActorRoles(again.base.config, ProcessCluster(), directory, context_length=length)) as actors,
    ):
        train_on_actors(again.base, again.begin(actors=actors), directory, first=again.first)
    assert farthest(local_run, run) < (1e-9, "")
    assert outcomes(local_run) == outcomes(run)


DEATHS = (
    Strike(victim="policy trainer rank 1", seat="policy trainer", method="do", number=4),
    Strike(victim="value trainer", seat="value trainer", method="do", number=7),
    Strike(victim="value trainer rank 1", seat="value trainer", method="save", number=2, after_seconds=0.0),
)


def test_a_rank_that_dies_takes_its_trainer_back_to_the_checkpoint(group_run: Path, tmp_path: Path) -> None:
    cluster = ProcessCluster(DEATHS)
    run_on_actors(tmp_path / "run", small_config(*SAME, *TWO, "run.steps=3", arm="pvf"), cluster)
    assert cluster.struck == list(DEATHS)
    assert [each for each in differences(group_run, tmp_path / "run") if not each.startswith("metric engine_re")] == []
    events = map(json.loads, (tmp_path / "run/events.jsonl").read_text().splitlines())
    assert [event["message"] for event in events if event["kind"] == "trainer_lost"] == [
        "the process of the policy trainer has ended (policy trainer rank 1: its process has ended).",
        "the process of the value trainer has ended (its process has ended).",
        "the process of the value trainer has ended (value trainer rank 1: its process has ended).",
    ]
    # Groups are made anew with every return, the others stay.
    ranks = {f"{role} trainer{rank}": 4 for role in ("policy", "value") for rank in ("", " rank 1")}
    assert cluster.started == {**ranks, "evaluator 0": 1, "engine 0": 1}


def test_a_rank_that_is_stopped_is_given_up_with_its_trainer(tmp_path: Path) -> None:
    """Its partner waits in a collective: no connection breaks, and nothing fails by itself."""
    stopped = Strike(
        victim="policy trainer rank 1", seat="policy trainer", method="do", number=3, signal=signal.SIGSTOP
    )
    cluster = ProcessCluster((stopped,))
    found = small_config(*SAME, *TWO, "runtime.actors.silent_seconds=2", arm="mean")
    run_on_actors(tmp_path / "run", found, cluster)
    assert cluster.started == {"policy trainer": 2, "policy trainer rank 1": 2, "engine 0": 1}
    events = map(json.loads, (tmp_path / "run/events.jsonl").read_text().splitlines())
    (lost,) = (event for event in events if event["kind"] == "trainer_lost")
    assert "policy trainer" in lost["message"] and "'runtime.actors.silent_seconds'" in lost["message"]


@pytest.mark.parametrize("placement", [pytest.param("dedicated", marks=pytest.mark.slow), "colocated"])
def test_an_asynchronous_run_on_groups_that_loses_ranks(tmp_path: Path, placement: str) -> None:
    method = "values" if placement == "colocated" else "do"
    deaths = (
        Strike(victim="policy trainer", seat="policy trainer", method="do", number=4),
        Strike(victim="value trainer rank 1", seat="value trainer", method=method, number=6),
    )
    asynchronous = ("runtime.loop=asynchronous", f"runtime.placement={placement}", "run.steps=4")
    cluster = ProcessCluster(deaths)
    run_on_actors(tmp_path / "run", small_config(*SAME, *TWO, *asynchronous, arm="pvf"), cluster)
    assert len(cluster.struck) == 2
    assert asynchronous_faults(tmp_path / "run", steps=4) == []


@pytest.mark.parametrize(
    ("arm", "overrides"),
    [
        pytest.param(
            "pvf",
            ("model.adapter.type=lora", "critic.backbone.type=lora", "runtime.recompute_activations=true"),
            id="adapters",
            marks=pytest.mark.slow,
        ),
        pytest.param("opsd", ("runtime.actors.policy.ranks=3",), id="a teacher, on three ranks"),
    ],
)
def test_adapters_and_teachers_in_groups(tmp_path: Path, arm: str, overrides: tuple[str, ...]) -> None:
    run_locally(tmp_path / "one", small_config(*SAME, *overrides, arm=arm))
    run_on_actors(tmp_path / "two", small_config(*SAME, *TWO, *overrides, arm=arm), ProcessCluster())
    assert farthest(tmp_path / "one", tmp_path / "two") < (1e-9, "")


@pytest.mark.slow
def test_half_precision_is_kept_in_float32_shards(tmp_path: Path) -> None:
    half = (*TWO, "runtime.dtype=bfloat16", "run.checkpoint_every=1", "run.steps=2")
    run_on_actors(tmp_path / "run", small_config(*half, arm="pvf"), ProcessCluster())
    learner = state_of(tmp_path / "run")["learner"]
    for saved in (learner["policy"], learner["values"]["trainer"]):
        tensors = dict(of_tensors({"weights": saved["weights"], "optimizer": saved["optimizer"]}))
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
        assert any((tensor != tensor.bfloat16()).any() for name, tensor in tensors.items() if "weights" in name)


@contextmanager
def group_of(tmp_path: Path, *failures: Exception | None) -> Iterator[tuple[TrainerGroup, Crew, ThreadCluster]]:
    """A group on threads, begun; each rank behind rank 0 with its failure."""
    Rank.working.clear()
    Rank.over.clear()
    cluster = ThreadCluster()
    crew = Crew(
        cluster, {}, logs=tmp_path, start_seconds=10.0, patience=Patience(silent_seconds=20.0, stuck_seconds=20.0),
        restarts=0, tell=lambda *_, **__: None,
    )  # fmt: skip
    cast = {
        Seat(role="policy trainer", number=number, cpus=1, gpus=0): Casting(maker=HELD, arguments=(failure,))
        for number, failure in enumerate((None, *failures))
    }
    group = TrainerGroup(cast, crew, tmp_path / "meetings")
    crew.members.append(group)
    try:
        yield group, crew, cluster
    finally:
        Rank.over.set()
        crew.close()


def test_ranks_meet_at_a_new_place_whenever_they_are_made_and_all_are_new(tmp_path: Path) -> None:
    with group_of(tmp_path, None) as (group, crew, cluster):
        met = []
        for _ in range(2):
            crew.begin()
            met.append(group.ask("meets"))
        assert met[0] != met[1] and {Path(each).parent for each in met} == {tmp_path / "meetings"}
        assert cluster.started == {"policy trainer": 2, "policy trainer rank 1": 2}


@pytest.mark.parametrize("seconds", [0.0, 30.0], ids=["rank 0 notices", "rank 0 waits in vain"])
@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ActorLost("its process has ended"), "policy trainer rank 1: its process has ended"),
        (ValueError("of its own"), "rank 1 failed with Val"),
    ],
)
def test_what_ended_another_rank_is_what_rank_0_is_said_to_have_met(
    tmp_path: Path, failure: Exception, said: str, seconds: float
) -> None:
    with group_of(tmp_path, failure) as (group, crew, _):
        crew.begin()
        before = time.monotonic()
        with pytest.raises(RoleFailure, match=said) as raised:
            group.ask("work", seconds)
        # A process that is lost takes the run back to its checkpoint; an error of its own ends it.
        assert isinstance(raised.value, ActorLost) == isinstance(failure, ActorLost)
        assert time.monotonic() - before < 10
        with pytest.raises(RoleFailure):  # all of them are ended
            group.ask("meets")


@pytest.mark.parametrize("failure", [ActorLost("killed by the kernel"), ValueError("of its own")])
def test_of_three_ranks_the_one_that_failed_is_named(tmp_path: Path, failure: Exception) -> None:
    with group_of(tmp_path, None, failure) as (group, crew, _):
        crew.begin()
        with pytest.raises(RoleFailure, match=f"^policy trainer rank 2.*{failure}$"):
            group.ask("work", 30.0)


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_all_ranks_raise_alike_is_rank_0s_failure_and_no_loss(tmp_path: Path, ranks: int) -> None:
    alike = RuntimeError("Connection closed by peer")  # as rank 0's
    with group_of(tmp_path, *[alike] * (ranks - 1)) as (group, crew, _):
        crew.begin()
        before = time.monotonic()
        with pytest.raises(RoleFailure, match=r"^policy trainer failed with RuntimeError: Connection closed") as raised:
            group.ask("work", 0.1)
        assert not isinstance(raised.value, ActorLost) and time.monotonic() - before < 10


def test_what_one_rank_alone_has_no_memory_for_ends_the_run_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lecritique.actors.causes.NOTICE_SECONDS", 0.2)
    with group_of(tmp_path, None, RuntimeError("can't allocate memory")) as (group, crew, _):
        crew.begin()
        with pytest.raises(
            RoleFailure, match=r"^policy trainer rank 2 failed with RuntimeError: can't alloc"
        ) as raised:
            group.ask("work", 30.0)
        assert not isinstance(raised.value, ActorLost)


def test_a_rank_0_that_is_killed_is_named_though_the_survivor_speaks_first(tmp_path: Path) -> None:
    with group_of(tmp_path, RuntimeError("Connection closed by peer")) as (group, crew, _):
        crew.begin()
        with pytest.raises(ActorLost, match=r"^killed by the kernel$"):
            group.ask("die")


def test_a_rank_0_that_is_killed_while_nobody_asks_it_is_lost(tmp_path: Path) -> None:
    with group_of(tmp_path, RuntimeError("Connection closed by peer")) as (group, crew, cluster):
        crew.begin()
        cluster.sitting["policy trainer"].kill()
        Rank.working.set()
        before = time.monotonic()
        while not cluster.sitting["policy trainer rank 1"].dead:  # the watch has ended it
            assert time.monotonic() - before < 10
            time.sleep(0.01)
        with pytest.raises(ActorLost, match=r"^policy trainer: it is dead$"):
            group.ask("meets")


def test_a_rank_that_does_not_say_whether_it_lives_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lecritique.actors.causes.NOTICE_SECONDS", 0.3)
    with group_of(tmp_path, None, RuntimeError("Connection reset by peer")) as (group, crew, cluster):
        crew.begin()
        monkeypatch.setattr(cluster.sitting["policy trainer rank 1"], "ping", Future)
        with pytest.raises(ActorLost, match=r"^policy trainer rank 1: it did not answer whether it lives for 0\.3 sec"):
            group.ask("work", 30.0)


def test_a_rank_that_dies_while_it_loads_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lecritique.actors.causes.NOTICE_SECONDS", 0.2)
    deaths = tuple(Death("policy trainer rank 1", "make", number) for number in (1, 2))
    with group_of(tmp_path, None) as (_, crew, cluster):
        cluster.deaths = deaths
        with pytest.raises(ActorLost, match=r"^policy trainer rank 1 ended while it loaded: killed by the test\.$"):
            crew.begin()


def test_a_failure_of_rank_0_itself_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lecritique.actors.causes.NOTICE_SECONDS", 0.2)
    with group_of(tmp_path, None) as (group, crew, _):
        crew.begin()
        with pytest.raises(RoleFailure, match="policy trainer failed with RuntimeError: Connection closed") as raised:
            group.ask("work", 0.0)
        assert not isinstance(raised.value, ActorLost)


def test_a_rank_that_cannot_be_made_is_said_while_the_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lecritique.actors.causes.NOTICE_SECONDS", 0.2)
    with (
        group_of(tmp_path, FileNotFoundError("no such model")) as (_, crew, _),
        pytest.raises(FileNotFoundError, match="no such model"),
    ):
        crew.begin()


@pytest.mark.parametrize(("here", "elsewhere"), [(True, 1.0), (False, 0.0), (True, 0.0)])
def test_a_state_that_one_rank_cannot_read_is_refused_on_all(tmp_path: Path, here: bool, elsewhere: float) -> None:
    class Partner(Alone):
        def sums(self, values: Sequence[float]) -> list[float]:
            return [value + elsewhere for value in values]

    class Trainer:
        restored = None

        def restore(self, state: dict[str, int]) -> None:
            self.restored = state

    trainer = Trainer()
    if here:
        write_tree(tmp_path, {"version": 3})
    if here and not elsewhere:
        restore_on_all(trainer, tmp_path, Partner())
        assert trainer.restored == {"version": 3}
        return
    with pytest.raises(CheckpointError, match="1 other ranks could not" if here else "cannot be read"):
        restore_on_all(trainer, tmp_path, Partner())


def test_seats_and_a_dry_run_name_the_ranks() -> None:
    config = small_config("runtime.type=ray", "runtime.actors.policy={ranks=8,gpus=1,cpus=2}", arm="mean")
    names = [seat.name for seat in seats_of(config)]
    assert names == ["policy trainer", *(f"policy trainer rank {rank}" for rank in range(1, 8)), "engine 0"]
    assert "1 policy trainer in shards on 8 ranks, each of 2 CPUs and 1 GPU; 1 engine of 1 CPU" in " ".join(
        described(config)
    )
    assert cluster_settings(config).gpus == 8


def test_the_number_of_ranks_may_change_when_a_run_goes_on() -> None:
    one, two = (small_config("runtime.type=ray", f"runtime.actors.policy.ranks={ranks}") for ranks in (1, 2))
    assert allowed_changes(one, two) == {"runtime.actors.policy.ranks": (1, 2)}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("runtime.type=ray", "runtime.ranks=2"), r"got 'runtime\.ranks' = 2; use 'runtime\.actors\.policy\.ranks'"),
        (
            (*TWO, *(f"runtime.actors.{name}.gpus=0.5" for name in ("policy", "critic", "engines", "evaluators"))),
            r"'runtime\.actors\.policy\.ranks' = 2 processes need a GPU each, .*'runtime\.actors\.policy\.gpus' = 0\.5",
        ),
    ],
)
@pytest.mark.parametrize("arm", ["mean", "pvf"])
def test_ranks_that_cannot_be_had_are_refused_by_name(overrides: tuple[str, ...], words: str, arm: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load_base(small_config(*overrides, arm=arm))
