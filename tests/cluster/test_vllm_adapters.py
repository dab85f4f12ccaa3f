"""A policy with an adapter whose tokens come from vLLM: what it serves is merged, and stays the trainer's policy."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from lecritique.models.adapters import merged, own_weights
from lecritique.models.loading import load_causal_lm
from lecritique.models.weights import state_digest
from tests.cluster.served_policies import CLOSE_NATS, ENGINE
from tests.integration.short_runs import small_parts, trained

HERE = importlib.util.find_spec("vllm") is not None
if not HERE and os.environ.get("LECRITIQUE_REQUIRE_CLUSTER") == "1":
    raise RuntimeError("LECRITIQUE_REQUIRE_CLUSTER = 1, but vllm is not installed")
pytestmark = pytest.mark.skipif(not HERE, reason="vllm is not installed: make test-cluster")


def test_vllm_samples_from_what_the_adapter_has_become() -> None:
    parts = small_parts(
        *ENGINE,
        "model.adapter.type=lora",
        "critic.backbone.type=shared",
        "policy.optimizer.learning_rate=0.01",
        arm="pvf",
    )
    policy = parts.learner.policy
    rows = trained(parts, 4)
    assert all(row["policy_grad_norm"] > 0 for row in rows)
    # Steps of 0.01 move log-probs by far more than this: a version that had not arrived would show.
    assert max(row["sampler_gap_nats"] for row in rows) < CLOSE_NATS
    assert all(torch.any(own) for name, own in own_weights(policy.model).items() if ".lora_B." in name)
    whole = parts.store.open(policy.publish())
    assert state_digest(whole) == state_digest(merged(policy.model).state_dict())
    assert whole.keys() == load_causal_lm("tiny").model.state_dict().keys()
