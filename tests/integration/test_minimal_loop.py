"""The one-file specification and the package are the same method: equal to the last bit in float64."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from lecritique.config.load import compose, load_recipe
from lecritique.runtime.build import build, load_base
from tests.integration.short_runs import trained

FILE = Path(__file__).parents[2] / "examples" / "minimal_loop.py"
ALLOWED = (
    "lecritique.core", "lecritique.config.losses", "lecritique.models", "lecritique.numerics", "lecritique.tasks",
    "lecritique.rollout.sampler",
)  # fmt: skip
STEPS, BATCH, WARMUP = 6, 16, 2
# In one turn all responses are equally long, so that the losses of group baselines sum to 0.
FORMS = {
    "single_turn": {"min_empty": 5, "max_empty": 9, "rows": 40, "seed": 0},
    "multi_turn": {"min_empty": 3, "max_empty": 6, "rows": 40, "seed": 0, "form": "multi_turn"},
}


@pytest.fixture(scope="module")
def minimal():
    spec = importlib.util.spec_from_file_location("minimal_loop", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["minimal_loop"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["minimal_loop"]


@pytest.mark.parametrize(
    ("arm", "form"),
    [
        ("mean", "multi_turn"),
        ("leave_one_out", "multi_turn"),
        ("value", "single_turn"),
        ("pvf", "single_turn"),
        ("pvf", "multi_turn"),
        ("tether", "single_turn"),
        ("tether", "multi_turn"),
    ],
)
def test_it_gives_the_packages_numbers_to_the_last_bit(minimal, arm, form):
    options = FORMS[form]
    overrides = [
        "runtime.dtype=float64", f"run.steps={STEPS}", f"rollout.batch_size={BATCH}", f"critic.warmup_updates={WARMUP}",
        *(f"task.{key}={value}" for key, value in options.items()),
    ]  # fmt: skip
    package = trained(build(load_base(compose(load_recipe("demo"), arm=arm, overrides=overrides))), STEPS)
    settings = minimal.Settings(arm=arm, steps=STEPS, batch=BATCH, dtype=torch.float64, warmup_updates=WARMUP)
    loop = list(minimal.train(settings, options))
    assert len(package) == len(loop) == STEPS
    for ours, theirs in zip(loop, package, strict=True):
        assert ours["reward"] == theirs["reward"]
        assert ours["policy_loss"] == theirs["policy_loss"]
        if "value_loss" in ours:
            assert ours["value_loss"] == theirs["value_loss"]
        if arm == "tether":
            assert ours["rho"] == theirs["rho"]
    # What was compared is far from trivial.
    assert max(abs(row["policy_loss"]) for row in package) > 1e-3
    assert len({row["reward"] for row in package}) > 1
    if arm in ("value", "pvf", "tether"):
        assert sum("value_loss" in row for row in loop) == STEPS - 1
        assert package[-1]["value_version"] > WARMUP
    if arm == "tether":
        assert any(row["rho"] > 0 for row in package)


def test_its_defaults_are_the_demos(minimal):
    config, settings = compose(load_recipe("demo"), arm="tether"), minimal.Settings()
    assert (settings.batch, settings.group) == (config.rollout.batch_size, config.rollout.group_size)
    assert settings.policy_lr == config.policy.optimizer.learning_rate
    assert settings.critic_lr == config.critic.optimizer.learning_rate
    assert settings.turn_tokens == config.sampling.max_turn_tokens
    assert settings.temperature == config.sampling.temperature
    assert (settings.warmup_updates, settings.uses) == (config.critic.warmup_updates, config.critic.replay.max_uses)
    assert settings.decay == config.estimator.decay


def test_it_is_one_short_file_that_spells_the_method_out():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        for name in names:
            assert not name.startswith("lecritique") or name.startswith(ALLOWED), name
