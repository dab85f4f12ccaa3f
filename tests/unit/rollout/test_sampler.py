"""The sampler against decoding written out, whatever the batch, the rows, the chunks and the order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal_decoding import Decoded, assert_equal, decoded, drained, request
from small_models import VOCABULARY, rollout_id, small_policy
from transformers import GPT2Config, GPT2LMHeadModel

from lecritique.core.rollout import Completion, GenerateRequest, Sampling
from lecritique.rollout.sampler import Sampler

SHARED = (5, 9, 11, 2, 7)
GREEDY = Sampling(top_k=1)
CUT = Sampling(temperature=0.8, top_k=6, top_p=0.9)


@pytest.fixture(scope="module")
def policy():
    return small_policy()


def workload() -> list[GenerateRequest]:
    """Members 0-3 and 6 share a prompt; lengths, limits and sampling differ."""
    rng = np.random.default_rng(4)
    prompts = [SHARED] * 4 + [tuple(rng.integers(0, VOCABULARY, n)) for n in (2, 17)] + [SHARED, (8,), SHARED[:3]]
    settings = [Sampling(), CUT, GREEDY, Sampling(temperature=1.4)]
    return [
        request(prompt, member=member, max_new_tokens=3 + 4 * (member % 4), sampling=settings[member % 4])
        for member, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def expected(policy) -> dict[str, Decoded]:
    return {one.request_id: decoded(policy, one) for one in workload()}


def sampler(policy, *, max_rows: int = 128, chunk_tokens: int = 5, prefill_tokens: int = 1000) -> Sampler:
    return Sampler(policy, max_rows=max_rows, chunk_tokens=chunk_tokens, prefill_tokens=prefill_tokens)


def completed(one: Sampler, requests: list[GenerateRequest]) -> dict[str, Completion]:
    for each in requests:
        one.add(each)
    return dict(drained(one))


def test_the_workload_has_both_finish_reasons(expected) -> None:
    assert {each.finish_reason for each in expected.values()} == {"stop", "length"}


@pytest.mark.parametrize("max_rows", [1, 3, 128])
@pytest.mark.parametrize("chunk_tokens", [1, 5, 64])
@pytest.mark.parametrize("prefill_tokens", [1, 40, 1000])
def test_results_equal_literal_decoding(policy, expected, max_rows, chunk_tokens, prefill_tokens) -> None:
    one = sampler(policy, max_rows=max_rows, chunk_tokens=chunk_tokens, prefill_tokens=prefill_tokens)
    found = completed(one, workload())
    assert found.keys() == expected.keys()
    for name, each in found.items():
        assert_equal(each, expected[name])


@pytest.mark.parametrize("seed", range(4))
def test_results_do_not_depend_on_the_order_nor_on_when_requests_join(policy, expected, seed: int) -> None:
    rng = np.random.default_rng(seed)
    queue = [workload()[index] for index in rng.permutation(len(workload()))]
    one, found = sampler(policy, max_rows=4, chunk_tokens=2), {}
    while queue or one.busy:
        for _ in range(min(len(queue), int(rng.integers(1, 4)))):
            one.add(queue.pop())
        found |= {each.request_id: each for each in one.chunk()}
    for name, each in expected.items():
        assert_equal(found[name], each)


def test_a_prompt_alone_equals_the_prompt_shared(policy, expected) -> None:
    alone = completed(sampler(policy), [workload()[6]])
    assert_equal(alone["6.0"], expected["6.0"])


def test_greedy_is_the_most_likely_token_with_log_prob_zero(policy) -> None:
    found = completed(sampler(policy), [request(SHARED, sampling=GREEDY, stop_ids=frozenset())])["0.0"]
    ids = list(SHARED)
    for token in found.token_ids:
        with torch.no_grad():
            assert int(policy(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(int(token))
    assert found.logprobs.tolist() == [0.0] * 8


def test_the_stop_id_ends_the_turn_and_is_part_of_it_also_as_the_last_token_allowed(policy) -> None:
    free = decoded(policy, request(SHARED, stop_ids=frozenset()))
    stop = free.token_ids[4]
    first = free.token_ids.index(stop)
    for limit in (first + 1, 8):
        each = completed(sampler(policy), [request(SHARED, stop_ids=frozenset({stop}), max_new_tokens=limit)])["0.0"]
        assert each.token_ids.tolist() == free.token_ids[: first + 1]
        assert each.finish_reason == "stop"
    cut = completed(sampler(policy), [request(SHARED, stop_ids=frozenset(), max_new_tokens=3)])["0.0"]
    assert cut.token_ids.tolist() == free.token_ids[:3] and cut.finish_reason == "length"


def test_the_first_ratio_is_one_on_policy_in_float32() -> None:
    from lecritique.models.scoring import TokenRow, logprobs

    policy = small_policy(dtype=torch.float32)
    found = completed(
        sampler(policy), [request(SHARED, member=m, sampling=Sampling(temperature=0.7)) for m in range(6)]
    )
    rows = [
        TokenRow(token_ids=np.array([*SHARED, *each.token_ids]), mask=np.arange(5 + len(each.token_ids)) >= 5)
        for each in found.values()
    ]
    for lp, each in zip(logprobs(policy, rows, temperature=0.7, max_tokens=1000), found.values(), strict=True):
        assert np.abs(np.exp(lp - each.logprobs) - 1.0).max() < 1e-5


def fed_tokens(policy) -> tuple[list[int], torch.utils.hooks.RemovableHandle]:
    """How many tokens (padding included) each forward pass is fed."""
    widths: list[int] = []

    def note(module, arguments) -> None:
        widths.append(arguments[0].numel())

    return widths, policy.get_input_embeddings().register_forward_pre_hook(note)


def test_a_continued_sequence_reuses_its_cache_and_equals_a_cold_sampler(policy) -> None:
    one = sampler(policy)
    first = completed(one, [request(SHARED, member=2)])["2.0"]
    follow = request([*SHARED, *first.token_ids, 6, 6, 1], member=2, turn=1)
    widths, hook = fed_tokens(policy)
    found = completed(one, [follow])["2.1"]
    hook.remove()
    # The last sampled token was never fed, then three given ones.
    assert widths[0] == 4 and set(widths[1:]) == {1}
    assert_equal(found, decoded(policy, follow))
    cold = completed(sampler(policy), [follow])["2.1"]
    assert cold.token_ids.tolist() == found.token_ids.tolist()
    np.testing.assert_allclose(cold.logprobs, found.logprobs, atol=1e-10)


def test_a_sequence_that_comes_back_changed_keeps_only_the_common_prefix(policy) -> None:
    one = sampler(policy)
    completed(one, [request(SHARED, member=2)])
    for turn, ids in enumerate([(*SHARED[:3], 1, 1, 1, 1, 1, 1, 1), SHARED[:2], SHARED], start=1):
        follow = request(ids, member=2, turn=turn)
        assert_equal(completed(one, [follow])[follow.request_id], decoded(policy, follow))


def test_idle_rows_are_evicted_when_slots_are_needed_and_come_back_cold(policy) -> None:
    one = sampler(policy, max_rows=2)
    firsts = completed(one, [request(SHARED, member=m) for m in range(5)])
    follows = [request([*SHARED, *firsts[f"{m}.0"].token_ids, 4], member=m, turn=1) for m in range(5)]
    found = completed(one, follows)
    for follow in follows:
        assert_equal(found[follow.request_id], decoded(policy, follow))


def test_two_requests_of_one_sequence_at_once_cost_no_slot_for_good(policy) -> None:
    one, same = sampler(policy, max_rows=2), rollout_id(0)
    for turn in range(0, 6, 2):
        pair = [request(SHARED, turn=turn + k, sequence=same) for k in (0, 1)]
        found = completed(one, pair)
        for each in pair:
            assert_equal(found[each.request_id], decoded(policy, each))
        assert len(one._free) + len(one._idle) == 2


def test_cancelling_waiting_and_active_requests_leaves_the_others_as_they_were(policy, expected) -> None:
    one = sampler(policy, max_rows=3, chunk_tokens=1)
    for each in workload():
        one.add(each)
    early = [each for _ in range(2) for each in one.chunk()]
    name = next(name for name in ("0.0", "1.0", "2.0") if len(expected[name].token_ids) > 2)
    active, waiting = one.cancel(name), one.cancel("7.0")
    assert active.finish_reason == waiting.finish_reason == "cancelled"
    assert active.token_ids.tolist() == expected[name].token_ids[:2] and len(waiting.token_ids) == 0
    assert one.cancel(name) is None and one.cancel("nobody") is None
    found = {each.request_id: each for each in early} | drained(one)
    assert found.keys() == expected.keys() - {name, "7.0"}
    for other, each in found.items():
        assert_equal(each, expected[other])


def test_clear_drops_requests_and_keys(policy) -> None:
    one = sampler(policy, max_rows=2, chunk_tokens=1)
    for each in workload():
        one.add(each)
    one.chunk()
    one.clear()
    assert not one.busy and one.chunk() == []
    again = request(SHARED)
    assert_equal(completed(one, [again])["0.0"], decoded(policy, again))


def test_a_cut_and_a_full_distribution_in_one_batch_keep_their_own_log_probs(policy, expected) -> None:
    requests = [workload()[index] for index in (0, 1, 2, 3)]
    assert len({each.sampling for each in requests}) == 4
    for name, each in completed(sampler(policy), requests).items():
        assert_equal(each, expected[name])


def test_padding_asks_for_no_position_past_the_context_where_positions_are_learned() -> None:
    """A long row with one id to feed, beside a shorter row with more: GPT-2 has no row of its table for the padding."""
    limit = 16
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=limit, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
        )
        policy = GPT2LMHeadModel(config).double().eval()
    one = sampler(policy)
    long, short = tuple(range(limit - 2)), (1, 2, 3, 4)
    stop = frozenset[int]()
    completed(one, [request(ids, member=m, max_new_tokens=1, stop_ids=stop) for m, ids in enumerate((long, short))])
    longer = (*long, 5), (*short, *range(9))
    asked = [request(ids, member=m, turn=1, max_new_tokens=1, stop_ids=stop) for m, ids in enumerate(longer)]
    found = completed(one, asked)
    for each in asked:
        assert_equal(found[each.request_id], decoded(policy, each))


def test_rows_that_change_places_take_their_kept_keys_along(policy) -> None:
    one = sampler(policy, max_rows=7, chunk_tokens=3)
    limits = (1, 9, 2, 7, 1, 5)
    first = completed(
        one, [request(SHARED, member=m, max_new_tokens=n, stop_ids=frozenset()) for m, n in enumerate(limits)]
    )
    follow = [
        request([*SHARED, *first[f"{m}.0"].token_ids, 6, 1], member=m, turn=1, max_new_tokens=2 + m) for m in range(6)
    ]
    widths, hook = fed_tokens(policy)
    found = completed(one, follow)
    hook.remove()
    # The last sampled token was never fed, then two given ones; nobody's prompt is read again.
    assert widths[0] == 6 * 3 and max(widths[1:]) <= 6
    for each in follow:
        assert_equal(found[each.request_id], decoded(policy, each))
