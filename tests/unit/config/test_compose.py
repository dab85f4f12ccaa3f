"""Recipes, arms, presets and overrides compose into one configuration."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lecritique.config.estimators import GaeLambda, Tether, Value
from lecritique.config.explain import key_paths
from lecritique.config.load import (
    Recipe,
    arm_names,
    compose,
    load_recipe,
    merged,
    parse_override,
    recipe_names,
    with_override,
)
from lecritique.config.losses import Categorical, Dppo, Mse
from lecritique.config.presets import PRESETS
from lecritique.config.schema import NoContext, ReferenceContext, RunConfig
from lecritique.core.errors import ConfigurationError


def recipe(arms=None, preset=None, **tree) -> Recipe:
    return Recipe(name="r", text="", tree={"task": {"type": "sudoku"}, **tree}, arms=arms or {}, default_arm=preset)


def refused(pattern: str, *overrides: str, arm=None, of: Recipe | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        compose(of or recipe(), arm=arm, overrides=overrides)
    message = str(caught.value)
    assert pattern in message, message
    assert "\n" not in message and message.endswith((".", ")", "?"))
    return message


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_composes_with_every_shipped_recipe(name, preset):
    config = compose(load_recipe(name), arm=preset)
    assert (config.preset, config.estimator.type) == (preset, PRESETS[preset].estimator)


@pytest.mark.parametrize("preset", ["value", "tether", "evpo"])
def test_clean_presets_take_the_context_away(preset):
    config = compose(recipe(critic={"context": {"type": "reference", "placement": "user_suffix"}}), arm=preset)
    assert config.critic.context == NoContext()


def test_pvf_gives_a_context_and_keeps_the_recipes_own_placement():
    assert compose(recipe(), arm="pvf").critic.context == ReferenceContext()
    own = {"type": "reference", "content": "both", "placement": "user_suffix"}
    kept = compose(recipe(critic={"context": own, "warmup_updates": 3}), arm="pvf").critic
    assert kept.context == ReferenceContext(content="both", placement="user_suffix") and kept.warmup_updates == 3


def test_group_presets_leave_the_critic_section_alone():
    own = {"type": "reference"}
    assert compose(recipe(critic={"context": own}), arm="mean").critic.context == ReferenceContext()


def test_a_preset_keeps_the_settings_of_its_own_estimator_and_drops_anothers():
    base = recipe(estimator={"type": "tether", "decay": 0.5})
    assert compose(base, arm="tether").estimator == Tether(decay=0.5)
    assert compose(base, arm="value").estimator == Value()


def test_a_recipe_has_a_default_arm_and_an_override_of_it():
    base = recipe(preset="pvf")
    assert compose(base).preset == "pvf"
    assert compose(base, overrides=["preset=mean"]).estimator.type == "mean"
    assert compose(base, arm="tether").preset == "tether"
    assert compose(recipe()).preset is None
    refused("given twice", "preset=mean", arm="tether")


def test_own_arms_build_on_a_preset_or_on_the_recipe():
    arms = {
        "tether_privileged": {"preset": "tether", "critic": {"context": {"type": "reference"}}},
        "slow": {"policy": {"optimizer": {"learning_rate": 1e-7}}},
        "tether": {"estimator": {"decay": 0.5}},
    }
    base = recipe(arms, estimator={"type": "evpo"}, rollout={"group_size": 8})
    both = compose(base, arm="tether_privileged")
    assert (both.preset, both.estimator, both.critic.context) == ("tether_privileged", Tether(), ReferenceContext())
    slow = compose(base, arm="slow")
    assert (slow.estimator.type, slow.policy.optimizer.learning_rate) == ("evpo", 1e-7)
    assert slow.policy.optimizer.weight_decay == 0.01 and slow.rollout.group_size == 8
    assert compose(base, arm="tether").estimator == Tether(decay=0.5)  # an arm with a preset's name builds on it
    assert arm_names(base) == [*PRESETS, "tether_privileged", "slow"]


def test_own_arms_are_checked():
    base = recipe({"bad": {"preset": "thether"}, "typo": {"rolout": {}}})
    refused("there is no preset 'thether'", arm="bad", of=base)
    refused("unknown key 'rolout'", arm="typo", of=base)
    assert "Did you mean 'tether'?" in refused("no arm or preset 'thether'", arm="thether")


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("a.b=1", ["a", "b"], 1),
        ("a=1e-3", ["a"], 1e-3),
        ("a = true ", ["a"], True),
        ("a=word", ["a"], "word"),
        ("a='quoted word'", ["a"], "quoted word"),
        ("a=module:Class", ["a"], "module:Class"),
        ("a=/tmp/some dir/x", ["a"], "/tmp/some dir/x"),
        ("a=b=c", ["a"], "b=c"),
        ("a=[1, 2]", ["a"], [1, 2]),
        ("a={retained = 0.4, length = 8192}", ["a"], {"retained": 0.4, "length": 8192}),
        ("a=", ["a"], ""),
    ],
)
def test_overrides_are_toml_or_bare_words(text, keys, value):
    assert parse_override(text) == (keys, value)


@pytest.mark.parametrize("text", ["a", "=1", "a.=1", ".a=1", "a..b=1", ""])
def test_an_override_has_a_key_and_a_value(text):
    refused("expected key.path=value", text)


def test_overrides_win_over_the_arm_and_later_ones_over_earlier_ones():
    config = compose(
        recipe(),
        arm="tether",
        overrides=[
            "rollout.group_size=8",
            "estimator.decay=0.9",
            "rollout.group_size=2",
            "critic.context.type=reference",
        ],
    )
    assert (config.rollout.group_size, config.estimator, config.critic.context) == (
        2,
        Tether(decay=0.9),
        ReferenceContext(),
    )


def test_a_table_is_merged_into_the_section():
    config = compose(recipe(rollout={"group_size": 8}), overrides=["rollout={batch_size=16}"])
    assert (config.rollout.batch_size, config.rollout.group_size) == (16, 8)
    assert compose(recipe(), overrides=["estimator={type='value',gamma=0.9}"]).estimator == Value(gamma=0.9)
    nested = compose(recipe(), arm="tether", overrides=["estimator.gae_lambda={retained=0.4,length=10}"])
    assert nested.estimator.gae_lambda == GaeLambda(retained=0.4, length=10)


def test_another_type_drops_the_keys_of_the_earlier_one_wherever_it_stands():
    base = recipe(critic={"loss": {"type": "categorical", "atoms": 11}})
    assert compose(base, overrides=["critic.loss.type=mse"]).critic.loss == Mse()
    for overrides in (
        ["critic.loss.type=categorical", "critic.loss.high=2.0"],
        ["critic.loss.high=2.0", "critic.loss.type=categorical"],
    ):
        assert compose(recipe(), overrides=overrides).critic.loss == Categorical(high=2.0)
    assert compose(base, overrides=["critic.loss.type=categorical"]).critic.loss == Categorical(atoms=11)


def test_a_section_without_a_type_has_the_default_one():
    config = compose(
        recipe(policy={"loss": {"mask_low": 0.1}}), overrides=["policy.loss.kl_coef=0.01", "estimator.decay=0.5"]
    )
    assert config.policy.loss == Dppo(mask_low=0.1, kl_coef=0.01)
    assert config.estimator == Tether(decay=0.5)
    kept = compose(recipe(policy={"loss": {"mask_low": 0.1}}), overrides=["policy.loss.type=dppo"])
    assert kept.policy.loss == Dppo(mask_low=0.1)


def test_a_section_keeps_the_default_of_what_it_must_say():
    config = compose(
        recipe(critic={"optimizer": {"weight_decay": 0.1}}), overrides=["policy.optimizer.betas=[0.9,0.95]"]
    )
    assert (config.policy.optimizer.learning_rate, config.policy.optimizer.betas) == (1e-6, (0.9, 0.95))
    assert (config.critic.optimizer.learning_rate, config.critic.optimizer.weight_decay) == (1e-5, 0.1)


def test_task_options_pass_through_and_another_task_drops_them():
    base = recipe(task={"type": "sudoku", "size": 9})
    assert compose(base, overrides=["task.rows=5"]).task.options == {"size": 9, "rows": 5}
    changed = compose(base, overrides=["task.dataset=chain_sum", "task.type=reasoning_gym"])
    assert changed.task.options == {"dataset": "chain_sum"}


def test_merged_and_with_override_change_nothing_in_place():
    tree = {"a": {"type": "x", "b": 1}, "c": {"d": 2}}
    assert with_override(tree, ["c", "e"], 3)["c"] == {"d": 2, "e": 3}
    assert merged(tree, {"a": {"b": 5}, "c": {"f": 1}}) == {"a": {"type": "x", "b": 5}, "c": {"d": 2, "f": 1}}
    assert tree == {"a": {"type": "x", "b": 1}, "c": {"d": 2}}


@pytest.mark.parametrize(
    ("override", "key", "section", "match"),
    [
        # Known fault 52.
        ("estimator.gae_lamda=1", "estimator.gae_lamda", "section 'estimator'", "Did you mean 'gae_lambda'?"),
        ("critic.gae_lambda=1", "critic.gae_lambda", "section 'critic'", "Did you mean 'estimator.gae_lambda'?"),
        ("estimator.gae-lambda=1", "estimator.gae-lambda", "section 'estimator'", "'estimator.gae_lambda'?"),
        ("policy.learning_rate=1", "policy.learning_rate", "section 'policy'", "'policy.optimizer.learning_rate'?"),
        ("steps=3", "steps", "the configuration", "Did you mean 'run.steps'?"),
        ("polcy.loss.type=dppo", "polcy", "the configuration", "Did you mean 'policy'?"),
        ("policy.loss.kl_cof=1", "policy.loss.kl_cof", "section 'policy.loss'", "Did you mean 'kl_coef'?"),
        ("critic.loss.atoms=3", "critic.loss.atoms", "section 'critic.loss'", "Known: type"),
        ("critic.replay.max_use=3", "critic.replay.max_use", "section 'critic.replay'", "'max_uses'?"),
    ],
)
def test_an_unknown_key_is_named_with_its_section_and_the_nearest_match(override, key, section, match):
    message = refused(f"unknown key '{key}'", override, arm="value")
    assert section in message and match in message, message


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("run.steps=0", ("'run.steps'", "greater than or equal to 1", "got 0")),
        ("run.steps=many", ("'run.steps'", "got 'many'")),
        ("run.steps=1.5", ("'run.steps'", "got 1.5")),
        ("sampling.temperature=nan", ("'sampling.temperature'", "finite")),
        ("estimator.gamma=2", ("'estimator.gamma'", "less than or equal to 1")),
        ("estimator.gae_lambda=2", ("'estimator.gae_lambda'", "less than or equal to 1, got 2")),
        ("estimator.gae_lambda={retained=2,length=3}", ("'estimator.gae_lambda.retained'", "got 2.")),
        ("estimator.gae_lambda={retaned=0.4,length=3}", ("'estimator.gae_lambda.retaned'", "'retained'?")),
        ("estimator.gae_lambda={alpha=0}", ("'estimator.gae_lambda.alpha'", "greater than 0, got 0.")),
        ("estimator.gae_lambda={decay=0.5}", ("'estimator.gae_lambda.bias_weight'", "required.")),
        ("critic.loss={type='hl_gauss',low=2.0}", ("'critic.loss'", "low must be below high")),
        ("policy.minibatch_size=0", ("'policy.minibatch_size'", "got 0.")),
        ("policy.optimizer.betas=[1.0, 0.9]", ("'policy.optimizer'", "betas must be in [0, 1)")),
        ("critic.loss={type='categorical',low=2.0}", ("'critic.loss'", "low must be below high")),
        ("policy.loss.type=dpo", ("'policy.loss'", "Did you mean 'dppo'?")),
        ("run.sinks=['wandb']", ("'run.sinks", "tensorboard")),
        ("runtime.dtype=float16", ("'runtime.dtype'", "bfloat16")),
        ("rollout=5", ("'rollout'", "got 5")),
        ("run.seed=null", ("'run.seed'", "got 'null'")),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(override, parts):
    message = refused(parts[0], override, arm="value")
    assert all(part in message for part in parts), message


def test_an_override_below_a_value_is_refused():
    refused("'steps' is 100, not a section", "run.steps.x=1", of=recipe(run={"steps": 100}))


def test_a_recipe_file_is_read_and_a_shipped_name_wins_over_what_lies_about(tmp_path, monkeypatch):
    path = tmp_path / "own.toml"
    path.write_text('# My own.\npreset = "mean"\n[task]\ntype = "sudoku"\n[arms.x]\npreset = "tether"\n')
    own = load_recipe(str(path))
    assert (own.name, own.text, own.default_arm, list(own.arms)) == ("own", "My own.", "mean", ["x"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert load_recipe("demo").tree["task"]["type"] == "sudoku"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"preset = ", "not valid TOML"),
        (b"\xff\xfe", "cannot be read as text"),
        (b"arms = 3", "one table per arm"),
        (b"[arms]\nx = 3", "one table per arm"),
        (b'[arms."a/b"]', "no fit name"),
        (b"[arms.logs]", "no fit name"),
        (b'[arms.".."]', "no fit name"),
    ],
)
def test_a_broken_recipe_is_refused(tmp_path, content, words):
    path = tmp_path / "own.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        load_recipe(str(path))


@pytest.mark.parametrize("name", ["nowhere.toml", "dmo", "", "/"])
def test_a_missing_recipe_is_refused(name):
    with pytest.raises(ConfigurationError, match="recipe"):
        load_recipe(name)


WORDS = st.sampled_from(sorted({part for path in key_paths(RunConfig) for part in path.split(".")})) | st.text(
    max_size=6
)
VALUES = st.sampled_from(
    [
        "1",
        "-1",
        "0",
        "1e400",
        "nan",
        "true",
        "word",
        "[1,2]",
        "{}",
        "{type='value'}",
        "{a={b=1}}",
        "''",
        "2020-01-01",
        "\x00",
    ]
) | st.text(max_size=8)


@given(
    st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=4), VALUES), max_size=3), st.sampled_from(sorted(PRESETS))
)
@example([(["task"], "{}")], "mean")
@example([(["estimator"], "5")], "mean")
@example([(["critic", "context"], "word")], "pvf")
@example([(["task", "type"], "[1]")], "mean")
def test_whatever_is_overridden_the_answer_is_a_configuration_or_one_sentence(pairs, arm):
    overrides = [f"{'.'.join(keys)}={value}" for keys, value in pairs]
    try:
        config = compose(recipe(critic={"context": {"type": "reference"}}), arm=arm, overrides=overrides)
    except ConfigurationError:
        return
    assert isinstance(config, RunConfig)
