"""What a resumed run may change, and that everything else is refused by name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from lecritique.config.actors import ActorsSection
from lecritique.config.explain import key_paths
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import Facts, differences, resolve
from lecritique.config.resume import MAY_CHANGE, MAY_CHANGE_BITS, allowed_changes, changes_bits
from lecritique.config.resume import with_changes as changed_on
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError


@pytest.fixture(scope="module")
def own() -> RunConfig:
    return compose(load_recipe("demo"), arm="tether")


def with_changes(own: RunConfig, overrides: Sequence[str]) -> RunConfig:
    return changed_on(own, overrides, machine="cpu")


def test_nothing_changed_is_no_change(own) -> None:
    assert with_changes(own, []) == own and allowed_changes(own, with_changes(own, [])) == {}


def test_allowed_changes_are_told_with_both_values(own) -> None:
    wanted = with_changes(own, ["run.steps=200", 'run.sinks=["tensorboard"]', "run={saved_rollouts=8}"])
    steps = own.run.steps
    assert allowed_changes(own, wanted) == {
        "run.steps": (steps, 200),
        "run.sinks": ([], ["tensorboard"]),
        "run.saved_rollouts": (own.run.saved_rollouts, 8),
    }
    assert not changes_bits(allowed_changes(own, wanted))
    assert changes_bits(allowed_changes(own, with_changes(own, ["runtime.decode_rows=7"])))
    assert changes_bits(allowed_changes(own, with_changes(own, ["runtime.actors.evaluators.replicas=2"])))


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=1",
        "runtime.dtype=bfloat16",
        "critic.optimizer.learning_rate=0.5",
        "policy.epochs=2",
        "model.name=other",
    ],
)
def test_everything_else_is_refused_by_name(own, override) -> None:
    key, _, value = override.partition("=")
    with pytest.raises(
        ConfigurationError, match=rf"'{key}' was .* cannot become .*{value}.*What may change: run.steps"
    ):
        allowed_changes(own, with_changes(own, ["run.steps=200", override]))


@pytest.mark.parametrize("override", ["estimator.type=value", 'estimator={type="value"}', "run.seed=1"])
def test_a_refusal_names_what_was_typed_not_what_follows_from_it(own, override) -> None:
    wanted = with_changes(own, [override])
    typed = override.partition("=")[0]
    typed = "estimator.type" if typed == "estimator" else typed
    assert sum(key.startswith("estimator.") for key in differences(own, wanted)) != 1
    with pytest.raises(ConfigurationError, match=rf"^'{typed}' was "):
        allowed_changes(own, wanted, overrides=["run.steps=200", override])


def test_unknown_keys_and_unfit_values_are_the_usual_errors(own) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown key 'run\.step'"):
        with_changes(own, ["run.step=3"])
    with pytest.raises(ConfigurationError, match=r"'run\.steps'"):
        with_changes(own, ["run.steps=-3"])
    with pytest.raises(ConfigurationError, match=r"expected key\.path=value"):
        with_changes(own, ["run.steps"])


def test_what_may_change_exists() -> None:
    known = set(key_paths(RunConfig))
    assert set(MAY_CHANGE) | set(MAY_CHANGE_BITS) <= known and "run.seed" in known


GPUS = [f"runtime.actors.{role}.gpus=1" for role in ("engines", "evaluators", "policy", "critic")]


@pytest.mark.parametrize(
    ("before", "overrides", "device"),
    [
        ([], [], "cpu"),
        ([], ["runtime.type=ray"], None),
        ([], ["runtime.type=ray", "runtime.device=cpu"], "cpu"),
        ([], GPUS, "cpu"),  # read on Ray alone
        (["runtime.type=ray"], ["runtime.actors.restarts=9"], "cpu"),
        (["runtime.type=ray"], GPUS, None),
        (["runtime.type=ray", *GPUS], ["runtime.type=local"], None),
    ],
)
def test_the_device_follows_the_models_where_they_move(before, overrides, device) -> None:
    own = compose(load_recipe("demo"), arm="tether", overrides=[*before, "runtime.device=cpu"])
    assert with_changes(own, overrides).runtime.device == device


@pytest.mark.parametrize(
    "overrides",
    [
        ['runtime={type="ray",device="cpu"}'],
        ["runtime.type=ray", 'runtime={device="cpu"}'],
        ['runtime={device="cpu"}', "runtime.type=ray"],
    ],
)
def test_a_device_named_within_a_table_is_named(own, overrides) -> None:
    own = own.model_copy(update={"runtime": own.runtime.model_copy(update={"device": "cuda"})})
    runtime = with_changes(own, overrides).runtime
    assert (runtime.type, runtime.device) == ("ray", "cpu")


def resolved(config: RunConfig, machine: str) -> RunConfig:
    return resolve(config, Facts(device=machine, context_length=128, reward_range=(0.0, 1.0)))


PACKED, PADDED = ("packed", 2048), ("padded", 16384)
TYPED_GPUS = ["runtime.type=ray", *GPUS]


@pytest.mark.parametrize(
    ("began_on", "before", "machine", "overrides", "device", "rows"),
    [
        ("cpu", [], "cuda", ["runtime.device=cuda"], "cuda", PADDED),
        ("cpu", [], "cuda", ['runtime={device="cuda:1"}'], "cuda:1", PADDED),
        ("cuda", [], "cuda", ["runtime.device=cpu"], "cpu", PACKED),
        ("cpu", [], "cpu", TYPED_GPUS, "cuda", PADDED),
        ("cuda", [], "cuda", ["runtime.type=ray"], "cpu", PACKED),
        ("cpu", TYPED_GPUS, "cpu", ["runtime.type=local"], "cpu", PACKED),
        ("cpu", TYPED_GPUS, "cuda", ["runtime.type=local"], "cuda", PADDED),
        # What was typed when the run began cannot be told from what was derived.
        ("cpu", ["runtime.layout=padded"], "cuda", ["runtime.device=cuda"], "cuda", PADDED),
        ("cuda", ["runtime.micro_batch_tokens=77"], "cuda", ["runtime.device=cpu"], "cpu", PACKED),
        # Typed again they stay.
        ("cpu", [], "cuda", ["runtime.device=cuda", "runtime.layout=packed"], "cuda", ("packed", 16384)),
        ("cpu", [], "cuda", ['runtime={device="cuda",micro_batch_tokens=2048}'], "cuda", ("padded", 2048)),
        # The kind of device stays, and all that follows from it.
        ("cpu", ["runtime.layout=padded", "runtime.micro_batch_tokens=77"], "cpu", ["runtime.type=ray"], "cpu",
         ("padded", 77)),
        ("cuda", ["runtime.micro_batch_tokens=77"], "cuda", ["runtime.device=cuda:1"], "cuda:1", ("padded", 77)),
        ("cuda", ["runtime.layout=packed"], "cuda", TYPED_GPUS, "cuda", ("packed", 16384)),
        ("cpu", ["runtime.layout=padded"], "cuda", ["run.steps=500"], "cpu", ("padded", 2048)),
    ],
)  # fmt: skip
def test_rows_lie_as_the_new_device_wants_them_where_its_kind_changes(
    began_on, before, machine, overrides, device, rows
) -> None:
    own = resolved(compose(load_recipe("demo"), arm="tether", overrides=before), began_on)
    after = resolved(changed_on(own, overrides, machine=machine), machine)
    runtime = after.runtime
    assert (runtime.device, runtime.layout, runtime.micro_batch_tokens) == (device, *rows)
    changes = allowed_changes(own, after)
    if (own.runtime.layout, own.runtime.micro_batch_tokens) != rows:
        assert {"runtime.layout", "runtime.micro_batch_tokens"} & set(changes) and changes_bits(changes)


def test_of_actors_what_each_role_asks_for_alone_changes_the_order_of_sums(own) -> None:
    roles = {"engines", "evaluators", "policy", "critic"}
    for name, field in ActorsSection.model_fields.items():
        value = {"strategy": "spread"}.get(name, 999)
        key = f"cpus={value}" if name in roles else f"{value}"
        changes = allowed_changes(
            own, with_changes(own, [f"runtime.actors.{name}{'.' if name in roles else '='}{key}"])
        )
        assert len(changes) == 1 and field.default not in changes.values()
        assert changes_bits(changes) == (name in roles), name


def test_how_long_an_engine_is_waited_for_changes_no_sum(own) -> None:
    own = own.model_copy(update={"runtime": with_changes(own, ["runtime.engine.type=vllm"]).runtime})
    patience = [f"runtime.engine.{key}=99" for key in ("start_seconds", "stuck_seconds", "restarts")]
    changes = allowed_changes(own, with_changes(own, patience))
    assert len(changes) == 3 and not changes_bits(changes)
    assert changes_bits(allowed_changes(own, with_changes(own, [*patience, "runtime.engine.rows=9"])))


@pytest.mark.parametrize(
    "overrides",
    list(
        itertools.permutations(["runtime.engine.rows=9", 'runtime={engine={type="vllm"}}', "runtime.engine.restarts=7"])
    ),
)
def test_another_type_drops_nothing_that_is_given_beside_it(own, overrides) -> None:
    composed = compose(load_recipe("demo"), arm="tether", overrides=overrides)
    for config in (with_changes(own, overrides), composed):
        assert config.runtime.engine.model_dump(include={"type", "rows", "restarts"}) == {
            "type": "vllm",
            "rows": 9,
            "restarts": 7,
        }
