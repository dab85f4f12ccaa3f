"""The decoder with joined projections against transformers' own, and which decoders it is for."""

from __future__ import annotations

import pytest
import torch
from small_models import VOCABULARY, small_policy
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from lecritique.rollout import joined_decoder as module
from lecritique.rollout.cache import RowCache
from lecritique.rollout.joined_decoder import joined_decoder

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.35,
}  # fmt: skip


def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True))


def qwen2():
    return Qwen2ForCausalLM(Qwen2Config(**SIZES))


def made(build):
    """Random weights, biases and norms among them."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build().double().eval()
        for name, weight in model.named_parameters():
            if "bias" in name or "norm" in name:
                torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.3)
    return model


@pytest.mark.parametrize("build", [llama, qwen2, small_policy])
@pytest.mark.parametrize(
    ("rows", "starts"),
    [([0, 1, 2, 3], [5, 5, 5, 5]), ([0, 1, 2, 3], [5, 3, 0, 9]), ([5, 1, 4, 0], [2, 2, 2, 2]), ([2], [7])],
    ids=["in step", "ragged", "scattered", "alone"],
)
def test_states_and_keys_equal_those_of_transformers(build, rows, starts) -> None:
    model = made(build)
    decoder = model.get_decoder()
    generator = torch.Generator().manual_seed(2)
    whole, tokenwise, joined = RowCache(6), RowCache(6), joined_decoder(decoder)
    assert joined is not None
    for cache in (whole, tokenwise):  # something to look at, beyond what each row holds too
        cache.reserve(16)
    filled = torch.randn(6, 2 if build is not small_policy else 1, 16, 4 if build is not small_policy else 8,
                         generator=generator, dtype=torch.float64)  # fmt: skip
    for index in range(2):
        for cache in (whole, tokenwise):
            keys, values = cache.layer(index, filled)
            keys[:, :, :16], values[:, :, :16] = filled + index, filled - index
    with torch.inference_mode():
        for ahead in range(3):
            ids = torch.randint(0, VOCABULARY, (len(rows), 1), generator=generator)
            at = [start + ahead for start in starts]
            view = whole.forward_view(rows, at, 1)
            expected = decoder(
                input_ids=ids,
                position_ids=torch.tensor(at)[:, None],
                past_key_values=view,
                attention_mask=view.attention_mask(ids.device),
                use_cache=True,
            ).last_hidden_state[:, 0]
            view = tokenwise.forward_view(rows, at, 1)
            found = joined(ids[:, 0], view.positions(ids.device), view)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for index in range(2):
        for one, other in zip(whole.layer(index, filled), tokenwise.layer(index, filled), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_half_precision_stays_close_to_transformers() -> None:
    model = small_policy(dtype=torch.bfloat16)
    decoder, cache = model.get_decoder(), RowCache(2)
    view = cache.forward_view([0, 1], [0, 0], 1)
    ids = torch.tensor([[3], [7]])
    with torch.inference_mode():
        expected = decoder(input_ids=ids).last_hidden_state[:, 0]
        found = joined_decoder(decoder)(ids[:, 0], view.positions(ids.device), view)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_other_decoders_are_left_to_transformers(monkeypatch) -> None:
    with torch.random.fork_rng():
        gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=32))
    assert joined_decoder(gpt2.get_decoder()) is None
    policy = small_policy()
    assert joined_decoder(policy.get_decoder()) is not None
    # An adapter stands around the projection.
    attention = policy.get_decoder().layers[1].self_attn
    attention.v_proj = torch.nn.Sequential(attention.v_proj)
    assert joined_decoder(policy.get_decoder()) is None
    monkeypatch.setattr(module, "MOST_PARAMETERS", 100)
    assert joined_decoder(small_policy().get_decoder()) is None
