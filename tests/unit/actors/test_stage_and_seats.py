"""What runs inside an actor, which actors a run has, and what configuration says of them."""

from __future__ import annotations

import numpy as np
import pytest

from lecritique.actors.cluster import Seat
from lecritique.actors.crew import Casting, Crew
from lecritique.actors.evaluator import shared_out
from lecritique.actors.hosts import ScoringHost
from lecritique.actors.liveness import Patience
from lecritique.actors.seats import cluster_settings, described, require_runtime, seats_of
from lecritique.actors.stage import Stage
from lecritique.core.errors import ConfigurationError, DivergenceError, RoleFailure
from lecritique.core.weights import WeightManifest
from lecritique.runtime.build import load_base
from tests.integration.short_runs import small_config
from tests.unit.actors.thread_cluster import ThreadCluster

HERE = "tests.unit.actors.test_stage_and_seats"


class Host:
    """What the stage holds here."""

    def fail(self, kind: str) -> None:
        raise {"own": DivergenceError("the loss is nan."), "other": ZeroDivisionError("of something")}[kind]

    def echo(self, *arguments: int) -> tuple[int, ...]:
        return arguments


def made_host() -> Host:
    return Host()


def test_errors_of_our_own_keep_their_kind_and_others_are_failures_of_the_role(capfd) -> None:
    stage = Stage("engine 0", None, {})
    stage.make(1, f"{HERE}:made_host", ()).result()
    assert stage.call(1, "echo", (4, 5)).result() == (4, 5)
    with pytest.raises(DivergenceError, match=r"^the loss is nan\.$"):
        stage.call(1, "fail", ("own",)).result()
    with pytest.raises(RoleFailure, match="engine 0 failed with ZeroDivisionError: of something"):
        stage.call(1, "fail", ("other",)).result()
    assert "ZeroDivisionError" in capfd.readouterr().err  # the trace, which an actor's log takes


def test_what_was_meant_for_an_earlier_host_does_not_reach_the_next() -> None:
    stage = Stage("engine 0", None, {})
    for number in (1, 2):
        stage.make(number, f"{HERE}:made_host", ()).result()
    with pytest.raises(RoleFailure, match="made anew"):
        stage.call(1, "echo", ()).result()


def test_rows_are_shared_out_by_their_tokens_and_one_reader_gets_them_in_order() -> None:
    assert shared_out([3, 9, 1], 1) == [[0, 1, 2]]
    tokens = np.random.default_rng(0).integers(1, 100, 40).tolist()
    parts = shared_out(tokens, 3)
    loads = [sum(tokens[index] for index in part) for part in parts]
    assert sorted(index for part in parts for index in part) == list(range(40))
    assert max(loads) - min(loads) <= max(tokens)
    assert shared_out([5, 5], 4) == [[0], [1]]


def test_seats_follow_the_roles_that_a_run_has() -> None:
    def names(*overrides: str, arm: str) -> list[str]:
        return [seat.name for seat in seats_of(small_config("runtime.type=ray", *overrides, arm=arm))]

    assert names(arm="mean") == ["policy trainer", "engine 0"]
    assert names(arm="pvf") == ["policy trainer", "value trainer", "evaluator 0", "engine 0"]
    colocated = ("runtime.loop=asynchronous", "runtime.placement=colocated", "runtime.actors.engines.replicas=2")
    assert names(*colocated, arm="pvf") == ["policy trainer", "value trainer", "engine 0", "engine 1"]


def test_a_dry_run_says_who_asks_for_what() -> None:
    config = small_config(
        "runtime.type=ray", "runtime.address=auto", "runtime.actors.policy={gpus=8,cpus=16}",
        "runtime.actors.engines={replicas=4,gpus=1}", arm="mean",
    )  # fmt: skip
    said = " ".join(described(config))
    assert "1 policy trainer of 16 CPUs and 8 GPUs; 4 engines, each of 1 CPU and 1 GPU" in said
    assert "Together 20 CPUs and 12 GPUs" in said and "the cluster that is found" in said
    assert cluster_settings(config).gpus == 12


def test_only_the_key_itself_changes_with_the_type_of_the_runtime() -> None:
    config = small_config("runtime.type=ray")
    assert config.runtime.type == "ray" and config.runtime.loop == "synchronous"  # the recipe's
    assert small_config("runtime={type='ray',address='auto'}").runtime.loop == "synchronous"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("runtime.ranks=2",), ("'runtime.ranks' = 2", "'runtime.actors.policy.ranks'")),
        (("critic.backbone.type=shared", "model.adapter.type=lora"), ("'critic.backbone.type' = 'shared'", "'lora'")),
        (("runtime.engine.type=vllm", "runtime.engine.replicas=2"), ("'runtime.actors.engines'", "got 2")),
        (("runtime.placement=colocated",), ("'runtime.placement' = 'colocated'", "'runtime.loop' = 'asynchronous'")),
        (
            ("runtime.actors.critic.gpus=0.5",),
            ("'runtime.actors.engines.gpus' = 0", "'cuda'"),
        ),
    ],
)
def test_what_needs_several_roles_in_one_process_is_refused(overrides: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_base(small_config("runtime.type=ray", *overrides, arm="pvf"))
    assert all(word in str(refused.value) for word in words)


def test_actors_compute_on_gpus_where_they_ask_for_any() -> None:
    each = (f"runtime.actors.{role}.gpus=0.5" for role in ("engines", "evaluators", "policy", "critic"))
    asks = small_config("runtime.type=ray", *each, arm="pvf")
    assert load_base(asks).config.runtime.device == "cuda"
    assert load_base(small_config("runtime.type=ray", arm="pvf")).config.runtime.device == "cpu"


def test_ray_is_named_before_a_run_has_a_directory(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require_runtime(small_config())
    with pytest.raises(ConfigurationError, match=r"'runtime.type' = 'ray' needs the extra ray: pip install"):
        require_runtime(small_config("runtime.type=ray"))


def test_a_critic_without_weights_says_nothing() -> None:
    """A replacement that finds its version gone must not score with the critic that it was made with."""

    class Gone:
        def open(self, manifest: WeightManifest) -> dict[str, object]:
            raise KeyError(manifest.version)

    host = ScoringHost([object()], Gone())  # type: ignore[list-item, arg-type]
    with pytest.raises(KeyError):
        host.load(0, WeightManifest(role="critic", version=1, digest=""))
    with pytest.raises(RoleFailure, match="before it had the weights"):
        host.values(0, [], 64)


def test_nothing_of_the_roles_before_is_told_to_a_crew_that_begins_anew(tmp_path) -> None:
    crew = Crew(
        ThreadCluster(()), {Seat(role="engine", cpus=1, gpus=0): Casting(maker=f"{HERE}:made_host", arguments=())},
        logs=tmp_path, start_seconds=10.0, restarts=0,
        patience=Patience(silent_seconds=60.0, stuck_seconds=60.0), tell=lambda *_, **__: None,
    )  # fmt: skip
    (member,) = crew.members
    member.prepare = lambda: pytest.fail("told again")
    crew.begin()
    member.prepare()
    crew.close()
