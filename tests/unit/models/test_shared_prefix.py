"""Rows that begin alike are read behind one prefix: fewer tokens, the same numbers, a choice made from rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import VOCABULARY, literal_logprobs, small_policy
from transformers import GPT2Config, GPT2LMHeadModel

from lecritique.config.losses import Bce
from lecritique.models import scoring
from lecritique.models.packed_attention import Segments, read_packed
from lecritique.models.scoring import TokenRow, logprobs, values
from lecritique.models.shared_prefix import SharedPrefix, packed_prefixes, prefix_batches, shared_prefixes
from lecritique.models.value_model import ValueModel


def row(prompt: np.ndarray, response: np.ndarray) -> TokenRow:
    return TokenRow(
        token_ids=np.concatenate([prompt, response]), mask=np.arange(len(prompt) + len(response)) >= len(prompt)
    )


def random_ids(rng: np.random.Generator, length: int) -> np.ndarray:
    return rng.integers(0, VOCABULARY, length)


def mixture(seed: int = 0) -> list[TokenRow]:
    """Two groups of siblings, rows alone, a row with nothing wanted, one that begins with a group's prompt alone."""
    rng = np.random.default_rng(seed)
    prompts = [random_ids(rng, 60), random_ids(rng, 44)]
    rows = [row(prompts[k % 2], random_ids(rng, int(rng.integers(1, 30)))) for k in range(9)]
    rows += [row(random_ids(rng, 20), random_ids(rng, 12)) for _ in range(3)]
    rows.append(TokenRow(token_ids=prompts[0], mask=np.zeros(60, dtype=bool)))
    # Siblings whose responses begin alike: the common ids go on behind the first wanted token.
    begun = random_ids(rng, 10)
    rows += [row(prompts[1], np.concatenate([begun, random_ids(rng, 5)])) for _ in range(3)]
    # Several turns: wanted tokens with a gap.
    gapped = row(prompts[0], random_ids(rng, 20))
    gapped.mask[70:74] = False
    rows.append(gapped)
    order = rng.permutation(len(rows))
    return [rows[index] for index in order]


class Counted(torch.nn.Module):
    """Counts the tokens that a decoder is given, padding included."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner, self.config, self.device = inner, inner.config, inner.device
        self.tokens = self.passes = 0

    def forward(self, **inputs):
        self.tokens += inputs["input_ids"].numel()
        self.passes += 1
        return self.inner(**inputs)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("max_tokens", [1, 90, 300, 100_000])
@pytest.mark.parametrize("packed", [False, True])
def test_numbers_are_those_of_reading_every_row_whole(dtype, atol: float, max_tokens: int, packed: bool) -> None:
    policy = small_policy(dtype=dtype)
    if packed:
        read_packed(policy)
    critic = ValueModel.from_policy(policy, Bce(), seed=3)
    rows = mixture()
    plain = values(critic, rows, max_tokens=max_tokens, share_prefixes=False)
    plain_logprobs = logprobs(policy, rows, temperature=0.7, max_tokens=max_tokens, share_prefixes=False)
    found = values(critic, rows, max_tokens=max_tokens)
    found_logprobs = logprobs(policy, rows, temperature=0.7, max_tokens=max_tokens)
    for index, each in enumerate(rows):
        assert len(found[index]) == len(found_logprobs[index]) == each.mask.sum()
        np.testing.assert_allclose(found[index], plain[index], rtol=0, atol=atol)
        np.testing.assert_allclose(found_logprobs[index], plain_logprobs[index], rtol=0, atol=10 * atol)
    again = values(critic, rows, max_tokens=max_tokens)
    assert all(one.tolist() == other.tolist() for one, other in zip(found, again, strict=True))


def test_logprobs_behind_a_prefix_equal_a_literal_softmax() -> None:
    policy, rows = small_policy(), mixture()
    for each, found in zip(rows, logprobs(policy, rows, temperature=1.0, max_tokens=1000), strict=True):
        np.testing.assert_allclose(found, literal_logprobs(policy, each.token_ids)[each.mask], rtol=0, atol=1e-12)
    read_packed(policy)
    for each, found in zip(rows, logprobs(policy, rows, temperature=1.0, max_tokens=1000), strict=True):
        np.testing.assert_allclose(found, literal_logprobs(policy, each.token_ids)[each.mask], rtol=0, atol=1e-12)


def test_learned_positions_reach_the_end_of_the_context() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=80, initializer_range=0.35,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        policy = GPT2LMHeadModel(config).double().eval()
    rng = np.random.default_rng(0)
    prompt = random_ids(rng, 60)
    rows = [row(prompt, random_ids(rng, length)) for length in (20, 3, 20, 11)]
    found = logprobs(policy, rows, temperature=1.0, max_tokens=1000)
    read_packed(policy)
    packed = logprobs(policy, rows, temperature=1.0, max_tokens=1000)
    for each, one, other in zip(rows, found, packed, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-12)
        np.testing.assert_allclose(one, literal_logprobs(policy, each.token_ids)[each.mask], rtol=0, atol=1e-12)


def test_a_prompt_of_eight_siblings_is_read_once() -> None:
    critic = ValueModel.from_policy(small_policy(), Bce(), seed=3)
    critic.backbone = counted = Counted(critic.backbone)
    rng = np.random.default_rng(1)
    prompts = [random_ids(rng, 64) for _ in range(2)]
    rows = [row(prompts[k // 8], random_ids(rng, 16)) for k in range(16)]
    values(critic, rows, max_tokens=10_000)
    # The prefix leaves out the prompt's last token: the first value is read there.
    assert counted.tokens == 2 * 63 + 16 * 17
    counted.tokens = 0
    values(critic, rows, max_tokens=10_000, share_prefixes=False)
    assert counted.tokens == 16 * 79


def test_packed_siblings_are_read_in_two_passes_without_padding() -> None:
    policy = small_policy()
    read_packed(policy)
    critic = ValueModel.from_policy(policy, Bce(), seed=3)
    critic.backbone = counted = Counted(critic.backbone)
    rng = np.random.default_rng(1)
    prompts = [random_ids(rng, length) for length in (40, 64, 90)]
    rows = [row(prompts[k // 8], random_ids(rng, int(rng.integers(5, 30)))) for k in range(24)]
    values(critic, rows, max_tokens=10_000)
    rests = sum(int(each.mask.sum()) for each in rows)
    # Of each row the prompt's last token and all but the last of the response.
    assert counted.tokens == 39 + 63 + 89 + rests and counted.passes == 2


def test_rows_without_a_shared_prefix_are_read_as_without_the_feature() -> None:
    critic = ValueModel.from_policy(small_policy(dtype=torch.float32), Bce(), seed=3)
    rng = np.random.default_rng(2)
    rows = [row(random_ids(rng, 40), random_ids(rng, 10)) for _ in range(6)]
    on, off = (values(critic, rows, max_tokens=200, share_prefixes=share) for share in (True, False))
    assert [one.tolist() for one in on] == [other.tolist() for other in off]


def groups_of(*rows: TokenRow) -> set[tuple[frozenset[int], int]]:
    ids = [each.token_ids[: each.read_tokens] for each in rows]
    return {
        (frozenset(group.indices), group.length) for group in shared_prefixes(ids, [each.first_wanted for each in rows])
    }


def test_what_is_grouped() -> None:
    rng = np.random.default_rng(3)
    one, other, system = random_ids(rng, 60), random_ids(rng, 60), random_ids(rng, 40)
    answer = lambda length=10: random_ids(rng, length)  # noqa: E731
    assert groups_of() == set()
    assert groups_of(row(one, answer())) == set()
    assert groups_of(row(one, answer()), row(other, answer()), row(one, answer())) == {(frozenset({0, 2}), 59)}
    # Below 32 tokens, and below a third of what is read.
    assert groups_of(*(row(one[:32], answer(3)) for _ in range(4))) == set()
    assert groups_of(*(row(one[:33], answer(3)) for _ in range(4))) == {(frozenset(range(4)), 32)}
    assert groups_of(*(row(one, answer(70)) for _ in range(2))) == set()
    assert groups_of(*(row(one, answer(25)) for _ in range(2))) == {(frozenset({0, 1}), 59)}
    # A system message of all tasks does not pull a task's siblings apart, whichever comes first in the order of ids.
    tasks = [np.concatenate([system, random_ids(rng, 60)]) for _ in range(3)]
    rows = [row(tasks[task], answer(5)) for task in (0, 1, 1, 1, 2, 2)]
    assert groups_of(*rows) == {(frozenset({1, 2, 3}), 99), (frozenset({4, 5}), 99)}
    # But where it is most of every prompt, all are one group; how much the first rows share by chance is not known.
    short = [np.concatenate([one, random_ids(rng, 6)]) for _ in range(4)]
    ((members, length),) = groups_of(*(row(prompt, answer(4)) for prompt in short))
    assert members == frozenset(range(4)) and 60 <= length <= 62


def test_the_same_prompt_up_to_the_end_of_a_row_is_no_fault() -> None:
    rng = np.random.default_rng(4)
    prompt = random_ids(rng, 50)
    same = row(prompt, random_ids(rng, 4))
    assert groups_of(same, same, same) == {(frozenset({0, 1, 2}), 49)}
    critic = ValueModel.from_policy(small_policy(), Bce(), seed=3)
    found = values(critic, [same, same, same], max_tokens=1000)
    plain = values(critic, [same], max_tokens=1000)[0]
    for each in found:
        np.testing.assert_allclose(each, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_tokens", [1, 60, 130, 500, 10_000])
@pytest.mark.parametrize("packed", [False, True])
def test_every_prefix_once_every_row_once_and_passes_keep_to_the_limit(max_tokens: int, packed: bool) -> None:
    lengths = [50, 55, 60, 41, 45, 48, 90, 95, 100, 44]
    groups = [
        SharedPrefix(indices=(0, 1, 2), length=40),
        SharedPrefix(indices=(3, 4, 5, 9), length=38),
        SharedPrefix(indices=(6, 7, 8), length=80),
    ]
    batches = prefix_batches(groups, lengths, max_tokens=max_tokens, packed=packed)
    assert sorted((g.indices, g.length) for batch in batches for g in batch.groups) == sorted(
        (g.indices, g.length) for g in groups
    )
    for batch in batches:
        prefixes = [group.length for group in batch.groups]
        read = sum(prefixes) if packed else len(prefixes) * max(prefixes)
        assert len(prefixes) == 1 or read <= max_tokens
        for members in batch.passes:
            assert all(index in batch.groups[owner].indices for owner, index in members)
            rests = [lengths[index] - batch.groups[owner].length for owner, index in members]
            keys = len(members) * (max(batch.groups[owner].length for owner, _ in members) + max(rests))
            assert len(members) == 1 or keys <= max_tokens * (16 if packed else 1)
            assert len(members) == 1 or not packed or sum(rests) <= max_tokens
    assert sorted(index for batch in batches for members in batch.passes for _, index in members) == list(range(10))
    assert len(batches) == 1 or max_tokens < 10_000


def long_siblings(prompt: int, rest: int, members: int, groups: int) -> list[TokenRow]:
    rng = np.random.default_rng(5)
    prompts = [random_ids(rng, prompt) for _ in range(groups)]
    return [row(one, random_ids(rng, rest + place)) for one in prompts for place in range(members)]


@pytest.mark.parametrize("packed", [False, True])
def test_a_prefix_that_leaves_no_room_for_its_rows_is_read_once_all_the_same(packed: bool) -> None:
    policy = small_policy(dtype=torch.float32)
    if packed:
        read_packed(policy)
    critic = ValueModel.from_policy(policy, Bce(), seed=3)
    critic.backbone = counted = Counted(critic.backbone)
    rows = long_siblings(1500, 600, members=4, groups=2)
    values(critic, rows, max_tokens=2048)
    # Of each row the prompt's last token and all but the last of the response, and padding to the longest beside it.
    rests = 2 * (600 + 601 + 602 + 603)
    most = 2 * 1499 + rests + (0 if packed else 2 * (4 + 3 + 2 + 1))
    assert 2 * 1499 + rests <= counted.tokens <= most
    # Packed: of each group the prefix, three rests, and one.
    assert not packed or counted.passes == 2 * 3


def test_short_prefixes_of_many_rows_share_a_pass() -> None:
    policy = small_policy(dtype=torch.float32)
    read_packed(policy)
    critic = ValueModel.from_policy(policy, Bce(), seed=3)
    critic.backbone = counted = Counted(critic.backbone)
    values(critic, long_siblings(41, 30, members=8, groups=4), max_tokens=300)
    rests = 4 * sum(range(30, 38))
    assert counted.tokens == 4 * 40 + rests
    # One pass for all four prefixes; 8 rests or 9 fill one of 300 tokens.
    assert counted.passes == 1 + 4


def test_keys_of_one_batch_of_prefixes_are_kept_at_a_time(monkeypatch) -> None:
    held: list[Segments] = []
    alive: list[int] = []

    def noted(*given, **named):
        alive.append(sum(bool(prefixes.kept) for prefixes in held))
        held.append(packed_prefixes(*given, **named))
        return held[-1]

    monkeypatch.setattr(scoring, "packed_prefixes", noted)
    policy = small_policy(dtype=torch.float32)
    read_packed(policy)
    logprobs(policy, long_siblings(60, 10, members=3, groups=3), temperature=1.0, max_tokens=64)
    assert alive == [0, 0, 0] and not any(prefixes.kept for prefixes in held)
