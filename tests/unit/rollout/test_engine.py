"""The embedded engine: futures, versions, adoption in mid-flight, failures."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
import torch
from literal_decoding import Decoded, assert_equal, decoded, request
from small_models import small_policy

from lecritique.core.errors import EngineFailure
from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.engine import EmbeddedEngine

PROMPT = (5, 9, 11, 2, 7)
NEVER = frozenset[int]()


def engine(policy=None, *, store=None, max_rows: int = 8, chunk_tokens: int = 2) -> EmbeddedEngine:
    return EmbeddedEngine(
        policy or small_policy(), store or MemoryWeightStore(), max_rows=max_rows, chunk_tokens=chunk_tokens,
        prefill_tokens=100,
    )  # fmt: skip


def run(one: EmbeddedEngine) -> None:
    while one.advance():
        pass


def test_futures_hold_what_literal_decoding_gives() -> None:
    one, requests = engine(max_rows=2), [request(PROMPT, member=m) for m in range(5)]
    futures = [one.submit(each) for each in requests]
    run(one)
    for each, future in zip(requests, futures, strict=True):
        assert_equal(future.result(timeout=0), decoded(small_policy(), each))


def test_a_queued_id_is_refused_and_a_finished_one_may_come_again() -> None:
    one = engine()
    one.submit(request(PROMPT))
    with pytest.raises(ValueError, match=r"request 0\.0 is already queued"):
        one.submit(request(PROMPT))
    run(one)
    again = one.submit(request(PROMPT))
    run(one)
    assert_equal(again.result(timeout=0), decoded(small_policy(), request(PROMPT)))


def test_the_engine_decodes_with_its_own_copy() -> None:
    policy = small_policy()
    one = engine(policy)
    with torch.no_grad():
        policy.get_input_embeddings().weight.zero_()
    future = one.submit(request(PROMPT))
    run(one)
    assert_equal(future.result(timeout=0), decoded(small_policy(), request(PROMPT)))


def test_cancelled_requests_give_what_was_sampled() -> None:
    one = engine(max_rows=1)
    active, waiting = [one.submit(request(PROMPT, member=m, stop_ids=NEVER)) for m in (0, 1)]
    one.advance()
    for name in ("0.0", "1.0", "unknown"):
        one.cancel(name)
    whole = decoded(small_policy(), request(PROMPT, stop_ids=NEVER))
    assert active.result(timeout=0).token_ids.tolist() == whole.token_ids[:2]
    assert active.result().finish_reason == waiting.result(timeout=0).finish_reason == "cancelled"
    assert not one.advance()


def published(store: MemoryWeightStore, seed: int):
    return store.put("policy", small_policy(seed).state_dict())


def after_switch(first, second, of: GenerateRequest, *, switch: int) -> Decoded:
    """Literal decoding whose weights change after `switch` tokens."""
    head = decoded(first, GenerateRequest(**{**vars(of), "max_new_tokens": switch}))
    prefix = np.concatenate([of.token_ids, head.token_ids])
    rest = GenerateRequest(**{**vars(of), "token_ids": prefix, "max_new_tokens": of.max_new_tokens - switch})
    tail = decoded(second, rest)
    return Decoded(head.token_ids + tail.token_ids, head.logprobs + tail.logprobs, tail.finish_reason)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_fault_37_tokens_after_adoption_equal_a_cold_engine_with_the_new_weights(chunks: int) -> None:
    store = MemoryWeightStore()
    one = engine(small_policy(0), store=store)
    one.adopt(published(store, 0))
    requests = [request(PROMPT, member=m, stop_ids=NEVER, max_new_tokens=8) for m in range(3)]
    futures = [one.submit(each) for each in requests]
    for _ in range(chunks):
        one.advance()
    one.adopt(published(store, 1))
    run(one)
    for each, future in zip(requests, futures, strict=True):
        found = future.result(timeout=0)
        assert_equal(found, after_switch(small_policy(0), small_policy(1), each, switch=2 * chunks))
        assert found.policy_version.tolist() == [0] * (2 * chunks) + [1] * (8 - 2 * chunks)


def test_fault_37_no_kept_key_survives_an_update() -> None:
    """Asked before and after: the same prompt, and the continuation of an idle sequence."""
    store = MemoryWeightStore()
    one = engine(small_policy(0), store=store)
    one.adopt(published(store, 0))
    first = one.submit(request(PROMPT, member=0))
    run(one)
    one.adopt(published(store, 1))
    requests = [
        request([*PROMPT, *first.result().token_ids, 6], member=0, turn=1),
        request(PROMPT, member=0, turn=2, sequence=request(PROMPT, member=7).sequence_id),
    ]
    futures = [one.submit(each) for each in requests]
    run(one)
    for each, future in zip(requests, futures, strict=True):
        assert_equal(future.result(timeout=0), decoded(small_policy(1), each))
        assert set(future.result().policy_version.tolist()) == {1}


def test_of_two_adoptions_before_a_chunk_the_later_serves() -> None:
    store = MemoryWeightStore()
    one = engine(store=store)
    for seed in (0, 1, 2):
        one.adopt(published(store, seed))
    future = one.submit(request(PROMPT))
    run(one)
    assert_equal(future.result(timeout=0), decoded(small_policy(2), request(PROMPT)))
    assert set(future.result().policy_version.tolist()) == {2}


def test_a_runtime_error_of_the_model_becomes_an_engine_failure_of_every_request_and_nothing_stays_behind() -> None:
    one = engine(max_rows=2)

    def fail(*call: object) -> None:
        raise RuntimeError("out of memory")

    futures: list[Future[Completion]] = [one.submit(request(PROMPT, member=m, stop_ids=NEVER)) for m in range(4)]
    one.advance()
    hook = one._sampler.model.get_input_embeddings().register_forward_pre_hook(fail)
    assert not one.advance()
    for future in futures:
        with pytest.raises(EngineFailure, match="out of memory"):
            future.result(timeout=0)
    hook.remove()
    assert not one.advance()
    requests = [request(PROMPT, member=m, turn=1) for m in range(4)]
    futures = [one.submit(each) for each in requests]
    run(one)
    for each, future in zip(requests, futures, strict=True):
        assert_equal(future.result(timeout=0), decoded(small_policy(), each))


def test_close_cancels_what_is_unfinished() -> None:
    one = engine()
    future = one.submit(request(PROMPT))
    one.close()
    assert future.cancelled()
    assert not one.advance()
