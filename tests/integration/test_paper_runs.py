"""The papers' experiments: laptop twins train, full-size recipes describe themselves without hub, GPU or data."""

from __future__ import annotations

import json
import math
import socket

import pytest

from lecritique.config.load import compose, load_recipe, recipe_names
from lecritique.config.resolve import uses_critic
from lecritique.runtime.build import build, load_base
from tests.integration.command_line import call, require_one_sentence
from tests.integration.short_runs import trained

TWINS = [name for name in recipe_names() if name.endswith("-laptop")]
# Two batches of a few groups; the critic counts from the first, and starts from the policy.
SHORT = ("run.steps=2", "run.eval_every=0", "critic.warmup_updates=0", "critic.init=", "runtime.loop=synchronous")
FULL = ("reasoning-gym", "codeio", "sudoku-hard", "minif2f", "deepmath", "knights")


def arms_of(twin: str) -> list[str]:
    """One arm of each kind: the default, a group baseline, and those of the recipe's own that run other code."""
    recipe = load_recipe(twin)
    alike = ("ppo", "critic_only", "eps_0", "no_mask", "whitened", "answer_only", "not_pretrained")
    own = [arm for arm in recipe.arms if arm not in alike]
    return [*dict.fromkeys([recipe.default_arm or "pvf", "mean", *own])]


@pytest.mark.parametrize(("twin", "arm"), [(twin, arm) for twin in TWINS for arm in arms_of(twin)])
def test_a_laptop_twin_trains_two_steps(twin, arm):
    config = compose(load_recipe(twin), arm=arm)
    group = config.rollout.group_size
    minibatches = config.rollout.batch_size // (config.policy.minibatch_size or config.rollout.batch_size)
    # As few groups as the minibatches need, two at least.
    batch = group * max(2, minibatches)
    small = [
        f"rollout.batch_size={batch}", f"policy.minibatch_size={batch // minibatches}", "task.rows=40",
        f"critic.replay={{batch_size={batch},capacity={batch},refill_size={batch}}}",
    ]  # fmt: skip
    parts = build(load_base(compose(load_recipe(twin), arm=arm, overrides=[*SHORT, *small])))
    rows = trained(parts)
    assert len(rows) == 2 and parts.learner.policy.version == 2
    if arm != "mean" and uses_critic(parts.config):
        assert all(math.isfinite(row["value_loss"]) for row in rows)
        assert parts.learner.values is not None and parts.learner.values.trainer.updates >= 2


@pytest.fixture
def no_network(monkeypatch):
    """Fail on any connection."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a connection to {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("name", FULL)
def test_a_dry_run_of_full_size_needs_no_hub_and_no_data(capfd, monkeypatch, tmp_path, no_network, name):
    monkeypatch.chdir(tmp_path)
    answer = call(capfd, monkeypatch, "train", name, "--dry-run")
    assert answer.code == 0 and answer.err == "" and list(tmp_path.iterdir()) == []
    printed, end = json.JSONDecoder().raw_decode(answer.out)
    assert "null" not in answer.out[:end] and printed["runtime"]["dtype"] == "bfloat16"
    text = answer.out[end:]
    batch, group = printed["rollout"]["batch_size"], printed["rollout"]["group_size"]
    steps = printed["run"]["steps"]
    assert f"{batch} rollouts = {batch // group} groups of {group}; {steps} steps = {steps * batch:,} rollouts" in text
    assert f"{batch * printed['sampling']['max_total_tokens']:,} a batch" in text
    assert "from the table of known models" in text and "Not looked at" in text
    for role in ("engine", "policy trainer", "evaluator", "value trainer"):
        assert f"Memory: {role} " in text
    assert "Placement: " in text and "H200" in text and "fits 141 GB" in text and "DOES NOT FIT" not in text


def test_a_dry_run_says_which_layers_would_be_refused(capfd, monkeypatch, no_network):
    olmo = call(capfd, monkeypatch, "train", "deepmath", "--dry-run", "model.name=allenai/Olmo-3-7B-Instruct-DPO")
    assert olmo.code == 0 and "layers of sliding_attention, which this version refuses" in olmo.out


def test_a_dry_run_of_a_folder_reads_its_sizes_and_no_weight(capfd, monkeypatch, tmp_path):
    sizes = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256,
        "num_attention_heads": 4, "max_position_embeddings": 8192,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    answer = call(capfd, monkeypatch, "train", "knights", "--dry-run", f"model.name={tmp_path}", "--arm", "mean")
    require_one_sentence(answer, "'sampling.max_total_tokens' = 10240", "8192")
    short = "sampling.max_total_tokens=8192"
    answer = call(capfd, monkeypatch, "train", "knights", "--dry-run", f"model.name={tmp_path}", short)
    assert answer.code == 0 and f"config.json of '{tmp_path}'" in answer.out.replace("\n", "")


def test_a_dry_run_of_a_model_whose_sizes_nobody_knows_says_so(capfd, monkeypatch, no_network):
    answer = call(capfd, monkeypatch, "train", "knights", "--dry-run", "model.name=nobody/nothing")
    require_one_sentence(answer, "'nobody/nothing'", "config.json")
    answer = call(capfd, monkeypatch, "train", "knights", "--dry-run", "task.splitt=train")
    require_one_sentence(answer, "splitt")
