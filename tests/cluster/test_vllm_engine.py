"""vLLM itself behind the engine protocol: its log-probs against the trainer's, updates, and runs of both loops.

It pins other versions of what the rest of the tests use, so these run in an environment of their own:
`make test-cluster`. There the package must be installed.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
import torch

from lecritique.core.errors import ConfigurationError, EngineFailure
from lecritique.core.rollout import GenerateRequest, Sampling
from lecritique.models.loading import load_causal_lm
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.vllm_engine import _Version
from tests.cluster.served_policies import (
    CLOSE_NATS,
    ENGINE,
    SECONDS,
    Policy,
    largest_gap,
    pids_of,
    started,
    trained,
    until,
)

HERE = importlib.util.find_spec("vllm") is not None
if not HERE and os.environ.get("LECRITIQUE_REQUIRE_CLUSTER") == "1":
    raise RuntimeError("LECRITIQUE_REQUIRE_CLUSTER = 1, but vllm is not installed")
pytestmark = pytest.mark.skipif(not HERE, reason="vllm is not installed: make test-cluster")


@pytest.fixture(scope="module")
def tiny() -> Iterator[Policy]:
    policy = Policy("tiny")
    yield policy
    policy.engine.close()


def test_logprobs_are_the_trainers_before_and_after_ten_updates(tiny) -> None:
    for _ in range(11):
        requests = tiny.requests(6)
        completions = tiny.completions(requests)
        assert largest_gap(tiny.model, requests, completions) < CLOSE_NATS
        version = tiny.store._next["policy"] - 1
        assert {int(v) for of in completions for v in of.policy_version} == {version}
        before = copy.deepcopy(tiny.model)
        tiny.change()
        # What was just sampled is told from the changed weights, so the next round shows that they have arrived.
        assert largest_gap(tiny.model, requests, completions) > 10 * CLOSE_NATS
        assert largest_gap(before, requests, completions) < CLOSE_NATS
        tiny.publish()


def test_the_distribution_sampled_from_is_cut_and_renormalised(tiny) -> None:
    requests = tiny.requests(6, sampling=Sampling(temperature=2.0, top_k=5, top_p=0.9))
    kept = []
    for request, completion in zip(requests, tiny.completions(requests), strict=True):
        ids = torch.tensor([[*request.token_ids, *completion.token_ids]])
        with torch.no_grad():
            logits_LV = tiny.model(input_ids=ids, use_cache=False).logits[0] / 2.0
        for index, (token, logprob) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
            p_V = logits_LV[len(request.token_ids) - 1 + index].topk(5)
            chances = p_V.values.softmax(-1)
            count = int((chances.cumsum(-1) - chances < 0.9).sum())
            kept.append(count)
            nucleus = dict(zip(p_V.indices[:count].tolist(), chances[:count].tolist(), strict=True))
            expected = np.log(nucleus[int(token)] / sum(nucleus.values()))
            assert logprob == pytest.approx(expected, abs=CLOSE_NATS)
    assert min(kept) < 5, "top_p cut nothing"


def test_a_seed_gives_the_same_tokens_again_and_another_seed_others(tiny) -> None:
    first, second = tiny.requests(4, new=20), tiny.requests(4, new=20)
    again = [
        GenerateRequest(**{**vars(each), "request_id": f"again{index}"}) for index, each in enumerate(reversed(first))
    ]
    one, other = tiny.completions(first), tiny.completions([*again, *second])
    assert [of.token_ids.tolist() for of in one] == [of.token_ids.tolist() for of in reversed(other[:4])]
    assert [of.token_ids.tolist() for of in one] != [of.token_ids.tolist() for of in other[4:]]


def test_a_second_turn_reads_the_first_from_the_cache_and_stop_ids_end_it(tiny) -> None:
    request = tiny.requests(5)[-1]
    (first,) = tiny.completions([request])
    ids = np.concatenate([request.token_ids, first.token_ids, [4, 5, 6]])
    stop = frozenset(range(1, tiny.vocabulary))
    turn = GenerateRequest(**{**vars(request), "request_id": "turn", "token_ids": ids, "stop_ids": stop})
    (second,) = tiny.completions([turn])
    assert second.finish_reason == "stop" and second.token_ids[-1] in stop
    assert largest_gap(tiny.model, [turn], [second]) < CLOSE_NATS


def test_weights_that_change_in_mid_flight_leave_no_key_of_the_old_ones(tiny) -> None:
    requests = tiny.requests(3, new=150)
    requests = [GenerateRequest(**{**vars(each), "stop_ids": frozenset()}) for each in requests]
    futures = [tiny.engine.submit(each) for each in requests]
    until(lambda: all(tiny.engine.oldest_version(each.request_id) is not None for each in requests))
    old, at = copy.deepcopy(tiny.model), tiny.store._next["policy"] - 1
    tiny.change()
    tiny.publish()
    for request, future in zip(requests, futures, strict=True):
        completion = future.result(SECONDS)
        is_old = completion.policy_version == at
        assert 0 < is_old.sum() < 150 and (np.diff(completion.policy_version) >= 0).all()
        for model, mine in ((old, is_old), (tiny.model, ~is_old)):
            gap = np.abs(trained(model, request, completion) - completion.logprobs)[mine]
            assert gap.max() < CLOSE_NATS


def test_a_cancelled_request_gives_what_it_has(tiny) -> None:
    request = GenerateRequest(**{**vars(tiny.requests(1, new=200)[0]), "stop_ids": frozenset()})
    future = tiny.engine.submit(request)
    until(lambda: tiny.engine.oldest_version(request.request_id) is not None)
    tiny.engine.cancel(request.request_id)
    completion = future.result(SECONDS)
    assert completion.finish_reason == "cancelled" and 0 < len(completion.token_ids) < 200
    assert largest_gap(tiny.model, [request], [completion]) < CLOSE_NATS


def test_a_sequence_over_the_limit_fails_alone(tiny) -> None:
    (request,) = tiny.requests(1)
    ids = np.zeros(300, dtype=np.int64)
    with pytest.raises(EngineFailure, match="vLLM does not accept the request"):
        tiny.completions([GenerateRequest(**{**vars(request), "token_ids": ids})])
    assert len(tiny.completions(tiny.requests(1))) == 1


def test_half_written_weights_are_never_served(tiny) -> None:
    """A file cut or changed on its way ends the replica; closing leaves no process and no file."""
    model, store = load_causal_lm("tiny").model, MemoryWeightStore()
    engine = started(model, store, "runtime.engine.restarts=0")
    manifest = store.put("policy", {name: tensor + 1 for name, tensor in model.state_dict().items()})
    # Other bytes than the manifest says.
    engine._publish(_Version(manifest=manifest, state=model.state_dict()))
    future = engine.submit(tiny.requests(1)[0])
    with pytest.raises(EngineFailure, match="digest"):
        future.result(SECONDS)
    pids, folder = pids_of(engine), engine._transfer.folder
    engine.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids) and not folder.exists()


def test_smollm2_before_and_after_ten_updates() -> None:
    policy = Policy("smollm2")
    try:
        for update in range(11):
            if update in (0, 1, 10):
                requests = policy.requests(2, new=6)
                assert largest_gap(policy.model, requests, policy.completions(requests)) < CLOSE_NATS
            policy.change(share=0.02)
            policy.publish()
        open_one = policy.engine.submit(policy.requests(1, new=200)[0])
    finally:
        policy.engine.close()
    with pytest.raises(CancelledError):
        open_one.result(0)


def test_settings_that_vllm_does_not_take_are_refused_before_the_run() -> None:
    model = load_causal_lm("tiny").model
    with pytest.raises(ConfigurationError, match=r"'runtime.engine.type' = 'vllm' cannot start: "):
        started(model, MemoryWeightStore(), max_length=100_000)


@pytest.mark.parametrize("loop", ["synchronous", "asynchronous"])
def test_the_demo_trains_with_two_replicas(tmp_path, loop) -> None:
    small = ("run.steps=3", "rollout.batch_size=16", "critic.replay.refill_size=16", "task.rows=32")
    overrides = (*ENGINE, "runtime.engine.replicas=2", f"runtime.loop={loop}", *small)
    command = [sys.executable, "-m", "lecritique", "train", "demo", "--out", str(tmp_path / "run"), *overrides]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(row["rollouts_failed"] == 0 for row in rows)
    if loop == "synchronous":
        # The trainer's weights are those that sampled; in the other loop they may have moved on.
        assert all(0 < row["sampler_gap_nats"] < CLOSE_NATS for row in rows)
