"""A real chat model with its own template, on real questions, for two steps."""

from __future__ import annotations

import math

import pytest

from lecritique.config.load import Recipe, compose
from lecritique.runtime.build import build, load_base
from tests.integration.short_runs import trained

pytestmark = pytest.mark.slow

RECIPE = Recipe(
    name="smollm2",
    text="",
    tree={
        "run": {"steps": 2},
        "model": {"name": "smollm2"},
        "task": {"type": "reasoning_gym", "dataset": "chain_sum", "rows": 8, "seed": 0},
        "sampling": {"max_turn_tokens": 12, "max_total_tokens": 256},
        "rollout": {"batch_size": 4, "group_size": 2},
        "critic": {"warmup_updates": 0, "replay": {"refill_size": 4}, "optimizer": {"learning_rate": 1e-5}},
        "policy": {"optimizer": {"learning_rate": 1e-6}},
        "runtime": {"loop": "synchronous", "micro_batch_tokens": 512},
    },
    arms={"tether_privileged": {"preset": "tether", "critic": {"context": {"type": "reference"}}}},
    default_arm=None,
)


def test_a_privileged_critic_and_tether_train_on_a_chat_model():
    parts = build(load_base(compose(RECIPE, arm="tether_privileged")))
    prompt = parts.renderer.render_prompt(parts.environment.task(0).messages)
    assert "<|im_start|>" in parts.renderer.decode(prompt)
    rows = trained(parts)
    for row in rows:
        assert all(
            math.isfinite(row[name]) for name in ("policy_loss", "value_loss", "policy_grad_norm", "value_grad_norm")
        )
        assert row["rollouts_failed"] == 0 and row["response_tokens"] > 1
        # The trainer reads what the sampler wrote: the engine's cache and the template are right.
        assert row["sampler_gap_nats"] < 1e-3
    assert rows[1]["value_updates"] == 2 and rows[1]["policy_steps"] == 2
