"""What a dry run says of adapters is what training holds."""

from __future__ import annotations

import pytest

from lecritique.cli.describe import memory
from lecritique.config.adapters import LoraAdapter
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import Facts, resolve
from lecritique.config.schema import RunConfig
from lecritique.models.adapters import adapted, trained_parameters
from lecritique.models.loading import load_causal_lm
from lecritique.planning.adapters import adapter_parameters
from lecritique.planning.memory import RoleMemory, role_memory, stored_weights
from lecritique.planning.shapes import shape_of

TINY = shape_of("tiny")
POLICY, SHARED, LORA = "model.adapter.type=lora", "critic.backbone.type=shared", "critic.backbone.type=lora"
ADAPTER = adapter_parameters(LoraAdapter(), TINY)


def config_of(*overrides: str, arm: str = "value") -> RunConfig:
    facts = Facts(device="cpu", context_length=4096, reward_range=(0.0, 1.0))
    return resolve(compose(load_recipe("demo"), arm=arm, overrides=overrides), facts)


def roles(*overrides: str, arm: str = "value") -> dict[str, RoleMemory]:
    return {role.role: role for role in role_memory(config_of(*overrides, arm=arm), TINY)}


@pytest.mark.parametrize("lora", [LoraAdapter(), LoraAdapter(rank=3, target_modules=("k_proj", "down_proj"))])
def test_adapters_have_as_many_numbers_as_in_the_model(lora):
    assert adapter_parameters(lora, TINY) == trained_parameters(adapted(load_causal_lm("tiny").model, lora, seed=0))


def test_frozen_weights_are_held_once_and_have_no_moments():
    shared = roles(POLICY, SHARED)
    assert {name: role.weights // 4 for name, role in shared.items()} == {
        "engine": ADAPTER,
        "policy trainer": TINY.parameters + ADAPTER,
        "evaluator": ADAPTER,
        "value trainer": ADAPTER,
    }
    assert shared["policy trainer"].states == shared["value trainer"].states == 3 * 4 * ADAPTER
    assert roles(POLICY, LORA)["value trainer"].weights == 4 * (TINY.backbone_parameters + ADAPTER)
    assert roles(SHARED, POLICY, "policy.modulation.type=fusion")["teacher"].weights == 4 * ADAPTER
    assert stored_weights(config_of(POLICY, SHARED), TINY) == 2 * 4 * ADAPTER


def test_adapters_of_half_precision_weights_are_counted_in_float32():
    narrow = roles(POLICY, SHARED, "runtime.dtype=bfloat16")["policy trainer"]
    assert (narrow.weights, narrow.states) == (2 * TINY.parameters + 4 * ADAPTER, 12 * ADAPTER)


def test_processes_apart_share_nothing():
    apart = roles(POLICY, LORA, "runtime.ranks=2")
    assert apart["engine"].weights == 4 * (TINY.parameters + ADAPTER)
    assert apart["evaluator"].weights == 4 * (TINY.backbone_parameters + ADAPTER)
    assert roles(POLICY, LORA, "runtime.type=ray")["engine"].weights == 4 * (TINY.parameters + ADAPTER)
    assert roles(POLICY, "runtime.engine.type=vllm")["engine"].weights == 4 * TINY.parameters


def test_recomputed_activations_are_counted_and_adapters_told():
    usual, again = roles(), roles("runtime.recompute_activations=true")
    assert all(again[name].passing < 0.6 * usual[name].passing for name in ("policy trainer", "value trainer"))
    lines = list(memory(config_of(POLICY, SHARED), TINY))
    told = f"{ADAPTER:,} parameters train and {TINY.backbone_parameters:,} are frozen."
    assert [line for line in lines if line.startswith("Adapter")] == [
        f"Adapter: of the policy, {told}",
        f"Adapter: of the critic, {ADAPTER:,} parameters train and the policy's are frozen under them.",
    ]  # fmt: skip
    assert not any(line.startswith("Adapter") for line in memory(config_of(), TINY))
