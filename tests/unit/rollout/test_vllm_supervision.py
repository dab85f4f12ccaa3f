"""Replicas of vLLM that die, hang or keep failing: replaced, with the newest weights and the open requests."""

from __future__ import annotations

import os
import signal
from concurrent.futures import wait

import pytest
from fake_replicas import LONG, PROMPT, SECONDS, SETTINGS, Numbered, begun, engines, pids_of, running, until
from fake_vllm import POISON
from literal_decoding import request
from small_models import rollout_id

from lecritique.core.errors import EngineFailure
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.vllm_engine import VllmEngine
from lecritique.rollout.vllm_messages import Adopt, Completed, Report, Submit
from lecritique.rollout.vllm_replica import ReplicaProcess, _Answers
from lecritique.rollout.vllm_supervision import ReplicaLost

__all__ = ["engines"]
# Far above the second between two signs of life, on a machine that is busy with other tests too.
STUCK_SECONDS = 10.0


@pytest.fixture
def losses() -> list[ReplicaLost]:
    return []


def ended_by_nine(engine: VllmEngine, store: MemoryWeightStore, futures) -> None:
    """New weights end every request that a replica goes on with."""
    engine.adopt(store.put("policy", Numbered(9).state_dict()))
    assert not wait(futures, SECONDS).not_done
    assert all(future.result().finish_reason == "stop" for future in futures)


@pytest.mark.parametrize(
    ("how", "reason"), [(signal.SIGKILL, "code -9"), (signal.SIGSTOP, "did nothing for 10 seconds")]
)
def test_the_only_replica_is_replaced_and_goes_on_with_the_weights_that_were_served(
    engines, losses, how, reason
) -> None:
    store = MemoryWeightStore()
    engine = engines(store=store, restarts=1, stuck_seconds=STUCK_SECONDS)
    engine.watch(losses.append)
    store.put("policy", Numbered(7).state_dict())
    engine.adopt(store.put("policy", Numbered(8).state_dict()))
    requests = [LONG(member=member) for member in range(3)]
    futures = [engine.submit(each) for each in requests]
    begun(engine, *requests)
    (first,) = pids_of(engine)
    os.kill(first, how)
    until(lambda: losses)
    assert reason in losses[0].reason and (losses[0].replacement, losses[0].restarts_left) == (1, 0)
    # One that arrives while nobody serves waits with the others.
    futures.append(engine.submit(LONG(member=3)))
    begun(engine, *requests)
    assert not running(first) and engine.restarts == 1
    ended_by_nine(engine, store, futures)
    for future in futures:
        completion = future.result()
        # Everything that the first one sampled is sampled again, by the version that was served then.
        assert set(completion.token_ids.tolist()[:-1]) <= {8} and set(completion.policy_version.tolist()) <= {1, 2}
    until(lambda: not list(engine._transfer.folder.glob("weights-*")))


def test_weights_published_while_a_replacement_starts_are_the_ones_it_serves(engines, losses) -> None:
    store = MemoryWeightStore()
    engine = engines(store=store, restarts=1)
    engine.watch(losses.append)
    future = engine.submit(LONG())
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    until(lambda: losses)
    store.put("policy", Numbered(7).state_dict())
    ended_by_nine(engine, store, [future])
    assert future.result().policy_version.tolist() == [1]


def test_others_take_over_at_once_and_the_replacement_takes_its_share(engines) -> None:
    engine = engines(replicas=2, restarts=1)
    requests = [LONG(member=row, sequence=rollout_id(row=row)) for row in range(4)]
    for each in requests:
        engine.submit(each)
    begun(engine, *requests)
    os.kill(pids_of(engine)[1], signal.SIGKILL)
    until(lambda: {entry.replica for entry in engine._open.values()} == {0})
    until(lambda: engine._serving == {0, 2})
    engine.submit(LONG(member=5, sequence=rollout_id(row=5)))
    assert [entry.replica for entry in engine._open.values()] == [0, 0, 0, 0, 2]


def test_a_request_that_ends_every_replica_ends_alone(engines, losses) -> None:
    store = MemoryWeightStore()
    engine = engines(store=store, restarts=5)
    engine.watch(losses.append)
    poisoned = engine.submit(request((1, POISON), max_new_tokens=5))
    with pytest.raises(EngineFailure, match="RuntimeError: poisoned"):
        poisoned.result(SECONDS)
    assert len(losses) == 3
    assert engine.submit(request(PROMPT, member=1, max_new_tokens=2)).result(SECONDS).token_ids.tolist() == [7, 7]


def test_when_nothing_may_be_restarted_any_more_requests_fail_with_the_reason(engines, losses) -> None:
    engine = engines(restarts=1)
    engine.watch(losses.append)
    future = engine.submit(LONG())
    begun(engine, LONG())
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    until(lambda: engine._serving == {1})
    begun(engine, LONG())
    os.kill(pids_of(engine)[1], signal.SIGKILL)
    with pytest.raises(EngineFailure, match="replica 1 ended: its process ended with code -9"):
        future.result(SECONDS)
    assert [lost.replacement for lost in losses] == [1, None]


def test_a_request_cancelled_while_no_replica_serves_ends_without_tokens(engines, losses) -> None:
    engine = engines(restarts=1)
    engine.watch(losses.append)
    future = engine.submit(LONG())
    begun(engine, LONG())
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    until(lambda: losses)
    engine.cancel(LONG().request_id)
    assert future.result(SECONDS).finish_reason == "cancelled"


def test_closing_while_a_replacement_starts_leaves_no_process(engines, losses) -> None:
    engine = engines(restarts=1)
    engine.watch(losses.append)
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    until(lambda: losses)
    pids = pids_of(engine)
    engine.close()
    assert len(pids) == 2 and not any(running(pid) for pid in pids)


def test_weights_that_cannot_be_written_cost_the_replacement_and_not_the_engine(engines, losses, monkeypatch) -> None:
    engine = engines(replicas=2, restarts=1)
    engine.watch(losses.append)

    def full(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(engine._transfer, "_written", full)
    os.kill(pids_of(engine)[1], signal.SIGKILL)
    until(lambda: len(losses) == 2)
    assert "could not be given weights (OSError: no space left)" in losses[1].reason and engine._serving == {0}


def test_one_that_takes_too_long_to_start_is_killed(tmp_path) -> None:
    reports: list[Report] = []
    replica = ReplicaProcess(
        SETTINGS, number=4, log=tmp_path / "log", variables={}, report=lambda number, report: reports.append(report),
        server=("-c", "import time; time.sleep(600)"),
    )  # fmt: skip
    replica.kill_if_stuck(start_seconds=SECONDS, stuck_seconds=0.0)
    assert running(replica._process.pid) and not reports
    replica.kill_if_stuck(start_seconds=0.0, stuck_seconds=SECONDS)
    until(lambda: reports)
    assert "did not start within 0 seconds ('runtime.engine.start_seconds')" in reports[0].reason  # type: ignore[union-attr]
    replica.stop()
    assert not running(replica._process.pid)


def test_silence_counts_only_where_an_answer_is_owed_and_nobody_is_being_told(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr("lecritique.rollout.vllm_replica.time.monotonic", lambda: now)
    answers, submit = _Answers(), Submit(request=request(PROMPT))
    assert answers.silent_seconds() == 0.0
    answers.expect(submit)
    now = 107.0
    assert answers.silent_seconds() == 7.0
    answers.expect(Adopt(manifest=None, weights=None))  # type: ignore[arg-type]
    now = 109.0
    assert answers.silent_seconds() == 9.0, "a second request is no sign of life"
    answers.heard(Completed(completion=None))  # type: ignore[arg-type]
    now = 120.0
    assert answers.silent_seconds() == 0.0
    answers.told()
    now = 121.0
    assert answers.silent_seconds() == 1.0
