"""LoRA: an adapter changes nothing at first, trains alone, reads shared memory, and merges into a plain model."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from peft import PeftModel
from small_models import VOCABULARY, credited, small_policy, trajectory
from transformers import AutoModelForCausalLM

from lecritique.config.adapters import LINEAR_MAPS, LoraAdapter, LoraBackbone
from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Bce, Reinforce
from lecritique.config.schema import PolicySection
from lecritique.config.teachers import EmaTeacher, SnapshotTeacher
from lecritique.core.errors import CheckpointError, ConfigurationError
from lecritique.core.trajectory import PolicyBatch, ValueBatch, ValueSample
from lecritique.critic.served import DoubleBuffered
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.adapters import (
    adapted,
    copied,
    frozen_digest,
    has_adapter,
    is_own,
    load_own_weights,
    merged,
    own_weights,
    save_adapter,
    trained_parameters,
)
from lecritique.models.loading import load_value_model
from lecritique.models.merging import MergingStore
from lecritique.models.restoring import restore_trained
from lecritique.models.scoring import token_row, values
from lecritique.models.size import policy_size, value_size
from lecritique.models.value_model import ValueModel, save_value_model
from lecritique.models.weights import MemoryWeightStore, state_digest
from lecritique.policy.teacher import SelfTeacher
from lecritique.policy.trainer import PolicyTrainer
from lecritique.rollout.engine import EmbeddedEngine

LORA = LoraAdapter(rank=3, alpha=6)
IDS = torch.arange(14).reshape(2, 7) % VOCABULARY
MASK = (0, 0, 1, 1, 1, 1)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def state_values(critic: ValueModel) -> list[np.ndarray]:
    return values(critic, [token_row(trajectory(MASK, seed=seed)) for seed in range(3)], max_tokens=64)


def moved(model, seed: int = 0):
    """The model with an adapter that does something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                weight.copy_(torch.randn(weight.shape, generator=generator))
    return model


def policy_trainer(model, **how) -> PolicyTrainer:
    section = PolicySection(loss=Reinforce(), optimizer=OptimizerConfig(learning_rate=1e-2))
    return PolicyTrainer(model, section, how.pop("store", MemoryWeightStore()), temperature=1.0, max_tokens=64, **how)


def policy_batch() -> PolicyBatch:
    return PolicyBatch.of([credited(trajectory(MASK, member=m, seed=m), seed=m) for m in range(4)], trained_version=0)


def value_trainer(model: ValueModel, store=None) -> ValueTrainer:
    return ValueTrainer(model, OptimizerConfig(learning_rate=1e-2), store or MemoryWeightStore(), max_tokens=64)


def value_batch() -> ValueBatch:
    samples = []
    for member in range(4):
        own = trajectory(MASK, member=member, seed=member, episode_return=float(member % 2))
        targets = np.where(own.action_mask, own.episode_return, 0.0)
        samples.append(
            ValueSample(
                rollout_id=own.rollout_id, trajectories=(own,), contexts=(None,), value_targets=(targets,),
                value_version=0,
            )
        )  # fmt: skip
    return ValueBatch.of(samples)


def shared_critic(policy, seed: int = 7) -> ValueModel:
    return ValueModel(adapted(policy.get_decoder(), LoraBackbone(rank=3), seed=seed), Bce(), seed=3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_new_adapter_changes_nothing_to_the_bit(dtype):
    policy = small_policy(dtype=dtype)
    assert torch.equal(logits(adapted(policy, LORA, seed=1)), logits(policy))
    critic = ValueModel.from_policy(policy, Bce(), seed=3)
    for same in (critic.with_adapter(LORA, seed=1), shared_critic(policy)):
        assert all(np.array_equal(a, b) for a, b in zip(state_values(same), state_values(critic), strict=True))


def test_one_set_of_frozen_weights_is_read_by_all():
    policy = small_policy()
    before = [weight.requires_grad for weight in policy.parameters()]
    own = adapted(policy, LORA, seed=1)
    critic = shared_critic(policy)
    engine = EmbeddedEngine(own, MemoryWeightStore(), max_rows=2, chunk_tokens=2, prefill_tokens=64)
    teacher = SelfTeacher(own, EmaTeacher(), temperature=1.0, max_tokens=64, context_length=64)
    served = DoubleBuffered(copied(critic))
    with served.leased() as leased:
        every = [own, critic, engine._sampler.model, teacher.model, leased.model, served._spare]
    there = {weight.data_ptr() for weight in policy.parameters()}
    for model in every:
        frozen = {w.data_ptr() for name, w in model.named_parameters() if not is_own(name)}
        moving = {w.data_ptr() for name, w in model.named_parameters() if is_own(name)}
        assert frozen and frozen <= there and not moving & there
    assert len({w.data_ptr() for m in every for n, w in m.named_parameters() if ".lora_A." in n}) == 6 * 14
    assert [weight.requires_grad for weight in policy.parameters()] == before == [True] * len(before)


def test_only_adapters_and_the_head_get_gradients():
    policy = adapted(small_policy(), LORA, seed=1)
    policy(input_ids=IDS, use_cache=False).logits.square().mean().backward()
    critic = shared_critic(small_policy())
    critic.losses_of(critic.head_outputs(critic.hidden_states(IDS)[0]), torch.ones(7)).sum().backward()
    for model in (policy, critic):
        with_gradient = {name for name, weight in model.named_parameters() if weight.grad is not None}
        assert with_gradient == {name for name, _ in model.named_parameters() if is_own(name)} == {*own_weights(model)}


def test_as_many_numbers_train_as_the_ranks_say():
    # Width 16, two heads of 8 with one of keys and values, 32 inside the MLP, two layers.
    widths = {"q_proj": (16, 16), "k_proj": (16, 8), "v_proj": (16, 8), "o_proj": (16, 16)}
    widths |= {"gate_proj": (16, 32), "up_proj": (16, 32), "down_proj": (32, 16)}
    policy = small_policy()
    assert trained_parameters(adapted(policy, LORA, seed=1)) == 2 * 3 * sum(map(sum, widths.values()))
    two = LoraAdapter(rank=2, target_modules=("q_proj", "down_proj"))
    assert trained_parameters(adapted(policy, two, seed=1)) == 2 * 2 * (32 + 48)
    assert trained_parameters(shared_critic(policy)) == 2 * 3 * sum(map(sum, widths.values())) + 16 * 2 + 2
    assert trained_parameters(policy) == sum(weight.numel() for weight in policy.parameters())


def test_a_critics_training_leaves_the_policy_as_it_is_and_the_other_way_round():
    plain = small_policy()
    policy, critic = moved(adapted(plain, LORA, seed=1)), shared_critic(plain)
    base, before, values_before = state_digest(plain.state_dict()), logits(policy), state_values(critic)
    training = value_trainer(critic)
    assert training.update(value_batch())["value_grad_norm"] > 0
    assert torch.equal(logits(policy), before)
    values_after = state_values(critic)
    assert not np.array_equal(values_after[0], values_before[0])
    policy_trainer(policy).step(policy_batch())
    assert not torch.equal(logits(policy), before)
    assert all(np.array_equal(a, b) for a, b in zip(state_values(critic), values_after, strict=True))
    assert state_digest(plain.state_dict()) == base


def test_a_shared_backbone_and_a_frozen_copy_train_to_the_same_bits():
    plain = small_policy()
    copy = ValueModel.from_policy(plain, Bce(), seed=3).with_adapter(LoraBackbone(rank=3), seed=7)
    shared = shared_critic(plain)
    rows = []
    for critic in (copy, shared):
        training = value_trainer(critic)
        rows.append([training.update(value_batch()) for _ in range(3)] + [state_values(critic)[0].tolist()])
    assert rows[0] == rows[1]
    there = {weight.data_ptr() for weight in plain.parameters()}
    assert not {weight.data_ptr() for weight in copy.parameters()} & there


def test_what_is_published_and_saved_is_the_adapter_alone():
    store = MemoryWeightStore()
    policy, critic = adapted(small_policy(), LORA, seed=1), shared_critic(small_policy())
    trainers = (policy_trainer(policy, store=store), value_trainer(critic, store))
    for trainer in trainers:
        own = {name for name, _ in trainer.model.named_parameters() if is_own(name)}
        assert set(store.open(trainer.publish())) == own == set(trainer.state()["weights"])
        assert trainer.state()["frozen"] == frozen_digest(trainer.model)
    trainers[0].step(policy_batch())
    trainers[1].update(value_batch())
    moments = trainers[1].state()["optimizer"]["first_moments"]
    assert sum(moment.numel() for moment in moments.values()) == trained_parameters(critic)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_merged_computes_the_same_up_to_rounding(dtype, limit):
    plain = small_policy(dtype=dtype, tied=False)
    policy = moved(adapted(plain, LORA, seed=1))
    whole = merged(policy)
    assert type(whole) is type(plain) and [*whole.state_dict()] == [*plain.state_dict()]
    assert not has_adapter(whole) and frozen_digest(whole) is None
    assert (logits(policy) - logits(plain)).abs().max() > 0.1
    assert (logits(whole) - logits(policy)).abs().max() < limit
    assert has_adapter(policy) and merged(plain) is plain


def test_a_merged_policy_loads_without_us_and_the_adapter_alone_with_peft(tmp_path):
    plain = small_policy(dtype=torch.float32)
    policy = moved(adapted(plain, LORA, seed=1))
    merged(policy).save_pretrained(tmp_path / "merged")
    there = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert torch.equal(logits(there), logits(merged(policy)))
    save_adapter(policy, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(small_policy(dtype=torch.float32), str(tmp_path / "adapter"))
    assert torch.equal(logits(theirs.eval()), logits(policy))


def test_a_critic_is_saved_whole(tmp_path):
    critic = shared_critic(small_policy())
    moved(critic)
    save_value_model(critic, tmp_path)
    there = load_value_model(tmp_path)
    assert all(np.allclose(a, b, atol=1e-12) for a, b in zip(state_values(there), state_values(critic), strict=True))
    assert has_adapter(critic)


def test_a_trainers_state_is_put_into_a_plain_model_and_refused_by_others():
    plain = small_policy()
    trainer, critic = policy_trainer(adapted(plain, LORA, seed=1)), value_trainer(shared_critic(plain))
    trainer.step(policy_batch())
    critic.update(value_batch())
    there = small_policy()
    restore_trained(there, trainer.state(), LORA, role="policy")
    assert torch.equal(logits(there), logits(merged(trainer.model)))
    values_there = ValueModel.from_policy(small_policy(), Bce(), seed=5)
    restore_trained(values_there, critic.state(), LoraBackbone(rank=3), role="critic")
    assert np.allclose(state_values(values_there)[0], state_values(critic.model)[0], atol=1e-12)
    with pytest.raises(
        CheckpointError, match=r"saved policy has an adapter on weights with the digest .* other weights"
    ):
        restore_trained(small_policy(seed=1), trainer.state(), LORA, role="policy")
    with pytest.raises(CheckpointError, match=r"have \(3, 32\) in float64 for .*, this run has \(4, 32\)"):
        restore_trained(small_policy(), trainer.state(), LoraAdapter(rank=4), role="policy")
    with pytest.raises(CheckpointError, match=r"the saved policy has an adapter on .*, this run's has no adapter"):
        policy_trainer(small_policy()).restore(trainer.state())


def test_a_restored_adapter_trains_on_to_the_same_bits():
    ahead = policy_trainer(adapted(small_policy(), LORA, seed=1))
    ahead.step(policy_batch())
    behind = policy_trainer(adapted(small_policy(), LORA, seed=2))
    behind.restore(ahead.state())
    for trainer in (ahead, behind):
        trainer.step(policy_batch())
    assert torch.equal(logits(ahead.model), logits(behind.model))
    assert state_digest(own_weights(ahead.model)) == state_digest(own_weights(behind.model))


@pytest.mark.parametrize("config", [EmaTeacher(decay=0.9), SnapshotTeacher(refresh_every=1)])
def test_a_teacher_follows_the_adapter_and_leaves_the_frozen_weights_alone(config):
    plain = small_policy()
    base = state_digest(plain.state_dict())
    trainer = policy_trainer(adapted(plain, LORA, seed=1))
    teacher = SelfTeacher(trainer.model, config, temperature=1.0, max_tokens=64, context_length=64)
    assert torch.equal(logits(teacher.model), logits(plain))
    before = {name: weight.clone() for name, weight in own_weights(teacher.model).items()}
    trainer.step(policy_batch())
    teacher.after_optimizer_step(trainer.model)
    teacher.after_batch(trainer.model, version=1)
    kept = 0.9 if config.type == "ema" else 0.0
    for name, weight in own_weights(teacher.model).items():
        wanted = kept * before[name] + (1 - kept) * own_weights(trainer.model)[name]
        assert torch.allclose(weight, wanted, rtol=1e-12, atol=0)
    assert state_digest(plain.state_dict()) == base
    assert teacher.state()["weights"].keys() == own_weights(trainer.model).keys()


def test_the_merging_store_publishes_whole_weights():
    plain = small_policy()
    policy, store = moved(adapted(plain, LORA, seed=1)), MemoryWeightStore()
    merging = MergingStore(store, policy)
    manifests = [merging.put("policy", own_weights(adapted(plain, LORA, seed=1))), None]
    assert state_digest(store.open(manifests[0])) == state_digest(plain.state_dict())
    manifests[1] = merging.put("policy", own_weights(policy))
    assert [manifest.version for manifest in manifests] == [0, 1]
    whole = store.open(manifests[1])
    assert manifests[1].digest == state_digest(whole)
    there = small_policy()
    there.load_state_dict(whole)
    assert torch.equal(logits(there), logits(merged(policy)))


def test_arithmetic_of_training_leaves_out_the_gradients_of_frozen_weights():
    plain = small_policy()
    policy, critic = adapted(plain, LORA, seed=1), shared_critic(plain)
    for size, model in ((policy_size(policy), policy), (value_size(critic), critic)):
        trained = trained_parameters(model)
        assert size.frozen == size.parameters - trained
        attention = 3 * 4 * size.attention_width * 55
        assert size.training(10, 55) == 2 * 10 * (2 * size.parameters + trained) + attention
    assert policy_size(plain).frozen == 0


def test_the_seed_alone_decides_a_and_the_global_generator_is_left_alone():
    plain = small_policy()
    torch.manual_seed(5)
    one = state_digest(own_weights(adapted(plain, LORA, seed=1)))
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)
    assert state_digest(own_weights(adapted(plain, LORA, seed=1))) == one
    assert state_digest(own_weights(adapted(plain, LORA, seed=2))) != one
    bound = 16**-0.5
    drawn = own_weights(adapted(plain, LORA, seed=1))["model.layers.0.self_attn.q_proj.lora_A.default.weight"]
    assert 0.5 * bound < drawn.abs().max() <= bound


def test_adapters_of_narrow_weights_are_kept_in_float32():
    policy = adapted(small_policy(dtype=torch.bfloat16), LORA, seed=1)
    assert {weight.dtype for weight in own_weights(policy).values()} == {torch.float32}
    assert logits(policy).dtype == torch.bfloat16
    assert {w.dtype for w in merged(moved(policy)).state_dict().values()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["c_attn", "lm_head", "self_attn", "norm"])
def test_a_map_that_is_not_there_is_refused_with_those_that_are(name):
    lora = LoraAdapter(target_modules=("q_proj", name))
    with pytest.raises(ConfigurationError, match=f"names '{name}', .* has no such linear map .* down_proj, gate_proj"):
        adapted(small_policy(tied=False), lora, seed=1)


def test_weights_of_another_adapter_are_refused():
    plain = small_policy()
    with pytest.raises(ValueError, match="of another adapter: 28 names differ"):
        load_own_weights(adapted(plain, LORA, seed=1), {})
    with pytest.raises(ValueError, match="of another adapter"):
        load_own_weights(adapted(plain, LORA, seed=1), plain.state_dict())


def test_a_missing_peft_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"'model.adapter.type' .* pip install 'lecritique\[lora\]'"):
        adapted(small_policy(), LORA, seed=1)


def test_the_default_maps_are_all_linear_maps_of_a_layer():
    layer = small_policy().model.layers[0]
    found = {name.rpartition(".")[2] for name, module in layer.named_modules() if isinstance(module, torch.nn.Linear)}
    assert found == set(LINEAR_MAPS)
