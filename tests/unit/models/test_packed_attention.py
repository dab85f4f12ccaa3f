"""Rows end to end give the numbers of rows side by side and of each alone; nothing is as large as rows by rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import VOCABULARY, small_policy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    DiffLlamaConfig,
    GPT2Config,
    GPT2LMHeadModel,
    StableLmConfig,
    StableLmForCausalLM,
)

from lecritique.config.losses import Bce
from lecritique.core.errors import ConfigurationError
from lecritique.models.loading import TINY_FOLDER, load_causal_lm, load_tokenizer
from lecritique.models.packed_attention import Segments, packed_attention, packed_if_possible, read_packed, reads_packed
from lecritique.models.packing import micro_batches
from lecritique.models.scoring import (
    TokenRow,
    action_logprobs,
    action_value_outputs,
    final_states,
    in_micro_batches,
    in_paired_micro_batches,
    logprobs,
    values,
)
from lecritique.models.value_model import ValueModel

LENGTHS = (3, 30, 4, 11, 2, 12, 31, 5, 90)


def rows_of(lengths=LENGTHS, *, seed: int = 0) -> list[TokenRow]:
    """Random ids; some rows want tokens in two stretches, one row wants none."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        mask = (np.arange(length) >= 1 + length // 3) & (np.arange(length) != 2 * length // 3)
        rows.append(TokenRow(token_ids=rng.integers(0, VOCABULARY, length), mask=mask & (number != 4)))
    return rows


def models(dtype: torch.dtype = torch.float64):
    """The same policy and critic twice: padded, packed."""
    padded, packed = small_policy(dtype=dtype), small_policy(dtype=dtype)
    read_packed(packed)
    critics = [ValueModel.from_policy(model, Bce(), seed=0) for model in (padded, packed)]
    assert [reads_packed(model) for model in (padded, packed, *critics)] == [False, True, False, True]
    return padded, packed, *critics


@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("share_prefixes", [True, False])
def test_scores_equal_those_of_rows_side_by_side(max_tokens: int, share_prefixes: bool) -> None:
    padded, packed, critic, packed_critic = models()
    how = {"max_tokens": max_tokens, "share_prefixes": share_prefixes}
    one, other = (logprobs(model, rows_of(), temperature=0.7, **how) for model in (padded, packed))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=0, atol=1e-12)
    for mine, theirs in zip(values(critic, rows_of(), **how), values(packed_critic, rows_of(), **how), strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=0, atol=1e-12)


def gradients(model, read, *, weights: np.ndarray) -> dict[str, torch.Tensor]:
    """Of a sum over all wanted tokens in which each weighs something else."""
    model.zero_grad()
    rows = rows_of()
    columns = np.split(weights, np.cumsum([row.mask.sum() for row in rows])[:-1])
    for batch in in_micro_batches(model, rows, max_tokens=140):
        read_N = read(model, batch)
        (read_N * batch.gathered(columns, read_N.dtype)).sum().backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def test_gradients_equal_those_of_rows_side_by_side() -> None:
    weights = np.random.default_rng(1).normal(size=sum(int(row.mask.sum()) for row in rows_of()))
    padded, packed, critic, packed_critic = models()
    for one, other, read in (
        (padded, packed, lambda model, batch: action_logprobs(model, batch, temperature=1.3)),
        (critic, packed_critic, lambda model, batch: action_value_outputs(model, batch)[:, 0]),
    ):
        expected = gradients(one, read, weights=weights)
        found = gradients(other, read, weights=weights)
        assert found.keys() == expected.keys() and max(float(g.abs().max()) for g in expected.values()) > 0.1
        for name, gradient in expected.items():
            # transformers' norms are float32 inside, forwards and backwards.
            torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6)


def test_a_packed_row_equals_a_block_diagonal_mask() -> None:
    padded, packed, *_ = models()
    (batch,) = in_micro_batches(packed, rows_of(), max_tokens=10_000)
    lengths = batch.segments.lengths
    assert list(lengths) == [max(1, rows_of()[index].read_tokens - 1) for index in batch.indices]
    owner = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    index = torch.arange(len(owner))
    mask = (owner[:, None] == owner) & (index[None, :] <= index[:, None])
    with torch.no_grad():
        expected = padded.get_decoder()(
            input_ids=batch.token_ids_BL[:, batch.read_N],
            position_ids=batch.segments.positions,
            attention_mask=mask[None, None],
        ).last_hidden_state
        states = final_states(packed.get_decoder(), batch)
    torch.testing.assert_close(states[:, batch.read_N], expected, rtol=0, atol=1e-12)
    unread = torch.ones(states.shape[1], dtype=torch.bool).index_fill(0, batch.read_N, False)
    assert not states[:, unread].any() and int(unread.sum()) == sum(row.read_tokens > 1 for row in rows_of())


def test_entries_stay_in_the_order_of_rows_and_know_their_row() -> None:
    for model in models()[:2]:
        for batch in in_micro_batches(model, rows_of(), max_tokens=100):
            rows = [rows_of()[index] for index in batch.indices]
            assert batch.targets_N.tolist() == [int(i) for row in rows for i in row.token_ids[row.mask]]
            counts = [int(row.mask.sum()) for row in rows]
            assert list(batch.counts) == counts
            assert batch.row_index_N().tolist() == np.repeat(np.arange(len(rows)), counts).tolist()


def test_two_readings_of_a_row_are_packed_side_by_side() -> None:
    told = [
        TokenRow(token_ids=np.concatenate([[1, 2, 3], row.token_ids]), mask=np.concatenate([[False] * 3, row.mask]))
        for row in rows_of()
    ]
    _, packed, *_ = models()
    pairs = list(in_paired_micro_batches(packed, rows_of(), told, max_tokens=90))
    assert len(pairs) > 1
    for one, two in pairs:
        assert one.indices == two.indices and torch.equal(one.targets_N, two.targets_N)


def test_a_first_token_that_is_wanted_is_refused() -> None:
    _, packed, *_ = models()
    row = TokenRow(token_ids=np.array([1, 2, 3]), mask=np.array([True, False, True]))
    with pytest.raises(ValueError, match="first token"):
        list(in_micro_batches(packed, [row, *rows_of([5])], max_tokens=9))
    with pytest.raises(ValueError, match="first token"):
        logprobs(packed, [row], temperature=1.0, max_tokens=9)


def test_a_packed_model_decodes_and_reads_plain_batches_as_before() -> None:
    padded, packed, *_ = models()
    ids = torch.randint(0, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9, [0, 1, 1, 1, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
            torch.testing.assert_close(packed(**inputs).logits, padded(**inputs).logits, rtol=0, atol=0)


def test_learned_positions_start_anew_in_each_row() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=96)
        model = GPT2LMHeadModel(config).double().eval()
    expected = logprobs(model, rows_of(), temperature=1.0, max_tokens=200)
    read_packed(model)
    for one, other in zip(expected, logprobs(model, rows_of(), temperature=1.0, max_tokens=200), strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-12)


def test_a_model_whose_attention_cannot_be_replaced_is_refused() -> None:
    class Stubborn:
        config = type("Config", (), {"_attn_implementation": "sdpa"})()

        def set_attn_implementation(self, name: str) -> None:
            """As transformers: a warning at most."""

    with pytest.raises(ConfigurationError, match=r"runtime\.layout"):
        read_packed(Stubborn())


def stablelm():
    """Its layers drop every argument that they do not know, the segments among them."""
    config = StableLmConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng():
        return StableLmForCausalLM._from_config(config, attn_implementation="sdpa").eval()


def test_a_model_that_drops_the_segments_on_the_way_stays_padded() -> None:
    model = stablelm()
    assert not packed_if_possible(model) and not reads_packed(model)
    with pytest.raises(ConfigurationError, match="StableLmForCausalLM is none"):
        read_packed(model)
    assert packed_if_possible(small_policy(dtype=torch.bfloat16))


def deepseek(config_class, **more):
    """Multi-head latent attention: keys of 12 numbers, values of 6; one layer with experts."""
    return config_class(
        **{
            "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128,
            "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "initializer_range": 0.2,
        }
        | more
    )  # fmt: skip


def diff_llama(**more):
    """Its layers attend twice, with the two halves of their values."""
    return DiffLlamaConfig(
        **{
            "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 8,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2,
        }
        | more
    )  # fmt: skip


UNCOMMON = pytest.mark.parametrize(
    ("configured", "packs"),
    [
        pytest.param(lambda **more: deepseek(DeepseekV2Config, topk_method="greedy", **more), True, id="DeepseekV2"),
        pytest.param(lambda **more: deepseek(DeepseekV3Config, **more), True, id="DeepseekV3"),
        pytest.param(diff_llama, False, id="DiffLlama"),
    ],
)


def built(config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


@UNCOMMON
def test_a_model_of_uncommon_attention_is_loaded_on_a_cpu(configured, packs: bool, tmp_path) -> None:
    tokenizer = load_tokenizer(str(TINY_FOLDER))
    built(configured(vocab_size=len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_causal_lm(str(tmp_path), packed=None).model
    assert reads_packed(model) == packs
    assert packs or model.config._attn_implementation == "sdpa"


@UNCOMMON
def test_its_numbers_are_those_of_rows_read_alone(configured, packs: bool) -> None:
    model = built(configured())
    prompt = np.random.default_rng(2).integers(0, VOCABULARY, 40)
    rows = rows_of((3, 30, 4, 2)) + [
        TokenRow(token_ids=np.concatenate([prompt, row.token_ids]), mask=np.concatenate([np.zeros(40, bool), row.mask]))
        for row in rows_of((5, 30, 9), seed=1)
    ]
    alone = [logprobs(model, [row], temperature=1.0, max_tokens=1000)[0] for row in rows]
    assert packed_if_possible(model) == packs
    for share_prefixes in (True, False):
        found = logprobs(model, rows, temperature=1.0, max_tokens=1000, share_prefixes=share_prefixes)
        for one, other in zip(alone, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)


def test_a_second_attention_in_a_pass_whose_keys_are_kept_is_refused() -> None:
    module, segments = torch.nn.Identity(), Segments.of([2, 3], torch.device("cpu"))
    heads = torch.zeros(1, 2, 5, 4)
    for _ in range(2):  # nothing follows these: however often
        packed_attention(module, heads, heads, heads, None, segments)
    kept = replace(segments, kept={})
    packed_attention(module, heads, heads, heads, None, kept)
    with pytest.raises(ConfigurationError, match="Identity attends twice"):
        packed_attention(module, heads, heads, heads, None, kept)


def test_whatever_a_model_raises_while_it_is_tried_leaves_it_as_it_was() -> None:
    model = small_policy()
    model.model.register_forward_pre_hook(lambda *_: 1 / 0)
    assert not packed_if_possible(model) and model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(("packed", "reads"), [(None, True), (True, True), (False, False)])
def test_a_loaded_model_is_packed_on_a_cpu_unless_told_otherwise(packed, reads) -> None:
    assert reads_packed(load_causal_lm("tiny", packed=packed).model) == reads


def test_nothing_follows_prefixes_whose_keys_are_gone() -> None:
    prefixes, rests = (Segments.of(lengths, torch.device("cpu")) for lengths in ([4], [2, 3]))
    with pytest.raises(ValueError, match="not kept"):
        rests.following(prefixes, [0, 0])
    kept = replace(prefixes, kept={torch.nn.Identity(): (torch.zeros(4, 1, 2), torch.zeros(4, 1, 2))})
    rests.following(kept, [0, 0])
    kept.forget()
    with pytest.raises(ValueError, match="not kept"):
        rests.following(kept, [0, 0])


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.numel())
        return out


def test_nothing_grows_with_the_square_of_the_packed_tokens() -> None:
    _, packed, _, critic = models(torch.float32)
    sizes = []
    for count in (20, 40):
        rows = rows_of([32, 31] * (count // 2))
        (batch,) = in_micro_batches(packed, rows, max_tokens=10_000)
        assert batch.segments is not None
        with Largest() as largest:
            action_value_outputs(critic, batch).sum().backward()
            action_logprobs(packed, batch, temperature=1.0).sum().backward()
        sizes.append(largest.numbers)
    assert sizes[1] < 2.2 * sizes[0]


def test_padding_is_none_in_packed_and_little_in_padded_batches() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.5, 0.7, 256), 8, 1024).astype(int).tolist()
    for packed, most in ((True, 0.0), (False, 0.05)):
        batches = micro_batches(lengths, max_tokens=16_384, packed=packed)
        read = sum(sum(lengths[i] for i in batch) if packed else len(batch) * lengths[batch[0]] for batch in batches)
        assert 1 - sum(lengths) / read <= most
        for batch in batches:
            size = sum(lengths[i] for i in batch) if packed else len(batch) * lengths[batch[0]]
            assert size <= 16_384
    assert len(micro_batches(lengths, max_tokens=16_384, packed=True)) == -(-sum(lengths) // 16_384)


def test_segments_of_one_length_are_one_bucket() -> None:
    segments = Segments.of([7] * 5, torch.device("cpu"))
    assert [(bucket.rows, bucket.width) for bucket in segments.buckets] == [(5, 7)]
    assert segments.positions.tolist() == [list(range(7)) * 5]
    assert segments.bounds.tolist() == [0, 7, 14, 21, 28, 35]
