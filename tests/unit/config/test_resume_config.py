"""What a resumed run may change, and that everything else is refused by name."""

from __future__ import annotations

import pytest

from lecritique.config.explain import key_paths
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import differences
from lecritique.config.resume import MAY_CHANGE, MAY_CHANGE_BITS, allowed_changes, changes_bits, with_changes
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError


@pytest.fixture(scope="module")
def own() -> RunConfig:
    return compose(load_recipe("demo"), arm="tether")


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
