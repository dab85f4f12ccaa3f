"""The estimate of arithmetic: by hand, against a loop over every token, and against what torch counts."""

from __future__ import annotations

import pytest
import torch
from small_models import small_policy
from torch.utils.flop_counter import FlopCounterMode

from lecritique.config.losses import Bce
from lecritique.models.size import policy_size, value_size
from lecritique.models.value_model import ValueModel
from lecritique.numerics.flops import forward_flops, training_flops


def test_by_hand() -> None:
    assert forward_flops(10, 55, parameters=7, attention_width=3) == 2 * 7 * 10 + 4 * 3 * 55
    assert training_flops(10, 55, parameters=7, attention_width=3) == 3 * (140 + 660)
    assert forward_flops(0, 0, parameters=7, attention_width=3) == 0


def test_against_a_loop_over_tokens() -> None:
    layers, heads, width, parameters = 2, 3, 4, 50
    found, lengths = 0, (1, 4, 6)
    for length in lengths:
        for token in range(length):
            found += 2 * parameters
            for _ in range(layers * heads):
                found += (token + 1) * (2 * width + 2 * width)  # weighed against each, then summed over each
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    assert forward_flops(11, pairs, parameters=parameters, attention_width=layers * heads * width) == found


@pytest.mark.parametrize("tied", [True, False])
def test_against_what_torch_counts_of_a_model(tied: bool) -> None:
    """Torch counts matrix products alone, and all pairs of the attention, those that are masked too."""
    model, length = small_policy(tied=tied), 40
    model.set_attn_implementation("eager")
    size = policy_size(model)
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.zeros((1, length), dtype=torch.long), use_cache=False).logits
    whole_square = size.forward(length, length * length)
    norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    assert counter.get_total_flops() == whole_square - 2 * norms * length
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(logits.sum())
    # The first layer's inputs need no gradient of a token id, everything else is two products for one.
    assert counter.get_total_flops() == pytest.approx(2 * (whole_square - 2 * norms * length), rel=0.02)


def test_the_size_of_a_critic_leaves_out_its_embedding() -> None:
    policy = small_policy()
    critic = ValueModel.from_policy(policy, Bce(), seed=0)
    output_layer = policy.get_output_embeddings().weight.numel()
    head = sum(parameter.numel() for parameter in critic.head.parameters())
    assert value_size(critic).parameters == policy_size(policy).parameters - output_layer + head
    assert value_size(critic).attention_width == policy_size(policy).attention_width == 2 * 2 * 8
    assert policy_size(small_policy(tied=False)).parameters == policy_size(policy).parameters


@pytest.mark.parametrize("name", ["tokens", "pairs", "parameters", "attention_width"])
@pytest.mark.parametrize("flops", [forward_flops, training_flops])
def test_a_negative_count_is_refused(flops, name: str) -> None:
    counts = {"tokens": 1, "pairs": 1, "parameters": 1, "attention_width": 1, name: -1}
    with pytest.raises(ValueError, match=f"{name}=-1"):
        flops(
            counts["tokens"],
            counts["pairs"],
            parameters=counts["parameters"],
            attention_width=counts["attention_width"],
        )
