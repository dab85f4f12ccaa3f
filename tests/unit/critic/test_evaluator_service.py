"""The evaluator thread: whole answers from one version, in input order, every future ended, nothing blocked."""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch
from small_models import small_policy, trajectory

from lecritique.config.losses import Bce, Mse
from lecritique.core.errors import DataError, DivergenceError, Overloaded, RoleFailure
from lecritique.core.trajectory import ContextInsertion, ValuePrediction, ValueRequest
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.critic.served import Colocated, DoubleBuffered
from lecritique.critic.serving import EvaluatorService
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1], [0, 1], [0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1, 1, 1, 1]]
CONTEXT = ContextInsertion(position=1, token_ids=np.array([4, 4, 8]))
PATIENCE = 60.0


def critic(seed: int) -> ValueModel:
    return ValueModel.from_policy(small_policy(seed), Bce(), seed=seed)


def numbered(version: int, model: ValueModel | None = None) -> ValueModel:
    """A critic that says its own version number for every token."""
    said = model or ValueModel.from_policy(small_policy(layers=1), Mse(), seed=0)
    with torch.no_grad():
        said.head.weight.zero_()
        said.head.bias.fill_(float(version))
    return said


def requests(masks=MASKS, *, seed: int = 0) -> list[ValueRequest]:
    return [
        ValueRequest(trajectory=trajectory(mask, member=m, seed=seed), context=CONTEXT if m % 2 else None)
        for m, mask in enumerate(masks)
    ]


def service(served, *, max_tokens: int = 1000, batch: int = 1000, wait_seconds: float = 0.0, queue: int = 10**6):
    return EvaluatorService(
        served, max_tokens=max_tokens, context_length=100, max_batch_tokens=batch, max_wait_seconds=wait_seconds,
        max_queue_tokens=queue,
    )  # fmt: skip


@pytest.fixture
def running():
    """Starts services, and stops them whatever the test does."""
    started = []

    def start(*arguments, **options) -> EvaluatorService:
        started.append(service(*arguments, **options))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop(finish=False)


def answer(future: Future[list[ValuePrediction]]) -> list[ValuePrediction]:
    return future.result(timeout=PATIENCE)


def cold(state, masks_seed: int = 0, *, max_tokens: int = 1000) -> list[ValuePrediction]:
    """What a new evaluator says that has never served anything else."""
    store = MemoryWeightStore()
    one = ValueEvaluator(critic(0), store, max_tokens=max_tokens, context_length=100)
    one.adopt(store.put("critic", state))
    return one.score(requests(seed=masks_seed))


def same(found: list[ValuePrediction], expected: list[ValuePrediction], atol: float = 0.0) -> None:
    assert [each.rollout_id for each in found] == [each.rollout_id for each in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.values, other.values, rtol=0, atol=atol)


def spoken(asked: list[ValueRequest], found: list[ValuePrediction]) -> set[float]:
    """Every value of an action token."""
    return {
        float(value)
        for request, each in zip(asked, found, strict=True)
        for value in each.values[request.trajectory.action_mask]
    }


class Slow(DoubleBuffered):
    """Holds every lease until it is let go, and says when it holds one."""

    def __init__(self, model: ValueModel, version: int = 0) -> None:
        super().__init__(model, version=version)
        self.let_go, self.holding = threading.Event(), threading.Event()

    def leased(self):
        self.holding.set()
        assert self.let_go.wait(PATIENCE)
        return super().leased()


@pytest.mark.parametrize("max_tokens", [1, 9, 1000])
def test_alone_a_submission_gets_the_synchronous_evaluators_bits(running, max_tokens: int) -> None:
    one = running(DoubleBuffered(critic(1), version=5), max_tokens=max_tokens)
    found = answer(one.submit(requests()))
    same(found, cold(critic(1).state_dict(), max_tokens=max_tokens))
    assert {each.value_version for each in found} == {5} == {one.version}
    assert answer(one.submit([])) == []


def test_fault_37_before_and_after_an_update_it_says_what_a_cold_one_says(running) -> None:
    store = MemoryWeightStore()
    one = running(DoubleBuffered(critic(0), store))
    for seed in (1, 2, 3):
        one.adopt(store.put("critic", critic(seed).state_dict()))
        for _ in range(2):
            found = answer(one.submit(requests(), minimum_version=seed - 1))
            same(found, cold(critic(seed).state_dict()))
            assert {each.value_version for each in found} == {seed - 1}


def test_submissions_that_wait_together_are_one_batch_with_each_its_own_answer(running) -> None:
    served = Slow(critic(1))
    one = running(served)
    first = one.submit(requests())
    assert served.holding.wait(PATIENCE)
    others = [one.submit(requests(seed=seed)) for seed in range(6)]
    served.let_go.set()
    same(answer(first), cold(critic(1).state_dict()))
    for seed, each in enumerate(others):
        same(answer(each), cold(critic(1).state_dict(), seed), atol=1e-12)
    figures = one.metrics()
    assert figures["evaluator_batches"] == 2
    assert figures["evaluator_requests"] == 7 * len(MASKS)
    assert figures["evaluator_batch_fill"] == pytest.approx(3.5 * one.counts.tokens / 7 / 1000)
    assert 0 < figures["evaluator_latency_p50_seconds"] <= figures["evaluator_latency_p99_seconds"]
    again = one.metrics()
    assert again["evaluator_batches"] == 0 and np.isnan(again["evaluator_latency_p50_seconds"])


def test_batches_are_bounded_by_tokens_and_with_one_token_every_submission_is_alone(running) -> None:
    served = Slow(critic(1))
    one = running(served, batch=1, wait_seconds=PATIENCE)
    futures = [one.submit(requests(seed=seed)) for seed in range(4)]
    served.let_go.set()
    for seed, each in enumerate(futures):
        same(answer(each), cold(critic(1).state_dict(), seed))
    assert one.counts.batches == 4


def test_the_oldest_waits_for_company_no_longer_than_it_is_told(running) -> None:
    one = running(DoubleBuffered(critic(1), version=0), wait_seconds=0.2)
    began = time.monotonic()
    futures = [one.submit(requests(seed=seed)) for seed in range(3)]
    wait(futures, timeout=PATIENCE)
    assert 0.2 <= time.monotonic() - began < 10
    assert one.counts.batches == 1


def test_1000_swaps_under_load_no_answer_from_two_versions_and_none_goes_back(running) -> None:
    store = MemoryWeightStore()
    source = numbered(0)
    served = DoubleBuffered(numbered(-1), store)
    # Three tokens a pass: every answer takes many forward passes.
    one = running(served, max_tokens=9, batch=60)
    one.adopt(store.put("critic", source.state_dict()))
    ended = threading.Event()

    def ask(client: int) -> list[int]:
        versions = []
        while not ended.is_set() or len(versions) < 3:
            asked = requests(seed=client)
            found = answer(one.submit(asked, minimum_version=versions[-1] if versions else 0))
            assert [each.rollout_id for each in found] == [each.trajectory.rollout_id for each in asked]
            said = {
                float(v) for each, r in zip(found, asked, strict=True) for v in each.values[r.trajectory.action_mask]
            }
            assert said == {float(found[0].value_version)} == {float(each.value_version) for each in found}
            versions.append(found[0].value_version)
        assert versions == sorted(versions)
        return versions

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask, client) for client in range(4)]
        try:
            for version in range(1, 1001):
                one.adopt(store.put("critic", numbered(version, source).state_dict()))
        finally:
            ended.set()
        seen = [client.result(timeout=PATIENCE) for client in clients]
    assert served.swaps == 1001 and one.version == 1000
    # The swaps and the answers did run at the same time.
    assert all(len(set(versions)) > 10 for versions in seen)


def test_swaps_under_load_give_a_real_critics_values_of_the_version_they_name(running) -> None:
    states = [critic(seed).state_dict() for seed in range(6)]
    expected = [cold(state, max_tokens=9) for state in states]
    store = MemoryWeightStore()
    one = running(DoubleBuffered(critic(0), store), max_tokens=9, batch=1)
    ended = threading.Event()

    def ask() -> int:
        count = 0
        while not ended.is_set():
            found = answer(one.submit(requests()))
            (version,) = {each.value_version for each in found}
            same(found, expected[version])
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(ask) for _ in range(3)]
        try:
            for state in states:
                one.adopt(store.put("critic", state))
                answer(one.submit(requests(), minimum_version=one.version))
        finally:
            ended.set()
        assert all(client.result(timeout=PATIENCE) for client in clients)


def test_a_request_waits_for_its_version_and_holds_up_no_other(running) -> None:
    store = MemoryWeightStore()
    one = running(DoubleBuffered(critic(0), store))
    one.adopt(store.put("critic", critic(1).state_dict()))
    later = one.submit(requests(), minimum_version=1)
    assert answer(one.submit(requests()))[0].value_version == 0
    assert not later.done()
    one.adopt(store.put("critic", critic(2).state_dict()))
    assert {each.value_version for each in answer(later)} == {1}


def test_nothing_is_answered_before_a_first_version(running) -> None:
    store = MemoryWeightStore()
    one = running(DoubleBuffered(critic(0), store))
    future = one.submit(requests())
    with pytest.raises(TimeoutError):
        future.result(timeout=0.05)
    one.adopt(store.put("critic", critic(1).state_dict()))
    same(answer(future), cold(critic(1).state_dict()))


@pytest.mark.parametrize("reached", ["names", "half"])
def test_fault_41_a_load_that_fails_leaves_the_old_version_under_its_number(running, reached: str) -> None:
    store = MemoryWeightStore()
    served = DoubleBuffered(critic(0), store)
    one = running(served)
    one.adopt(store.put("critic", critic(1).state_dict()))
    before = answer(one.submit(requests()))

    def half(model: ValueModel) -> None:
        with torch.no_grad():
            for parameter in list(model.parameters())[:5]:
                parameter.fill_(7.0)
        raise OSError("killed half-way")

    if reached == "half":
        with pytest.raises(OSError, match="half-way"):
            served.load(1, half)
    else:
        bad = {name: tensor for name, tensor in critic(2).state_dict().items() if name != "head.bias"}
        with pytest.raises(RuntimeError, match=r"head\.bias"):
            one.adopt(store.put("critic", bad))
    after = answer(one.submit(requests()))
    same(after, before)
    assert {each.value_version for each in after} == {0} == {one.version} and served.swaps == 1
    # The half-written spare does not spoil the next version.
    served.load(2, lambda model: model.load_state_dict(critic(2).state_dict()))
    same(answer(one.submit(requests(), minimum_version=2)), cold(critic(2).state_dict()))


def test_an_older_version_never_takes_the_place_of_a_newer_one() -> None:
    served = DoubleBuffered(critic(0), version=3)
    served.load(3, lambda model: model.load_state_dict(critic(1).state_dict()))
    served.load(2, lambda model: model.load_state_dict(critic(1).state_dict()))
    assert (served.version, served.swaps) == (3, 0)


def test_a_full_queue_says_so_at_once_and_takes_again_what_fits(running) -> None:
    served = Slow(critic(1))
    tokens = 27 + 2 * len(CONTEXT) - 1  # the last token of one row is not wanted, hence not read
    one = running(served, queue=2 * tokens)
    first = one.submit(requests())
    assert served.holding.wait(PATIENCE)
    held = [one.submit(requests()) for _ in range(2)]
    assert one.queued_tokens == 2 * tokens
    began = time.monotonic()
    with pytest.raises(
        Overloaded, match=f"holds {2 * tokens} tokens; {tokens} more are over its limit of {2 * tokens}"
    ):
        one.submit(requests())
    assert time.monotonic() - began < 5
    assert held[1].cancel()
    held.append(one.submit(requests()))
    served.let_go.set()
    for each in (first, held[0], held[2]):
        same(answer(each), cold(critic(1).state_dict()), atol=1e-12)
    assert one.counts.overloaded == 1 and one.counts.cancelled == 1
    # Larger than the whole queue: taken when nothing else waits, for it would fit never.
    assert len(answer(one.submit([*requests(), *requests(), *requests()]))) == 15


def test_a_sequence_over_the_critics_limit_is_refused_when_it_is_submitted(running) -> None:
    one = running(DoubleBuffered(critic(0), version=0))
    with pytest.raises(DataError, match=r"has 101 tokens with the critic's context, over the model's limit of 100"):
        one.submit([ValueRequest(trajectory=trajectory([0] * 100 + [1]))])


def test_a_value_that_is_not_finite_fails_its_own_submission_and_the_thread_goes_on(running) -> None:
    served = DoubleBuffered(numbered(0), version=0)
    one = running(served)
    served.load(1, lambda model: numbered(1, model).head.bias.data.fill_(float("nan")))
    with pytest.raises(DivergenceError, match="critic version 1"):
        answer(one.submit(requests()))
    served.load(2, lambda model: numbered(2, model))
    assert answer(one.submit(requests()))[0].value_version == 2
    assert one.failure is None and one.counts.failed == 1


@pytest.mark.parametrize("finish", [True, False])
def test_stop_while_busy_ends_every_future(running, finish: bool) -> None:
    served = Slow(critic(1))
    one = running(served, batch=1)
    futures = [one.submit(requests(seed=seed)) for seed in range(5)]
    never = one.submit(requests(), minimum_version=9)
    assert served.holding.wait(PATIENCE)
    stopping = threading.Thread(target=lambda: one.stop(finish=finish))
    stopping.start()
    while one._state != "stopping":
        time.sleep(0.001)
    with pytest.raises(RoleFailure, match="has stopped"):
        one.submit(requests())
    served.let_go.set()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert not wait([*futures, never], timeout=PATIENCE).not_done
    assert never.cancelled()
    assert [future.cancelled() for future in futures] == [False, *[not finish] * 4]
    for seed, future in enumerate(futures[: 5 if finish else 1]):
        same(future.result(), cold(critic(1).state_dict(), seed))
    one.stop()
    one.stop(finish=False)
    assert one.failure is None
    with pytest.raises(RoleFailure, match="cannot be started: it is stopped"):
        one.start()


def test_stopped_before_it_was_started_it_cancels_what_waits() -> None:
    one = service(DoubleBuffered(critic(0), version=0))
    future = one.submit(requests())
    one.stop()
    with pytest.raises(CancelledError):
        future.result(timeout=0)


def test_callbacks_of_cancelled_futures_may_ask_the_service() -> None:
    """A lock held around them would stand still with any other lock that the caller holds."""
    one = service(DoubleBuffered(critic(0), version=0))
    asked = []
    other = threading.Lock()

    def call(_: object) -> None:
        thread = threading.Thread(target=lambda: asked.append(one.metrics()))
        thread.start()
        thread.join(PATIENCE)

    one.submit(requests()).add_done_callback(call)
    with other:
        one.stop()
    assert len(asked) == 1


class Broken(Slow):
    def leased(self):
        super().leased()
        raise MemoryError("no room")


def test_what_ends_the_thread_reaches_every_future_and_every_later_call(running) -> None:
    served = Broken(critic(0))
    one = running(served, batch=1)
    futures = [one.submit(requests(), minimum_version=version) for version in (0, 0, 9)]
    assert served.holding.wait(PATIENCE)
    served.let_go.set()
    for future in futures:
        with pytest.raises(RoleFailure, match="value evaluator failed: MemoryError: no room"):
            answer(future)
    with pytest.raises(RoleFailure, match="no room"):
        one.submit(requests())
    assert isinstance(one.failure, MemoryError)
    one.stop()
    assert one.counts.failed == 3


def test_colocated_whole_steps_alternate_with_whole_batches_and_neither_starves(running) -> None:
    model, steps = numbered(0), [0]
    served = Colocated(model, lambda: steps[0])
    one = running(served, max_tokens=9, batch=1)
    ended = threading.Event()
    seen: list[int] = []

    def ask() -> None:
        while not ended.is_set():
            asked = requests()
            found = answer(one.submit(asked))
            said = {
                float(v) for each, r in zip(found, asked, strict=True) for v in each.values[r.trajectory.action_mask]
            }
            assert said == {float(found[0].value_version)}
            seen.append(found[0].value_version)

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask) for _ in range(2)]
        try:
            for step in range(1, 101):
                with served.exclusive():
                    numbered(-5, model)  # half of a step: nobody may see it
                    time.sleep(0.0005)
                    numbered(step, model)
                    steps[0] = step
        finally:
            ended.set()
        for client in clients:
            client.result(timeout=PATIENCE)
    assert one.version == 100 and served.swaps == 100
    # Batches went on between the steps: had the trainer kept its turn, there would be versions 0 and 100 only.
    assert len(set(seen)) > 20
    later = one.submit(requests(), minimum_version=101)
    with served.exclusive():
        steps[0] = 101
    assert answer(later)[0].value_version == 101


def test_a_step_that_fails_gives_its_turn_back(running) -> None:
    served = Colocated(critic(1), lambda: 0)
    one = running(served)
    with pytest.raises(DivergenceError), served.exclusive():
        raise DivergenceError("a loss")
    same(answer(one.submit(requests())), cold(critic(1).state_dict()))


def test_the_two_copies_share_no_weights() -> None:
    model = critic(1)
    served = DoubleBuffered(model, version=0)
    before = copy.deepcopy(model.state_dict())
    served.load(1, lambda spare: spare.load_state_dict(critic(2).state_dict()))
    assert all((model.state_dict()[name] == tensor).all() for name, tensor in before.items())
