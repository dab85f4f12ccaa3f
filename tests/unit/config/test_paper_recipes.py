"""The recipes of both papers say what section 9 of the method sheet says; every arm of theirs resolves."""

from __future__ import annotations

from typing import Any

import pytest

from lecritique.config.load import arm_names, compose, load_recipe, recipe_names
from lecritique.config.presets import PRESETS
from lecritique.config.resolve import Facts, resolve, uses_critic, uses_teacher
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError

FACTS = Facts(device="cuda", context_length=262144, reward_range=(0.0, 1.0))
QWEN = "Qwen/Qwen3-4B-Instruct-2507"


def resolved(recipe: str, arm: str | None = None, *overrides: str) -> RunConfig:
    return resolve(compose(load_recipe(recipe), arm=arm, overrides=overrides), FACTS)


def at(config: RunConfig, path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value[key] if isinstance(value, dict) else getattr(value, key)
    return value


# Section 9, LC: batch in rollouts, K, tokens of a turn and in all, steps, arms, what the critic may see.
LE_CRITIQUE = {
    "reasoning-gym": (QWEN, 128, 8, 6144, 8192, 800, "mean value pvf tether value_k1 pvf_k1", "reference", (1, 1)),
    "codeio": (QWEN, 128, 4, 8192, 4096 + 8192, 650, "mean value pvf tether", "siblings", (2, 1)),
    "sudoku-hard": (QWEN, 64, 4, 8192, 32768, 600, "mean value pvf tether", "reference", (3, 1)),
    "minif2f": ("Qwen/Qwen3.5-4B", 128, 4, 4096, 24576, 500, "mean value tether", None, (3, 1)),
}
# The same for all: code defaults of the policy; critic, replay, warm-up.
LE_CRITIQUE_ALL = {
    "policy.optimizer.learning_rate": 1e-6,
    "policy.optimizer.weight_decay": 0.01,
    "policy.optimizer.max_grad_norm": 1.0,
    "policy.loss.type": "dppo",
    "policy.epochs": 1,
    "sampling.temperature": 1.0,
    "sampling.top_p": 1.0,
    "sampling.top_k": 0,
    "runtime.loop": "asynchronous",
    "runtime.dtype": "bfloat16",
    "rollout.max_staleness": 8,
}
LE_CRITIQUE_CRITIC = {
    "critic.optimizer.learning_rate": 1e-5,
    "critic.optimizer.betas": (0.9, 0.999),
    "critic.optimizer.weight_decay": 0.01,
    "critic.optimizer.warmup_steps": 0,
    "critic.loss.type": "bce",
    "critic.warmup_updates": 20,
    "critic.warmup": "discard",
    "critic.replay.capacity": 256,
    "critic.replay.max_uses": 2,
    "critic.schedule.type": "score_then_train",
    "runtime.placement": "dedicated",
}


@pytest.mark.parametrize("name", LE_CRITIQUE)
def test_le_critique(name):
    model, batch, group, turn, total, steps, arms, context, nodes = LE_CRITIQUE[name]
    source = load_recipe(name)
    for arm in arms.split():
        config = resolved(name, arm)
        found = (config.model.name, config.rollout.batch_size, config.rollout.group_size)
        assert found == (model, batch, 1 if arm.endswith("_k1") else group), arm
        assert (config.sampling.max_turn_tokens, config.sampling.max_total_tokens) == (turn, total)
        assert config.run.steps == steps and config.policy.minibatch_size == batch
        wanted = LE_CRITIQUE_ALL | (LE_CRITIQUE_CRITIC if uses_critic(config) else {})
        assert {path: at(config, path) for path in wanted} == wanted, arm
        if uses_critic(config):
            assert config.critic.replay.batch_size == batch
            assert config.critic.context.type == (context if arm.startswith("pvf") else "none")
    assert source.compare["arms"] == arms.split()
    assert source.compare["seeds"] == ([0, 1] if name == "reasoning-gym" else [0, 1, 2])
    assert source.cluster is not None and source.cluster.gpu == "H200" and not source.cluster.shared
    assert (source.cluster.inference_nodes, source.cluster.trainer_nodes) == nodes


def test_what_only_one_of_le_critiques_experiments_says():
    assert resolved("codeio").data.max_prompt_tokens == 4096
    assert resolved("sudoku-hard").task.options["rows"] == 5000
    assert resolved("minif2f").task.options["attempts"] == 3
    for arm in ("mean", "tether"):
        with pytest.raises(ConfigurationError, match=r"'rollout\.group_size' of at least 2"):
            resolved("reasoning-gym", arm, "rollout.group_size=1")


# Section 9, VP: 128 prompts of 8 are 1,024 responses, minibatches of 32 prompts, warm-up counts rollout batches.
VASPO = {
    "run.steps": 200,
    "model.name": QWEN,
    "rollout.batch_size": 128 * 8,
    "rollout.group_size": 8,
    "policy.minibatch_size": 32 * 8,
    "policy.epochs": 1,
    "policy.optimizer.learning_rate": 1e-6,
    "policy.optimizer.weight_decay": 0.01,
    "policy.optimizer.warmup_steps": 50 * 4,
    "sampling.temperature": 1.0,
    "sampling.top_p": 0.95,
    "sampling.top_k": 20,
    "sampling.max_turn_tokens": 8192,
    "sampling.max_total_tokens": 8192 + 2048,
    "data.max_prompt_tokens": 2048,
    "eval.temperature": 0.6,
    "eval.top_p": 0.95,
    "eval.top_k": 20,
    "runtime.loop": "synchronous",
}
VASPO_CRITIC = {
    "critic.optimizer.learning_rate": 5e-6,
    "critic.optimizer.weight_decay": 0.01,
    "critic.optimizer.warmup_steps": 50 * 4,
    "critic.loss.type": "clipped_mse",
    "critic.schedule.type": "train_then_score",
    "critic.warmup_updates": 0,
    "critic.value_target_lambda": 1.0,
    "estimator.gamma": 1.0,
    "estimator.gae_lambda": 1.0,
    "policy.loss.type": "ppo",
    "policy.loss.eps_low": 0.2,
    "policy.loss.eps_high": 0.2,
    "policy.loss.reduction": "response_mean",
    "policy.loss.rollout_weight": True,
}
FUSION = {
    "policy.modulation.type": "fusion",
    "policy.modulation.eps_w": 0.2,
    "policy.modulation.tau": 0.02,
    "policy.modulation.delta": 0.02,
    "policy.modulation.masked": True,
    "policy.teacher.type": "ema",
    "policy.teacher.decay": 0.95,
    "policy.teacher.content": "both",
    "policy.whiten": False,
    "critic.schedule.pre_update": True,
    "critic.context.content": "both",
    "critic.context.placement": "user_suffix",
}
# Each ablation changes this of `vaspo`, and nothing else.
ABLATIONS = {
    "no_pre_update": {"critic.schedule.pre_update": False},
    "no_mask": {"policy.modulation.masked": False},
    "whitened": {"policy.whiten": True},
    "answer_only": {"critic.context.content": "answer", "policy.teacher.content": "answer"},
    "eps_0": {"policy.modulation.eps_w": 0.0},
    "not_pretrained": {"critic.init": ""},
}
ARMS = ("ppo", "critic_only", "vaspo", "opsd", "rlsd", "dapo")


@pytest.mark.parametrize("name", ["deepmath", "knights"])
@pytest.mark.parametrize("arm", [*ARMS, *ABLATIONS])
def test_vaspo(name, arm):
    config = resolved(name, arm)
    wanted = dict(VASPO)
    fuses = arm == "vaspo" or arm in ABLATIONS
    if arm in ("ppo", "critic_only") or fuses:
        pretrained = {"ppo": "clean"}.get(arm, "privileged")
        wanted |= VASPO_CRITIC | {"critic.init": f"runs/{name}-critics/{pretrained}"}
    if arm == "answer_only":  # its critic has read another context in pretraining too
        wanted["critic.init"] = f"runs/{name}-critics-answer/privileged"
    if fuses:
        wanted |= FUSION | ABLATIONS.get(arm, {})
    assert {path: at(config, path) for path in wanted} == wanted
    assert uses_teacher(config) == (arm not in ("ppo", "critic_only", "dapo"))
    if arm in ("ppo", "critic_only"):
        assert config.critic.context.type == ("none" if arm == "ppo" else "reference")


@pytest.mark.parametrize("name", ["deepmath", "knights"])
def test_a_comparison_of_vaspos_has_all_its_arms(name):
    assert load_recipe(name).compare["arms"] == [*ARMS, *ABLATIONS]


def test_the_two_other_baselines_of_vaspo():
    dapo, rlsd = resolved("deepmath", "dapo"), resolved("deepmath", "rlsd")
    wanted = {
        "policy.loss.eps_low": 0.2, "policy.loss.eps_high": 0.28, "policy.loss.reduction": "token_mean",
        "estimator.scale": "std", "estimator.overlong.limit": 8192, "rollout.dynamic_sampling": 10,
    }  # fmt: skip
    assert {path: at(dapo, path) for path in wanted} == wanted
    wanted = {
        "estimator.scale": "std", "policy.modulation.eps_w": 0.2, "policy.modulation.mix": 0.5,
        "policy.modulation.mix_steps": 50, "policy.teacher.type": "snapshot",
    }  # fmt: skip
    assert {path: at(rlsd, path) for path in wanted} == wanted
    assert resolved("deepmath", "opsd").policy.loss.kind == "forward_kl"  # type: ignore[union-attr]


def test_what_vaspo_evaluates_while_it_trains_and_after():
    deepmath, knights = resolved("deepmath"), resolved("knights")
    assert deepmath.run.eval_every and deepmath.eval.k == 16 and set(deepmath.eval.tasks) == {"aime24", "aime25"}
    assert all("dataset" in task and task["solution_columns"] == [] for task in deepmath.eval.tasks.values())
    assert knights.run.eval_every and knights.eval.k == 4
    assert {task["split"] for task in knights.eval.tasks.values()} == {"held_out", "roles_9", "roles_10", "roles_11"}
    samples = {
        **dict.fromkeys(("aime24", "aime25", "aime26", "hmmt25"), 32), "minerva": 8, "olympiadbench": 8,
        "knights-eval": 16,
    }  # fmt: skip
    for name, k in samples.items():
        config = compose(load_recipe(name))
        assert config.rollout.group_size == k, name
        assert (config.sampling.temperature, config.sampling.top_p, config.sampling.top_k) == (0.6, 0.95, 20)
        assert config.sampling.max_turn_tokens == 8192


def test_vaspos_step_times_are_the_sheets():
    cluster = load_recipe("deepmath").cluster
    assert cluster is not None
    published = dict(cluster.published_seconds)
    assert published.pop("total") == 412.28 and published["values"] == pytest.approx(18.11 + 18.34)
    assert {published[key] for key in ("rollout", "reward", "log_probs", "teacher")} == {191.97, 2.68, 20.72, 22.29}
    assert {published[key] for key in ("critic", "actor", "advantages_and_fusion")} == {66.05, 60.89, 91.37}
    # The parts are a fifth more than the total. They fit it to 1% when the critic's update and the scoring after it
    # are inside "advantages and fusion", where train_then_score has them.
    assert sum(published.values()) / 412.28 == pytest.approx(1.194, abs=0.001)
    assert (sum(published.values()) - 66.05 - 18.34) / 412.28 == pytest.approx(0.990, abs=0.001)


@pytest.mark.parametrize("name", [*LE_CRITIQUE, "deepmath", "knights"])
def test_every_arm_of_a_paper_s_recipe_resolves(name):
    for arm in arm_names(load_recipe(name)):
        assert resolved(name, arm).preset == arm


@pytest.mark.parametrize("name", [*LE_CRITIQUE, "deepmath"])
def test_a_laptop_twin_has_the_same_structure(name):
    twin = f"{name}-laptop"
    assert twin in recipe_names()
    own_arms = set(load_recipe(name).arms) - {"answer_only"}  # the twin's context is the answer anyway
    assert set(load_recipe(twin).arms) == own_arms
    both = [load_recipe(which).compare for which in (name, twin)]
    assert both[1]["arms"] == [arm for arm in both[0]["arms"] if arm != "answer_only"]
    assert both[0]["seeds"] == both[1]["seeds"]
    for arm in [*PRESETS, *sorted(own_arms)]:
        full, small = resolved(name, arm), resolved(twin, arm)
        alike = (
            "preset", "estimator.type", "rollout.group_size", "policy.loss", "policy.epochs", "policy.modulation",
            "policy.teacher.type", "policy.whiten", "critic.schedule", "critic.loss", "critic.context.type",
            "critic.warmup", "critic.warmup_updates", "critic.replay.max_uses", "critic.updates_per_policy_step",
            "policy.optimizer.weight_decay", "critic.optimizer.betas", "rollout.dynamic_sampling", "runtime.loop",
            "runtime.placement", "sampling.top_p", "sampling.top_k", "eval.k", "run.eval_every",
        )  # fmt: skip
        assert {path: at(small, path) for path in alike} == {path: at(full, path) for path in alike}, arm
        if full.run.eval_every:
            assert small.eval.temperature == full.eval.temperature
        for config in (full, small):
            batch = config.rollout.batch_size
            minibatches = batch // (config.policy.minibatch_size or batch)
            assert minibatches == (4 if name == "deepmath" else 1)
            assert (config.critic.init == "") == (full.critic.init == "")
        if uses_critic(full) and hasattr(full.critic.context, "placement"):
            assert small.critic.context.placement == full.critic.context.placement  # type: ignore[union-attr]
        # Replay holds as many batches, and a batch of it is as large a part of the policy's.
        for a, b in (("capacity", "batch_size"), ("refill_size", "capacity")):
            ratios = [at(c, f"critic.replay.{a}") / at(c, f"critic.replay.{b}") for c in (full, small)]
            assert ratios[0] == ratios[1], (arm, a)
