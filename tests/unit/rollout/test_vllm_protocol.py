"""The vLLM engine around a replica that is no vLLM: versions, cancellation, loss of replicas, processes that end."""

from __future__ import annotations

import os
import queue
import signal
import socket
from concurrent.futures import CancelledError, wait

import pytest
from fake_replicas import FAKE, LONG, PROMPT, SECONDS, SETTINGS, Numbered, begun, engines, pids_of, running, until
from literal_decoding import request
from small_models import rollout_id

from lecritique.core.errors import ConfigurationError, EngineFailure
from lecritique.core.rollout import GenerateRequest
from lecritique.core.weights import WeightManifest
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.vllm_messages import (
    Adopt,
    Adopted,
    Cancel,
    Command,
    Completed,
    ReplicaSettings,
    Report,
    Stop,
    Submit,
    WeightFile,
    Weights,
)
from lecritique.rollout.vllm_replica import ReplicaProcess
from lecritique.rollout.vllm_server import Replica, Sampled
from lecritique.runtime.engines import replica_environments

__all__ = ["engines"]


def test_tokens_carry_the_version_that_sampled_them_and_weights_change_in_mid_flight(engines) -> None:
    store = MemoryWeightStore()
    engine = engines(store=store)
    short = engine.submit(request(PROMPT, member=1, max_new_tokens=3)).result(SECONDS)
    assert (short.token_ids.tolist(), short.finish_reason) == ([7, 7, 7], "length")
    assert short.policy_version.tolist() == [0, 0, 0] and short.logprobs.tolist() == [-0.5] * 3
    long = LONG(member=2)
    future = engine.submit(long)
    begun(engine, long)
    store.put("policy", Numbered(7).state_dict())
    engine.adopt(store.put("policy", Numbered(9).state_dict()))
    completion = future.result(SECONDS)
    switch = completion.token_ids.tolist().index(9)
    assert completion.finish_reason == "stop" and switch == len(completion.token_ids) - 1 > 0
    assert completion.policy_version.tolist() == [0] * switch + [1]
    assert engine.oldest_version(long.request_id) is None
    until(lambda: not list(engine._transfer.folder.glob("weights-*")))


def test_a_cancelled_request_gives_what_it_has_and_the_others_go_on(engines) -> None:
    engine = engines()
    requests = [LONG(member=member) for member in range(2)]
    futures = [engine.submit(each) for each in requests]
    begun(engine, *requests)
    assert engine.oldest_version(requests[0].request_id) == 0 and engine.oldest_version("unknown") is None
    engine.cancel("unknown")
    engine.cancel(requests[0].request_id)
    completion = futures[0].result(SECONDS)
    assert completion.finish_reason == "cancelled" and set(completion.token_ids.tolist()) == {7}
    assert not futures[1].done() and not engine.advance()


def test_a_request_that_vllm_refuses_fails_alone_and_one_that_is_queued_is_not_taken_twice(engines) -> None:
    engine = engines()
    with pytest.raises(EngineFailure, match="does not accept the request: 60 tokens are too many"):
        engine.submit(request(PROMPT * 20)).result(SECONDS)
    engine.submit(LONG(member=1))
    with pytest.raises(ValueError, match=r"request 1\.0 is already queued"):
        engine.submit(LONG(member=1))


def test_closing_cancels_what_is_open_and_leaves_no_process_and_no_file(engines) -> None:
    engine = engines(replicas=2)
    open_one = LONG()
    future = engine.submit(open_one)
    begun(engine, open_one)
    pids = pids_of(engine)
    assert all(running(pid) for pid in pids) and engine._transfer.folder.is_dir()
    engine.close()
    engine.close()
    with pytest.raises(CancelledError):
        future.result(0)
    assert not any(running(pid) for pid in pids) and not engine._transfer.folder.exists()
    with pytest.raises(EngineFailure, match="the engine is closed"):
        engine.submit(LONG()).result(0)


def test_without_its_only_replica_every_request_fails_with_the_reason(engines) -> None:
    engine = engines()
    open_one = LONG()
    future = engine.submit(open_one)
    begun(engine, open_one)
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    with pytest.raises(EngineFailure, match="replica 0 ended: its process ended with code -9"):
        future.result(SECONDS)
    with pytest.raises(EngineFailure, match="replica 0 ended"):
        engine.submit(LONG(member=1)).result(0)


def test_what_a_dead_replica_had_open_is_asked_of_the_other(engines) -> None:
    store = MemoryWeightStore()
    engine = engines(replicas=2, store=store)
    requests = [LONG(member=row, sequence=rollout_id(row=row)) for row in range(4)]
    futures = [engine.submit(each) for each in requests]
    begun(engine, *requests)
    assert sorted(entry.replica for entry in engine._open.values()) == [0, 0, 1, 1], "not balanced"
    os.kill(pids_of(engine)[1], signal.SIGKILL)
    until(lambda: {entry.replica for entry in engine._open.values()} == {0})
    store.put("policy", Numbered(7).state_dict())
    engine.adopt(store.put("policy", Numbered(9).state_dict()))
    assert not wait(futures, SECONDS).not_done
    assert all(future.result().finish_reason == "stop" for future in futures)


def test_members_of_a_group_share_a_replica(engines) -> None:
    engine = engines(replicas=2)
    for row in range(2):
        for member in range(3):
            engine.submit(LONG(member=10 * row + member, sequence=rollout_id(member, row=row)))
    places = [entry.replica for entry in engine._open.values()]
    assert places == [0, 0, 0, 1, 1, 1]


def test_what_keeps_vllm_from_starting_is_said_in_one_line(engines) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot start: RuntimeError: 13 rows are too many\.$"):
        engines(settings=ReplicaSettings(**{**vars(SETTINGS), "rows": 13}))


def test_without_vllm_its_extra_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'lecritique\[vllm\]'"):
        ReplicaProcess(SETTINGS, number=0, log=tmp_path / "log", variables={}, report=lambda number, report: None)


def test_a_replica_ends_with_its_caller_and_takes_the_folder_along(tmp_path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    settings = ReplicaSettings(**{**vars(SETTINGS), "model_folder": str(folder / "model")})
    replica = ReplicaProcess(
        settings, number=0, log=tmp_path / "log", variables={}, report=lambda number, report: None, server=FAKE
    )
    replica.wait_until_ready(SECONDS)
    # What the end of the calling process does, however it ends.
    socket.socket(fileno=os.dup(replica._connection.fileno())).shutdown(socket.SHUT_RDWR)
    until(lambda: replica._process.poll() is not None)
    assert not folder.exists()
    replica.stop()


class Scripted:
    """A decoder that samples the number of the file that it loaded last."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.ids: list[str] = []

    def add(self, request: GenerateRequest) -> None:
        self.ids.append(request.request_id)

    def abort(self, request_id: str) -> None:
        self.ids.remove(request_id)

    def step(self) -> list[Sampled]:
        token = int(self.loaded[-1])
        return [Sampled(request_id=each, token_ids=[token], logprobs=[0.0], finish_reason=None) for each in self.ids]

    def load(self, weights: Weights) -> None:
        assert isinstance(weights, WeightFile)
        self.loaded.append(weights.path)


def served(*commands: Command) -> tuple[Scripted, list[Report]]:
    """What a replica reports when it finds all these commands at once, and after the next token is told to stop."""
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    decoder, reports = Scripted(), []

    class Pipe:
        send = staticmethod(reports.append)

    for command in commands:
        inbox.put(command)
    step = decoder.step

    def last_step() -> list[Sampled]:
        inbox.put(Stop())
        return step()

    decoder.step = last_step  # type: ignore[method-assign]
    Replica(decoder, inbox, Pipe()).serve()
    return decoder, reports


def adopt(version: int) -> Adopt:
    manifest = WeightManifest(role="policy", version=version, digest="d")
    return Adopt(manifest=manifest, weights=WeightFile(path=str(version), names=("w",), digest="d"))


def test_of_versions_that_wait_only_the_last_is_loaded_and_all_are_answered() -> None:
    decoder, reports = served(adopt(3), Submit(request=request(PROMPT)), adopt(4), adopt(5))
    assert decoder.loaded == ["5"]
    assert [report.manifest.version for report in reports if isinstance(report, Adopted)] == [3, 4, 5]
    assert reports[-1].version == 5  # type: ignore[union-attr]


def test_a_request_before_any_weights_is_refused_and_a_waiting_one_can_be_cancelled() -> None:
    early, cut, last = (Submit(request=request(PROMPT, member=member)) for member in range(3))
    _, reports = served(early, adopt(0), cut, Cancel(request_id=cut.request.request_id), last)
    assert "no weights" in reports[0].reason  # type: ignore[union-attr]
    cancelled = next(report.completion for report in reports if isinstance(report, Completed))
    assert cancelled.finish_reason == "cancelled" and len(cancelled.token_ids) == 0


def test_replicas_get_gpus_of_their_own_behind_those_of_the_trainers() -> None:
    named = replica_environments(replicas=2, gpus_each=2, first=1, gpus=["3", "4", "5", "6", "7"])
    assert [each["CUDA_VISIBLE_DEVICES"] for each in named] == ["4,5", "6,7"]
    assert replica_environments(replicas=2, gpus_each=1, first=0, gpus=None) == [{}, {}]
    with pytest.raises(ConfigurationError, match=r"needs GPUs 1 to 4.*there are 4"):
        replica_environments(replicas=2, gpus_each=2, first=1, gpus=["0", "1", "2", "3"])
