"""Studies as recipes: one command each, every arm resolves against its task and model, and it runs."""

from __future__ import annotations

import pytest

from lecritique.config.comparison import compare_section
from lecritique.config.load import compose, load_recipe, recipe_names
from lecritique.config.resolve import differences
from lecritique.numerics.gae import lambda_from_length
from lecritique.runtime.build import build, load_base
from tests.integration.short_runs import trained, without_clocks

STUDIES = [name for name in recipe_names() if name.startswith("study-")]
SMALL = (
    "task.rows=24",
    "rollout.batch_size=16",
    "run.steps=2",
    "critic.warmup_updates=0",
    "critic.replay.refill_size=16",
)
EVERY_ARM = [(study, arm) for study in STUDIES for arm in compare_section(load_recipe(study).compare).arms]


def test_the_studies_are_there():
    assert set(STUDIES) == {"study-context", "study-group-size", "study-lambda", "study-replay", "study-tether"}
    assert all(len(compare_section(load_recipe(study).compare).seeds) >= 3 for study in STUDIES)


@pytest.mark.parametrize("study", STUDIES)
def test_the_arms_of_a_study_differ_in_what_it_is_about_and_in_nothing_else(study):
    about = {
        "study-context": ("critic.context", "preset"),
        "study-group-size": ("rollout.group_size", "estimator", "critic.context", "preset"),
        "study-lambda": ("estimator.gae_lambda", "preset"),
        "study-replay": ("critic.replay.max_uses", "critic.updates_per_policy_step", "critic.warmup_updates", "preset"),
        "study-tether": ("estimator", "preset"),
    }[study]
    recipe = load_recipe(study)
    configs = [compose(recipe, arm=arm) for arm in compare_section(recipe.compare).arms]
    for config in configs[1:]:
        changed = differences(configs[0], config)
        assert changed and all(key.startswith(about) for key in changed), changed


@pytest.mark.parametrize(("study", "arm"), EVERY_ARM)
def test_every_arm_resolves_against_its_task_and_model(study, arm):
    config = load_base(compose(load_recipe(study), arm=arm, overrides=["task.rows=24"])).config
    assert config.preset == arm and config.runtime.loop == "synchronous"


@pytest.mark.parametrize("share", [99, 90, 50, 10])
def test_a_lambda_keeps_what_its_arm_is_named_for(share):
    config = load_base(compose(load_recipe("study-lambda"), arm=f"keeps-{share}", overrides=["task.rows=24"])).config
    assert config.estimator.gae_lambda == lambda_from_length(16, share / 100)
    assert config.estimator.gae_lambda**16 == pytest.approx(share / 100)


def steps(study: str, arm: str, *overrides: str) -> list[dict[str, float | None]]:
    parts = build(load_base(compose(load_recipe(study), arm=arm, overrides=[*SMALL, *overrides])))
    return without_clocks(trained(parts))


@pytest.mark.parametrize(
    ("study", "arm"),
    [("study-lambda", "keeps-50"), ("study-context", "siblings")],
)
def test_a_study_runs_two_steps(study, arm):
    rows = steps(study, arm)
    assert len(rows) == 2 and all(row["policy_loss"] is not None and row["rollouts"] == 16 for row in rows)


def test_on_short_responses_buckets_are_one_rho():
    """What the recipe says of itself."""
    told = ("rho", "reward", "policy_loss", "explained_variance")
    one, many = ([{k: row[k] for k in told} for row in steps("study-tether", arm)] for arm in ("tether", "buckets"))
    assert one[1]["rho"] not in (None, 0.0)
    for a, b in zip(one, many, strict=True):
        assert a == pytest.approx(b, rel=1e-6)
