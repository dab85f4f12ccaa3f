"""Bytes of roles: counted as the code holds them, and activations as autograd saves them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lecritique.config.cluster import Cluster
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import Facts, resolve
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.models.loading import load_causal_lm
from lecritique.planning.memory import activation_bytes, cached_rows, evaluator_copies, logit_bytes, role_memory
from lecritique.planning.placement import (
    GPUS,
    memory_on_gpus,
    parsed_gpus,
    placement_of,
    scaled_to,
    usable_memory,
)
from lecritique.planning.shapes import shape_of

QWEN = shape_of("Qwen/Qwen3-4B-Instruct-2507")


def config_of(recipe: str, arm: str | None = None, *overrides: str, length: int = 262144) -> RunConfig:
    facts = Facts(device="cuda", context_length=length, reward_range=(0.0, 1.0))
    return resolve(compose(load_recipe(recipe), arm=arm, overrides=overrides), facts)


def test_activations_are_what_autograd_saves():
    model, shape = load_causal_lm("tiny").model, shape_of("tiny")
    rows, length = 4, 64
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    kept = []  # tensors that are alive cannot share an address
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), keep(t))[1], lambda t: t):
        model.get_decoder()(input_ids=torch.randint(0, 256, (rows, length)), use_cache=False)
    measured = sum(saved.values()) - sum(
        p.untyped_storage().nbytes() for p in model.parameters() if p.data_ptr() in saved
    )
    limits = (f"runtime.micro_batch_tokens={rows * length}", f"sampling.max_total_tokens={length}")
    told = activation_bytes(config_of("demo", "value", *limits, "rollout.batch_size=128"), shape)
    assert 0.7 < told / measured < 1.4, (told, measured)


def test_the_evaluator_has_the_copies_of_its_placement():
    assert evaluator_copies(config_of("reasoning-gym", "pvf")) == 2
    assert evaluator_copies(config_of("reasoning-gym", "pvf", "runtime.placement=colocated")) == 0
    assert evaluator_copies(config_of("knights", "vaspo")) == 1
    roles = {role.role for role in role_memory(config_of("codeio", "pvf", "runtime.placement=colocated"), QWEN)}
    assert roles == {"engine", "policy trainer", "value trainer"}


def test_the_cache_is_of_the_rows_that_are_decoded_at_the_declared_length():
    config = config_of("codeio", "mean")
    engine = role_memory(config, QWEN)[0]
    assert cached_rows(config) == 128
    assert engine.passing == 128 * 12288 * 36 * 2 * 8 * 128 * 2
    small = config_of("codeio", "mean", "rollout.batch_size=16", "rollout.in_flight=32")
    assert cached_rows(small) == 32


def test_a_running_mean_of_narrow_weights_is_held_in_float32():
    teacher = {role.role: role for role in role_memory(config_of("knights", "vaspo"), QWEN)}["teacher"]
    assert (teacher.weights, teacher.states) == (2 * QWEN.parameters, 4 * QWEN.parameters)
    snapshot = {role.role: role for role in role_memory(config_of("knights", "rlsd"), QWEN)}["teacher"]
    assert snapshot.states == 0
    wide = role_memory(config_of("knights", "vaspo", "runtime.dtype=float32"), QWEN)
    assert {role.role: role for role in wide}["teacher"].states == 0


def test_logits_exist_in_chunks():
    assert logit_bytes(config_of("codeio", "mean"), QWEN) == 12 << 24
    tiny = config_of("demo", "mean", "sampling.max_total_tokens=64", "rollout.batch_size=4", length=64)
    assert logit_bytes(tiny, shape_of("tiny")) == 12 * 4 * 64 * 262


@pytest.mark.parametrize(
    ("recipe", "inference", "group_nodes"),
    [("reasoning-gym", 1, 2), ("codeio", 2, 3), ("sudoku-hard", 3, 4), ("minif2f", 3, 4)],
)
@pytest.mark.parametrize("arm", ["mean", "value", "tether"])
def test_the_papers_nodes_add_up_and_everything_fits(recipe, inference, group_nodes, arm):
    source = load_recipe(recipe)
    config, shape = config_of(recipe, arm), shape_of(compose(source).model.name)
    assert source.cluster is not None
    placed = placement_of(config, source.cluster)
    nodes = {role: gpus // 8 for role, gpus in placed.gpus.items()}
    assert nodes.pop("inference") == inference and nodes.pop("policy trainer") == 1
    # LC: a value function adds one node that trains it and one that serves it.
    assert nodes == ({} if arm == "mean" else {"value trainer": 1, "evaluator": 1})
    assert placed.total == 8 * (group_nodes + (0 if arm == "mean" else 2)) and placed.gpu.name == "H200"
    held = memory_on_gpus(config, shape, placed)
    assert len(held) == len(placed.gpus) and all(role.fits(placed.gpu) for role in held), held


@pytest.mark.parametrize("recipe", ["deepmath", "knights"])
def test_vaspos_roles_share_one_node_and_fit(recipe):
    source, config = load_recipe(recipe), config_of(recipe, "vaspo")
    assert source.cluster is not None
    placed = placement_of(config, source.cluster)
    (held,) = memory_on_gpus(config, QWEN, placed)
    assert placed.shared and placed.total == 8 and held.fits(placed.gpu)
    assert held.fixed + held.cache <= usable_memory(placed.gpu) + 1
    small = replace(placed, gpu=replace(placed.gpu, memory=30e9))
    assert not memory_on_gpus(config, QWEN, small)[0].fits(small.gpu)


def test_gpus_are_shared_out_by_the_papers_shares():
    config, cluster = config_of("sudoku-hard", "pvf"), Cluster(inference_nodes=3)
    for total in range(4, 60):
        placed = scaled_to(total, GPUS["H200"], config, cluster)
        assert placed.total == total and min(placed.gpus.values()) >= 1
        assert placed.gpus["inference"] >= placed.gpus["policy trainer"]
    assert scaled_to(12, GPUS["H200"], config, cluster).gpus == {
        "inference": 6, "policy trainer": 2, "value trainer": 2, "evaluator": 2,
    }  # fmt: skip
    colocated = config_of("sudoku-hard", "pvf", "runtime.placement=colocated")
    placed = scaled_to(10, GPUS["H200"], colocated, cluster)
    assert placed.gpus == {"inference": 6, "policy trainer": 2, "value trainer": 2} and placed.of("evaluator") == 2
    with pytest.raises(ConfigurationError, match="3 GPUs are too few for 4 roles"):
        scaled_to(3, GPUS["H200"], config, cluster)


def test_gpus_are_named():
    assert parsed_gpus("8xH200") == (8, GPUS["H200"]) and parsed_gpus(" 16 x h100")[1].name == "H100"
    for text in ("H200", "0xH200", "8", "-1xH200", "8 of H200", "", "1.5xH200", "9999999xH200"):
        with pytest.raises(ConfigurationError, match="expected a number and a GPU"):
            parsed_gpus(text)
    for text in ("8xT4", "8xx", "8xH200x2"):
        with pytest.raises(ConfigurationError, match="Known: A100, H100, H200, B200"):
            parsed_gpus(text)
