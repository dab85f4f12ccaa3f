"""`[compare]`, `base` and arms of a recipe's own: what a file may say, and the one sentence when it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lecritique.config.comparison import budget_of, budget_overrides, compare_section
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import differences
from lecritique.config.schema import BudgetSection
from lecritique.core.errors import ConfigurationError


def recipe(folder: Path, text: str, name: str = "own"):
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return load_recipe(str(folder / f"{name}.toml"))


def test_a_recipe_says_how_its_arms_are_compared(tmp_path):
    own = recipe(
        tmp_path, 'base = "demo"\n[compare]\narms = ["mean", "pvf"]\nseeds = [3, 4]\njobs = 2\nbudget.tokens = 2e6'
    )
    found = compare_section(own.compare)
    assert (found.arms, found.seeds, found.jobs, found.budget.tokens) == (("mean", "pvf"), (3, 4), 2, 2_000_000)
    assert compose(own, arm="mean").run.budget == BudgetSection()  # a single run does not read the table
    assert compare_section({}).arms == ("mean", "value", "pvf", "tether") and compare_section({}).seeds == (0,)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("arm = ['mean']", ("compare.arm", "'arms'")),
        ("seeds = ['a']", ("compare.seeds", "'a'")),
        ("seeds = []", ("compare.seeds",)),
        ("arms = ['mean', 'mean']", ("compare.arms", "twice")),
        ("jobs = 0", ("compare.jobs",)),
        ("budget = {tokens = 5, flops = 3}", ("tokens and flops",)),
        ("budget = {token = 5}", ("compare.budget.token", "tokens")),
        ("budget = {seconds = inf}", ("compare.budget.seconds",)),
    ],
)
def test_an_unfit_table_is_refused_in_one_sentence(tmp_path, table, words):
    with pytest.raises(ConfigurationError) as refused:
        compare_section(recipe(tmp_path, f"[compare]\n{table}").compare)
    assert all(word in str(refused.value) for word in words) and "\n" not in str(refused.value)


def test_compare_must_be_a_table(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'compare' must be a table, got 3"):
        recipe(tmp_path, "compare = 3")


@pytest.mark.parametrize("text", ["tokens", "tokens=", "tokens=many", "token=5", "tokens=0", "tokens=-1", "tokens=true",
                                  "tokens=nan", "seconds=inf", "a.tokens=3", "tokens=1.5", ""])  # fmt: skip
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(ConfigurationError, match="--budget"):
        budget_of(text)


@pytest.mark.parametrize("text", ["rollouts=4096", "tokens=2e6", "flops=1e15", "seconds=90.5"])
def test_a_budget_becomes_overrides_of_every_arm(text):
    budget = budget_of(text)
    unit = text.split("=")[0]
    config = compose(load_recipe("demo"), arm="mean", overrides=budget_overrides(budget))
    assert config.run.budget == budget and getattr(config.run.budget, unit) == float(text.split("=")[1])
    assert config.run.steps == 100_000
    # What the command line says of the steps comes after it.
    assert compose(load_recipe("demo"), arm="mean", overrides=[*budget_overrides(budget), "run.steps=7"]).run.steps == 7


def test_a_recipe_on_a_base_says_only_what_is_different(tmp_path):
    own = recipe(tmp_path, 'base = "demo"\n[run]\nsteps = 5\n[arms.hot]\npreset = "mean"\nsampling.temperature = 3.0')
    demo = load_recipe("demo")
    assert own.default_arm == demo.default_arm == "pvf"
    assert set(differences(compose(own), compose(demo))) == {"run.steps"}
    assert set(differences(compose(own, arm="hot"), compose(demo, arm="mean"))) == {
        "preset",
        "run.steps",
        "sampling.temperature",
    }
    above = recipe(tmp_path, f"base = '{tmp_path / 'own.toml'}'\nrun.steps = 6\narms.hot.run.seed = 3", name="above")
    hot = compose(above, arm="hot")
    assert (hot.sampling.temperature, hot.run.steps, hot.run.seed, hot.preset) == (3.0, 6, 3, "hot")
    assert compose(above, arm="mean").run.seed == 0


def test_a_base_that_is_none_or_leads_in_a_circle_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="no recipe 'dmo'"):
        recipe(tmp_path, 'base = "dmo"')
    with pytest.raises(ConfigurationError, match="'base' must be the name"):
        recipe(tmp_path, "base = 3")
    (tmp_path / "other.toml").write_text(f"base = '{tmp_path / 'own.toml'}'")
    with pytest.raises(ConfigurationError, match="leads back"):
        recipe(tmp_path, f"base = '{tmp_path / 'other.toml'}'")


# One key of every section, and whole unions: an arm of a study may set any key, on a preset of its own choice.
ANY_KEY = {
    "run.save_rollouts_every": "3",
    "run.checkpoint_every": "7",
    "task.min_empty": "4",
    "task.form": '"multi_turn"',
    "data.evaluation_fraction": "0.25",
    "model.name": '"tiny-multi-turn"',
    "sampling.temperature": "0.5",
    "rollout.group_size": "8",
    "estimator": '{ type = "tether", decay = 0.5 }',
    "critic.context": '{ type = "siblings", max_tokens = 90 }',
    "critic.schedule": '{ type = "train_then_score", pre_update = false }',
    "critic.loss": '{ type = "mse" }',
    "critic.replay.max_uses": "5",
    "critic.optimizer.learning_rate": "3e-4",
    "policy.loss": '{ type = "ppo", eps_low = 0.1 }',
    "policy.modulation": '{ type = "rlsd" }',
    "policy.teacher.content": '"answer"',
    "eval.k": "5",
    "runtime.dtype": '"float64"',
}


@pytest.mark.parametrize("preset", ["leave_one_out", "pvf", "vaspo"])
@pytest.mark.parametrize(("key", "value"), ANY_KEY.items())
def test_an_arm_may_set_any_key_on_a_preset_of_its_own(tmp_path, key, value, preset):
    own = recipe(tmp_path, f'base = "demo"\n[arms.mine]\npreset = "{preset}"\n{key} = {value}')
    found, plain = compose(own, arm="mine"), compose(load_recipe("demo"), arm=preset)
    changed = {name for name in differences(found, plain) if not name.startswith("data.")} - {"preset"}
    changed |= {"data.evaluation_fraction"} & set(differences(found, plain))
    assert changed and all(name == key or name.startswith(f"{key}.") for name in changed)
    assert set(differences(found, compose(load_recipe("demo"), arm=preset, overrides=[f"{key}={value}"]))) <= {
        "preset",
        "data.contexts",
        "data.teachers",
    }
