"""Seconds on a CPU by given constants: counted by hand, and against what the models do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lecritique.config.cluster import Cluster
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import Facts, resolve
from lecritique.core.errors import ConfigurationError
from lecritique.planning.cpu import CpuConstants, CpuPlanner, PassCost, decode_steps
from lecritique.planning.memory import activation_numbers
from lecritique.planning.shapes import shape_of

TINY = shape_of("tiny")
NOTHING = PassCost(call=0.0, layer=0.0, number=0.0)
FREE = CpuConstants(
    flops=float("inf"), forward=NOTHING, train=NOTHING, decode=NOTHING, row=0.0, cached=0.0, parameter=0.0, rollout=0.0
)  # fmt: skip


def planner(constants: CpuConstants, arm: str = "mean", *overrides: str, **lengths: object) -> CpuPlanner:
    facts = Facts(device="cpu", context_length=4096, reward_range=(0.0, 1.0))
    sizes = ("rollout.batch_size=8", "rollout.group_size=4")
    config = resolve(compose(load_recipe("demo"), arm=arm, overrides=[*sizes, *overrides]), facts)
    cluster = Cluster(prompt_tokens=10, response_tokens=6, spread=0.0, context_tokens=lengths.pop("context_tokens", 0))
    return CpuPlanner(config=config, shape=TINY, cluster=cluster, constants=constants, **lengths)


def test_calls_are_counted():
    """Two prompts in one pass, six decode steps, one pass of the policy; each call 1 and each of three layers 0.1."""
    call = PassCost(call=1.0, layer=0.1, number=0.0)
    found = planner(replace(FREE, forward=call, decode=call, train=call)).seconds()
    assert found == pytest.approx({"rollout": 1.3 + 6 * 1.3, "actor": 1.3, "host": 0.0})
    # A micro-batch of 32 tokens holds two of the rows of 16; the prompts together are 20 tokens.
    cut = planner(replace(FREE, train=call), "mean", "runtime.micro_batch_tokens=32").seconds()
    assert cut["actor"] == pytest.approx(4 * 1.3)


def test_rows_rollouts_and_parameters_are_counted():
    found = planner(replace(FREE, row=1.0, rollout=0.5, parameter=1e-3), "value").seconds()
    assert found["rollout"] == pytest.approx(8 * 6) and found["host"] == pytest.approx(8 * 0.5)
    assert found["actor"] == pytest.approx(TINY.parameters * 1e-3) == found["critic"] and found["values"] == 0
    half = planner(replace(FREE, parameter=1e-3), "value", "critic.updates_per_policy_step=0.5").seconds()
    assert half["critic"] == pytest.approx(found["critic"] / 2)


def test_numbers_are_those_of_tokens_in_layers_and_of_logits():
    number = PassCost(call=0.0, layer=0.0, number=1.0)
    found = planner(replace(FREE, train=number), "value", context_tokens=5).seconds()
    layers = activation_numbers(TINY) * TINY.layers
    assert found["actor"] == pytest.approx(8 * (16 * layers + 6 * TINY.vocabulary))
    assert found["critic"] == pytest.approx(8 * 21 * layers)  # reads its context, and has no logits


def test_flops_are_those_of_the_estimate_of_spending():
    from lecritique.numerics.flops import forward_flops, training_flops

    found = planner(replace(FREE, flops=1.0), "value").seconds()
    width = TINY.layers * TINY.heads * TINY.head_width
    # The estimate counts a token's look at itself in full, and logits of every token.
    pairs = 8 * 16 * 16 // 2
    assert found["values"] == pytest.approx(
        forward_flops(8 * 16, pairs, parameters=TINY.trunk_parameters, attention_width=width)
    )
    logits = 3 * 2 * 8 * 6 * TINY.embedding_parameters
    assert found["actor"] == pytest.approx(
        training_flops(8 * 16, pairs, parameters=TINY.trunk_parameters, attention_width=width) + logits
    )


def test_a_prompt_that_siblings_share_is_scored_once_where_scoring_does_so():
    forward = replace(FREE, forward=PassCost(call=0.0, layer=0.0, number=1.0))
    layers = activation_numbers(TINY) * TINY.layers
    short, long = (planner(forward, "value", context_tokens=tokens).seconds()["values"] for tokens in (20, 90))
    assert short == pytest.approx(8 * 36 * layers)
    assert long == pytest.approx((2 * 100 + 8 * 6) * layers)


def test_decode_steps_follow_the_rows_that_are_left():
    # Rows of 2, 5 and 5 tokens: two steps of three rows, three of two.
    assert list(decode_steps([2.0, 5.0, 5.0], 3)) == [
        (pytest.approx(2), 3, pytest.approx(1)), (pytest.approx(3), 2, pytest.approx(3.5)),
        (pytest.approx(0, abs=1e-6), 1, pytest.approx(5)),
    ]  # fmt: skip
    # Room for two: the third begins when the first has ended.
    steps = list(decode_steps([2.0, 5.0, 5.0], 2))
    assert sum(count * rows for count, rows, _ in steps) == pytest.approx(12)
    assert sum(count for count, _, _ in steps) == pytest.approx(7)


@pytest.mark.parametrize(
    ("words", "actor", "rollout"),
    [
        # 12 tokens in all: ten steps, the last eight with a row alone. Two prompts are one pass of a second.
        (('runtime.loop="synchronous"',), 0.0, 1 + 10 + 12),
        # Rollouts are waited for: three steps with four rows in each, which are read again under new weights.
        (('runtime.loop="asynchronous"',), 0.0, 1 + 3 + 12 + 1),
        # The policy is waited for, or everything by everything.
        (('runtime.loop="asynchronous"',), 100.0, 1 + 10 + 12),
        (('runtime.loop="asynchronous"', "rollout.max_staleness=0"), 0.0, 1 + 10 + 12),
    ],
)
def test_rows_stay_open_where_rollouts_are_waited_for(words, actor, rollout):
    one = PassCost(call=1.0, layer=0.0, number=0.0)
    constants = replace(FREE, row=1.0, decode=one, forward=one, train=replace(one, call=actor))
    found = planner(constants, "mean", "runtime.decode_rows=4", *words, lengths=(2.0, 10.0)).seconds()
    assert found["rollout"] == pytest.approx(rollout) and found["actor"] == pytest.approx(actor)


def test_other_schedules_and_losses_cost_what_they_read():
    call = replace(
        FREE, forward=PassCost(call=1.0, layer=0.0, number=0.0), train=PassCost(call=1.0, layer=0.0, number=0.0)
    )
    vaspo = planner(call, "vaspo", "policy.minibatch_size=4").seconds()
    assert (vaspo["values"], vaspo["critic"], vaspo["actor"]) == (2.0, 2.0, 2.0)
    assert vaspo["log_probs"] == 1.0 and vaspo["teacher"] >= 1.0
    assert set(planner(call, "mean").seconds()) == {"rollout", "actor", "host"}


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ConfigurationError, match="float32 only"):
        planner(FREE, "mean", 'runtime.dtype="bfloat16"')
    with pytest.raises(ConfigurationError, match=r"'cluster\.prompt_tokens' = 10 leaves nothing"):
        planner(FREE, "mean", "sampling.max_total_tokens=10")


@pytest.mark.parametrize(
    "override",
    ["runtime.recompute_activations=true", "model.adapter.type=lora", "runtime.type=ray"],
)
def test_what_has_no_constants_is_refused_by_name(override):
    key = override.partition("=")[0]
    with pytest.raises(ConfigurationError, match=f"'{key}' = .*a CPU is planned for with"):
        planner(FREE, "pvf", override)
