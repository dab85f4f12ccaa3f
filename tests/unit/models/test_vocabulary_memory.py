"""No tensor of an update has an entry for every token and every word at once; those of the critic none for words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from lecritique.config.losses import Bce
from lecritique.models import scoring
from lecritique.models.packed_attention import read_packed
from lecritique.models.scoring import TokenRow, action_logprobs, action_value_outputs, in_micro_batches
from lecritique.models.value_model import ValueModel

ROWS, LENGTH, WIDTH = 4, 32, 8


class LargestActivation(TorchDispatchMode):
    """Numbers in the largest tensor that any operation made, the embedding table and its gradient apart."""

    def __init__(self, table: torch.Size) -> None:
        super().__init__()
        self.numbers = 0
        self._table = {table, table[::-1]}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, torch.Tensor) and each.shape not in self._table:
                self.numbers = max(self.numbers, each.numel())
        return out


def largest(role: str, vocabulary: int, *, packed: bool) -> int:
    """Of forward and backward pass over 128 tokens."""
    with torch.random.fork_rng():
        policy = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=16, num_hidden_layers=1,
                num_attention_heads=1, num_key_value_heads=1, head_dim=8,
            )
        ).eval()  # fmt: skip
    if packed:
        read_packed(policy)
    critic = ValueModel.from_policy(policy, Bce(), seed=0)
    # Their last wanted token comes one earlier in every second row, so that packed ones lie end to end.
    lengths = [LENGTH - number % 2 for number in range(ROWS)]
    rows = [TokenRow(token_ids=np.arange(length), mask=np.arange(length) > 3) for length in lengths]
    (batch,) = in_micro_batches(policy, rows, max_tokens=10_000)
    with LargestActivation(policy.get_input_embeddings().weight.shape) as seen:
        if role == "critic":
            action_value_outputs(critic, batch).sum().backward()
        else:
            action_logprobs(policy, batch, temperature=1.0).sum().backward()
    return seen.numbers


@pytest.mark.parametrize("packed", [False, True])
def test_a_critic_update_holds_nothing_that_grows_with_the_vocabulary(packed: bool) -> None:
    small, large = (largest("critic", vocabulary, packed=packed) for vocabulary in (50, 5_000))
    assert small == large <= ROWS * LENGTH * max(LENGTH, 2 * WIDTH)


@pytest.mark.parametrize("packed", [False, True])
def test_a_policy_updates_logits_are_as_many_as_a_chunk_allows(monkeypatch, packed: bool) -> None:
    vocabulary, chunk = 5_000, 7
    monkeypatch.setattr(scoring, "_LOGITS_AT_ONCE", chunk * vocabulary)
    assert largest("policy", vocabulary, packed=packed) == chunk * vocabulary
    monkeypatch.setattr(scoring, "_LOGITS_AT_ONCE", 10**9)
    assert largest("policy", vocabulary, packed=packed) == (ROWS * (LENGTH - 4) - ROWS // 2) * vocabulary
