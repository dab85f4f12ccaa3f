"""Adapters, shards and recomputed activations on GPUs, counted by hand; and what the embedded engine joins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lecritique.cli.describe import memory, placed_roles, placement
from lecritique.config.adapters import LoraAdapter
from lecritique.config.cluster import Cluster
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import Facts, resolve
from lecritique.config.schema import RunConfig
from lecritique.models.adapters import adapted
from lecritique.models.loading import load_causal_lm
from lecritique.models.size import policy_size
from lecritique.planning import weights
from lecritique.planning.adapters import adapter_parameters
from lecritique.planning.memory import gathered_bytes, logit_bytes, role_memory
from lecritique.planning.placement import GPUS, GpuMemory, Placement, memory_on_gpus, placement_of
from lecritique.planning.roofline import Efficiency, Roofline
from lecritique.planning.shapes import ModelShape, shape_of
from lecritique.planning.weights import joined_numbers, policy_weights
from lecritique.planning.work import Work
from lecritique.rollout import joined_decoder

QWEN, OLMO, TINY = shape_of("Qwen/Qwen3-4B-Instruct-2507"), shape_of("allenai/Olmo-3-7B-Instruct-DPO"), shape_of("tiny")
P, B = QWEN.parameters, QWEN.backbone_parameters
POLICY, LORA, SHARED = "model.adapter.type=lora", "critic.backbone.type=lora", "critic.backbone.type=shared"
A = adapter_parameters(LoraAdapter(), QWEN)
NARROW = "runtime.dtype=bfloat16"


def config_of(*overrides: str, recipe: str = "codeio", arm: str = "pvf") -> RunConfig:
    facts = Facts(device="cuda", context_length=262144, reward_range=(0.0, 1.0))
    return resolve(compose(load_recipe(recipe), arm=arm, overrides=overrides), facts)


def on_gpus(config: RunConfig, placed: Placement, shape: ModelShape = QWEN) -> dict[str, GpuMemory]:
    return {held.role: held for held in memory_on_gpus(config, shape, placed)}


def eight_each(config: RunConfig) -> Placement:
    return placement_of(config, Cluster())


def one_gpu_for_all(memory: float = 1e12) -> Placement:
    roles = ("inference", "policy trainer", "value trainer", "evaluator")
    return Placement(gpu=replace(GPUS["H200"], memory=memory), gpus=dict.fromkeys(roles, 1), shared=True)


def test_shards_of_half_precision_weights_are_float32():
    config = config_of()
    held = on_gpus(config, eight_each(config))
    assert held["policy trainer"].fixed == 16 * P / 8 and held["value trainer"].fixed == 16 * B / 8
    wide = on_gpus(config_of("runtime.dtype=float64"), eight_each(config))
    assert wide["policy trainer"].fixed == 32 * P / 8
    # A trainer on one GPU trains what it loads.
    four = Placement(gpu=GPUS["H200"], gpus=dict.fromkeys(eight_each(config).gpus, 1))
    assert on_gpus(config, four)["policy trainer"].fixed == 8 * P


def test_processes_of_one_machine_hold_float32_shards_too():
    config = config_of(NARROW, "runtime.ranks=2", recipe="demo", arm="value")
    roles = {role.role: role for role in role_memory(config, TINY)}
    policy, critic = roles["policy trainer"], roles["value trainer"]
    # Shards of weights, gradient and moments; the whole copy that the first process saves is in bfloat16.
    assert (policy.weights, policy.states) == ((4 + 2) * TINY.parameters, 12 * TINY.parameters)
    assert (critic.weights, critic.states) == ((4 + 2) * TINY.backbone_parameters, 12 * TINY.backbone_parameters)
    assert roles["engine"].weights == 2 * (TINY.parameters + joined_numbers(config, TINY))
    alone = {role.role: role for role in role_memory(config_of(NARROW, recipe="demo", arm="value"), TINY)}
    assert (alone["policy trainer"].weights, alone["policy trainer"].states) == (
        2 * TINY.parameters,
        6 * TINY.parameters,
    )


def test_trainers_of_several_actors_hold_shards():
    ray = ("runtime.type=ray", "runtime.actors.policy.ranks=2", NARROW)
    roles = {role.role: role for role in role_memory(config_of(*ray, recipe="demo", arm="value"), TINY)}
    assert (roles["policy trainer"].weights, roles["policy trainer"].states) == (
        4 * TINY.parameters,
        12 * TINY.parameters,
    )
    assert roles["value trainer"].states == 6 * TINY.backbone_parameters


def test_what_is_brought_together_are_the_tables_and_two_layers():
    config = config_of()
    layer = QWEN.trunk_parameters / QWEN.layers
    full, adapter = (policy_weights(config_of(*more), QWEN, sharded=True) for more in ((), (POLICY,)))
    assert gathered_bytes(QWEN, full, output=True) == pytest.approx(2 * 2 * (QWEN.embedding_parameters + 2 * layer))
    assert gathered_bytes(QWEN, adapter, output=True) == pytest.approx(2 * (QWEN.embedding_parameters + 2 * layer))
    assert gathered_bytes(QWEN, policy_weights(config, QWEN, sharded=False), output=True) == 0
    critic, policy = (gathered_bytes(OLMO, full, output=output) for output in (False, True))
    assert policy - critic == 2 * 2 * OLMO.embedding_parameters


def test_adapters_on_gpus_of_their_own():
    config = config_of(POLICY, LORA)
    held = on_gpus(config, eight_each(config))
    assert held["inference"].fixed == 2 * P + 4 * A
    assert held["policy trainer"].fixed == (4 * P + 16 * A) / 8
    assert held["value trainer"].fixed == (4 * B + 16 * A) / 8
    assert held["evaluator"].fixed == 2 * 4 * A + 2 * B
    # Tensors of another GPU cannot be shared: there is a copy.
    apart = on_gpus(config_of(POLICY, SHARED), eight_each(config))
    assert {role: each.fixed for role, each in apart.items()} == {role: each.fixed for role, each in held.items()}
    merged = on_gpus(config_of(POLICY, LORA, "runtime.engine.type=vllm"), eight_each(config))
    assert merged["inference"].fixed == 2 * P


def test_roles_on_the_same_gpus_hold_one_backbone():
    choices = ("runtime.loop=synchronous", POLICY, SHARED)
    (held,) = on_gpus(config_of(*choices), one_gpu_for_all()).values()
    # Frozen weights once, of all roles; adapters of engine and evaluator, and of the trainers with their states.
    assert held.fixed == 2 * P + 2 * 4 * A + 2 * 16 * A
    (own,) = on_gpus(config_of(*choices[:2], LORA), one_gpu_for_all()).values()
    assert own.fixed - held.fixed == 2 * B
    eight = replace(one_gpu_for_all(), gpus=dict.fromkeys(one_gpu_for_all().gpus, 8))
    (many,) = on_gpus(config_of(*choices), eight).values()
    # Shards are not what engines and evaluators read.
    assert many.fixed == (2 * P + 4 * A) + (4 * P + 16 * A + 16 * A) / 8 + (4 * A + 0 * B)


def test_a_teacher_is_whole_on_every_gpu_of_the_policy_trainer():
    source = load_recipe("deepmath")
    config = config_of(recipe="deepmath", arm="vaspo")
    placed = placement_of(config, source.cluster)
    (held,) = on_gpus(config, placed).values()
    roles = {"engine": 2 * P, "trainers": 2 * 16 * P / 8, "teacher": (2 + 4) * P, "evaluator": 2 * P}
    assert held.fixed == sum(roles.values())


def test_frozen_weights_take_no_gradient():
    config = config_of(POLICY)
    line = Roofline(shape=QWEN, gpu=GPUS["H200"], dtype="bfloat16", efficiency=Efficiency())
    full, adapter = (policy_weights(each, QWEN, sharded=True) for each in (config_of(), config))
    length, attention = 1000, 4 * QWEN.layers * QWEN.heads * QWEN.head_width * 500
    weights_, output = QWEN.trunk_parameters, QWEN.embedding_parameters

    def counted(model, *, recompute=False, output=True):
        return line.training_flops(length, output=output, model=model, recompute=recompute) / length

    assert counted(full) == pytest.approx(3 * (2 * (weights_ + output) + attention))
    assert counted(full, recompute=True) - counted(full) == pytest.approx(2 * weights_ + attention)
    # Forward, and back through all weights; gradients of the adapter's own alone.
    assert counted(adapter) == pytest.approx(2 * 2 * (weights_ + output) + 3 * attention + 3 * 2 * A)
    assert counted(adapter, output=False) == pytest.approx(2 * 2 * weights_ + 3 * attention + 3 * 2 * A)
    assert counted(adapter, recompute=True) - counted(adapter) == pytest.approx(2 * (weights_ + A) + attention)


def test_flops_are_those_of_the_estimate_of_spending():
    model, lora = load_causal_lm("tiny").model, LoraAdapter(rank=4)
    config = config_of("model.adapter={type='lora',rank=4}", recipe="demo", arm="mean")
    line = Roofline(shape=TINY, gpu=GPUS["H200"], dtype="float32", efficiency=Efficiency())
    size = policy_size(adapted(model, lora, seed=0))
    found = line.training_flops(100, output=True, model=policy_weights(config, TINY, sharded=False), recompute=False)
    assert found == pytest.approx(size.training(100, 100 * 100 // 2))


def work(config: RunConfig, placed: Placement) -> Work:
    line = Roofline(shape=QWEN, gpu=placed.gpu, dtype="bfloat16", efficiency=Efficiency())
    return Work(
        config=config, placement=placed, roofline=line, prompt_tokens=100, response_tokens=900, told_to_critic=0
    )


def test_recomputing_is_the_configurations_choice_and_for_each_role():
    placed = eight_each(config_of())
    plain, again = (work(config_of(*more), placed) for more in ((), ("runtime.recompute_activations=true",)))
    assert set(again.recomputing.values()) - {False} == {True} and again.recomputing["value trainer"]
    large = Placement(gpu=replace(placed.gpu, memory=1e15), gpus=placed.gpus)
    assert not any(work(config_of(), large).recomputing.values())
    chosen = work(config_of("runtime.recompute_activations=true"), large)
    forward = plain.roofline.forward_flops(1000, output=False)
    seconds = forward / (8 * placed.gpu.flops * 0.35)
    more = chosen.train_value_seconds([900.0]) - work(config_of(), large).train_value_seconds([900.0])
    assert more == pytest.approx(seconds)


def test_adapters_alone_are_published():
    placed = eight_each(config_of())
    assert work(config_of(), placed).publish_seconds == pytest.approx(2 * P / 20e9)
    assert work(config_of(POLICY), placed).publish_seconds == pytest.approx(4 * A / 20e9)
    merged = work(config_of(POLICY, "runtime.engine.type=vllm"), placed)
    assert merged.publish_seconds == pytest.approx(2 * P / 20e9)


def test_what_the_engine_joins_is_counted():
    language, config = load_causal_lm("tiny"), config_of(recipe="demo", arm="mean")
    joined = joined_decoder.joined_decoder(language.model.get_decoder())
    assert joined is not None
    held = 0
    for layer in joined._layers:
        own = [layer._qkv[0], layer._gate_up[0], layer._head_weights]
        held += sum(tensor.numel() for tensor in own if tensor is not None)
    assert joined_numbers(config, TINY) == held
    engine = role_memory(config, TINY)[0]
    assert engine.weights == 4 * (TINY.parameters + held) and "second copy of projections" in engine.what
    assert (weights.JOINED_FAMILY, weights.JOINED_MOST_PARAMETERS) == (
        joined_decoder.FAMILY, joined_decoder.MOST_PARAMETERS,
    )  # fmt: skip
    # Large models, other families, other engines and adapters have no such copy.
    assert not joined_numbers(config, QWEN) and not joined_numbers(config, replace(TINY, family="olmo3"))
    for other in (POLICY, "runtime.engine.type=vllm"):
        assert not joined_numbers(config_of(other, recipe="demo", arm="mean"), TINY)


def told(*overrides: str, shape: ModelShape = QWEN) -> list[str]:
    return list(memory(config_of(*overrides, recipe="demo", arm="value"), shape))


def test_a_dry_run_speaks_of_narrow_weights_only_where_they_train():
    assert any(line.startswith("Memory: the policy trains bfloat16") for line in told(NARROW))
    both = told(NARROW, POLICY, LORA)
    assert not any("bytes a parameter" in line for line in both)
    one = [line for line in told(NARROW, POLICY) if "8 bytes a parameter" in line]
    assert len(one) == 1 and one[0].startswith("Memory: the critic trains bfloat16")
    assert not any("8 bytes a parameter" in line for line in told(NARROW, "runtime.ranks=2"))


def test_the_output_layer_of_an_untied_policy_is_frozen_too():
    policy, critic = [line for line in told(POLICY, LORA, shape=OLMO) if line.startswith("Adapter")]
    assert f"{OLMO.parameters:,} are frozen" in policy and f"{OLMO.backbone_parameters:,} are frozen" in critic
    assert OLMO.parameters - OLMO.backbone_parameters == OLMO.embedding_parameters
    shared = [line for line in told(POLICY, SHARED, shape=OLMO) if line.startswith("Adapter: of the critic")]
    assert "the policy's are frozen under them" in shared[0]


def test_recomputed_activations_are_told_as_chosen_or_needed():
    placed = eight_each(config_of())
    small = Placement(gpu=replace(placed.gpu, memory=60e9), gpus=placed.gpus)
    needed = " ".join(placed_roles(config_of(), QWEN, small))
    assert "of activations, with 'runtime.recompute_activations' = true" in needed
    chosen = " ".join(placed_roles(config_of("runtime.recompute_activations=true"), QWEN, placed))
    assert "of recomputed activations" in chosen and "= true" not in chosen


def test_actors_that_ask_for_other_gpus_than_the_recipes_cluster_are_told():
    ray = ("runtime.type=ray", "runtime.actors.policy={gpus=1.0,ranks=8}", "runtime.actors.critic={gpus=1.0,ranks=4}")
    ray += ("runtime.actors.engines.gpus=1", "runtime.actors.evaluators.gpus=1")
    lines = [line for line in placement(config_of(*ray), QWEN, Cluster()) if "the recipe's cluster" in line]
    assert lines == [
        "Placement: the recipe's cluster has 8 GPUs for the value trainer; 'runtime.actors.critic' asks for 4 "
        "('ranks' = 4, 'gpus' = 1 each)."
    ]


def test_logits_of_a_policy_and_none_of_a_critic_are_beside_the_activations():
    config = config_of()
    held = on_gpus(config, eight_each(config))
    assert held["policy trainer"].activations - held["value trainer"].activations == logit_bytes(config, QWEN)


def test_processes_of_one_machine_are_told():
    def line(*overrides: str) -> str:
        return next(iter(placement(config_of(*overrides, recipe="demo", arm="value"), TINY, None)))

    assert line() == "Placement: one process on cuda, all roles beside each other."
    assert line("runtime.ranks=2").startswith("Placement: 2 processes on cuda that train together")
