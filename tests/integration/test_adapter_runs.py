"""Runs with adapters: shared and copied backbones give one run, and what is saved loads everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lecritique.config.adapters import LoraBackbone
from lecritique.core.errors import CheckpointError
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.trajectory import Trajectory, ValueSample
from lecritique.critic.evaluator import TrainersEvaluator
from lecritique.models.adapters import has_adapter, is_own, merged, trained_parameters
from lecritique.models.loading import load_causal_lm
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import state_digest
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.build import Parts, build, load_base, new_critic
from lecritique.runtime.policies import load_policy
from lecritique.runtime.pretraining import fit_critic
from lecritique.runtime.training import train
from tests.integration.command_line import call, require_one_sentence
from tests.integration.short_runs import small_config, small_parts, trained, without_clocks

POLICY, SHARED = "model.adapter={type='lora',rank=4}", "critic.backbone={type='shared',rank=4}"
LORA = "critic.backbone={type='lora',rank=4}"
ON_CPU = {"dtype": torch.float32, "device": "cpu"}
SAME = ("runtime.dtype=float64", "sampling.temperature=2.0")


def metrics(*overrides: str) -> list[dict[str, float | None]]:
    return without_clocks(trained(small_parts(*SAME, *overrides, arm="pvf")))


def test_a_shared_backbone_and_a_frozen_copy_give_the_same_run_with_and_without_recomputing():
    shared = metrics(POLICY, SHARED)
    assert shared == metrics(POLICY, LORA, "runtime.recompute_activations=true")
    assert shared != metrics(POLICY)
    assert all(row["policy_grad_norm"] and row["value_grad_norm"] for row in shared)


def test_an_evaluator_with_the_trainers_weights_gives_the_same_run():
    assert metrics(POLICY, SHARED, "runtime.placement=colocated") == metrics(POLICY, SHARED)
    values = small_parts("runtime.placement=colocated", arm="pvf").learner.values
    assert values is not None and isinstance(values.evaluator, TrainersEvaluator)


@pytest.mark.parametrize("loop", ["synchronous", "asynchronous"])
def test_a_critic_that_serves_itself_publishes_no_copy(loop):
    for placement, kept in (("colocated", False), ("dedicated", True)):
        parts = small_parts(f"runtime.placement={placement}", f"runtime.loop={loop}", arm="pvf")
        assert parts.learner.values is not None
        manifest = parts.learner.values.trainer.publish()
        if kept:
            assert parts.store.open(manifest)
            continue
        with pytest.raises(KeyError, match="of critic version 0"):
            parts.store.open(manifest)


def test_every_role_reads_one_set_of_frozen_weights():
    parts = small_parts(POLICY, SHARED, "policy.modulation.type=fusion", arm="pvf")
    values = parts.learner.values
    assert values is not None and parts.learner.policy.teacher is not None
    models = {
        "policy": parts.learner.policy.model,
        "engine": parts.engine._sampler.model,
        "teacher": parts.learner.policy.teacher.model,
        "critic": values.trainer.model,
        "evaluator": values.evaluator._model,
    }
    frozen = {
        role: {weight.data_ptr() for name, weight in model.named_parameters() if not is_own(name)}
        for role, model in models.items()
    }
    parts.engine.close()
    assert all(places == frozen["policy"] for places in frozen.values())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, Parts]:
    """A finished run of both adapters, and its roles."""
    path = tmp_path_factory.mktemp("adapters") / "run"
    base = load_base(
        small_config(POLICY, LORA, "run.checkpoint_every=1", "policy.optimizer.learning_rate=0.01", arm="pvf")
    )
    parts = build(base)
    directory = RunDirectory.create(path, base.config)
    train(parts, directory)
    directory.close()
    return path, parts


def test_the_final_policy_is_a_plain_model_and_the_checkpoints_too(run):
    path, parts = run
    own = merged(parts.learner.policy.model).state_dict()
    assert state_digest(own) != state_digest(load_causal_lm("tiny").model.state_dict())
    there = AutoModelForCausalLM.from_pretrained(path / "weights" / "policy", dtype=torch.float32)
    assert state_digest(there.state_dict()) == state_digest(own) == load_policy(str(path), **ON_CPU).digest
    newest = max((path / "checkpoints").iterdir())
    assert load_policy(str(newest), **ON_CPU).digest == state_digest(own)
    assert not has_adapter(load_policy(str(newest), **ON_CPU).language.model)
    with (path / "weights" / "policy_adapter" / "adapter_config.json").open() as file:
        assert json.load(file)["r"] == 4


def test_checkpoints_hold_no_frozen_weight(run):
    path, parts = run
    newest = max((path / "checkpoints").iterdir())
    policy, critic = parts.learner.policy.model, parts.learner.values.trainer.model
    trains = trained_parameters(policy) + trained_parameters(critic)
    assert trains < 0.2 * sum(weight.numel() for model in (policy, critic) for weight in model.parameters())
    # Weights and two moments in float32.
    assert (newest / "tensors.safetensors").stat().st_size < 1.3 * 3 * 4 * trains


def test_the_number_of_trained_parameters_is_recorded(run):
    path, parts = run
    started = next(json.loads(line) for line in (path / "events.jsonl").open() if '"started"' in line)
    policy, critic = parts.learner.policy.model, parts.learner.values.trainer.model
    assert started["trained_parameters"] == {"policy": trained_parameters(policy), "critic": trained_parameters(critic)}


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_critic_with_an_adapter_starts_others_of_both_kinds(run, tmp_path, unfinished):
    path, parts = run
    own = parts.learner.values.trainer.model
    source = path
    if unfinished:
        source = shutil.copytree(path, tmp_path / "copy")
        shutil.rmtree(source / "weights")
    ids = torch.arange(40).reshape(2, 20) % 30
    expected = own.head_outputs(own.hidden_states(ids))
    plain = load_causal_lm("tiny").model
    for backbone in ((), (LORA,)):
        critic = new_critic(plain, small_config(f"critic.init={source}", *backbone, arm="pvf"))
        assert has_adapter(critic) == bool(backbone)
        assert torch.allclose(critic.head_outputs(critic.hidden_states(ids)), expected, atol=1e-4)
        assert {name for name, weight in critic.named_parameters() if not weight.requires_grad} == {
            name for name in dict(critic.named_parameters()) if backbone and not is_own(name)
        }


def test_an_unfinished_critic_over_another_model_is_refused(run, tmp_path):
    source = shutil.copytree(run[0], tmp_path / "copy")
    shutil.rmtree(source / "weights")
    with pytest.raises(CheckpointError, match="the saved critic has an adapter on weights with the digest"):
        new_critic(load_causal_lm("tiny-knights").model, small_config(f"critic.init={source}", arm="pvf"))


def test_pretraining_fits_an_adapter_and_saves_a_whole_critic():
    base = load_base(small_config(LORA, "critic.optimizer.learning_rate=0.001", arm="pvf"))
    samples = [sample(row) for row in range(4)]
    fitted = fit_critic(base, samples, samples, epochs=3, measurements=1, balance=False)
    assert has_adapter(fitted.model)
    assert fitted.curve[-1].loss < fitted.curve[0].loss
    started = ValueModel.from_policy(base.language.model, base.config.critic.loss, seed=0).backbone
    assert isinstance(base.config.critic.backbone, LoraBackbone)
    frozen = {name.replace("base_layer.", ""): w for name, w in fitted.model.backbone.named_parameters()}
    assert all(torch.equal(frozen[name], weight) for name, weight in started.named_parameters())


def sample(row: int) -> ValueSample:
    """A random response, right in every second row."""
    ids = np.random.default_rng(row).integers(0, 30, 12)
    mask = np.arange(12) >= 4
    own = Trajectory(
        rollout_id=RolloutId(GroupId(row, 0), 0), token_ids=ids, action_mask=mask,
        sampler_logprobs=np.where(mask, -1.0, 0), turn_index=np.zeros(12, dtype=np.int64),
        policy_version=np.where(mask, 0, -1), episode_return=float(row % 2), truncated=False,
    )  # fmt: skip
    return ValueSample(
        rollout_id=own.rollout_id, trajectories=(own,), contexts=(None,),
        value_targets=(np.where(mask, own.episode_return, 0.0),), value_version=0,
    )  # fmt: skip


@pytest.mark.parametrize("key", ["model.adapter", "critic.backbone"])
def test_a_map_that_the_model_lacks_is_said_before_there_is_a_run(capfd, monkeypatch, tmp_path, key):
    out = tmp_path / "run"
    adapter = f'{key}={{type="lora",target_modules=["nope"]}}'
    answer = call(capfd, monkeypatch, "train", "demo", "--arm", "pvf", adapter, "--out", str(out))
    require_one_sentence(answer, f"'{key}.target_modules' names 'nope'", "q_proj")
    assert not out.exists()
