"""Collecting groups: order of requests whatever the order of completions, and failures that stay with a member."""

from __future__ import annotations

import numpy as np
import pytest
from fake_episodes import FakeEngine, Scripted, completion, group_request, renderer, user

from lecritique.core.ids import GroupId
from lecritique.core.task import Reply
from lecritique.rollout.collect import collect


@pytest.fixture(scope="module")
def chat():
    return renderer()


def two_turns() -> Scripted:
    return Scripted(Reply(messages=(user("more"),)), lambda text: Reply(reward=float(len(text) % 2)))


def writer(chat):
    """Each request gets ids that are a function of its seed alone."""
    stop, letters = min(chat.stop_ids), chat.encode_text("abcdefgh")

    def write(request):
        rng = np.random.default_rng(request.seed)
        ids = [int(rng.choice(letters)) for _ in range(rng.integers(1, 6))]
        return completion(request, [*ids, stop], "stop")

    return write


def gathered(chat, requests, **engine):
    fake = FakeEngine(writer(chat), **engine)
    return collect(requests, environment=two_turns(), renderer=chat, engine=fake), fake


def as_data(groups):
    return [
        [(r.rollout_id, r.status, r.reward, [t.completion.token_ids.tolist() for t in r.turns]) for r in group]
        for group in groups
    ]


REQUESTS = [
    group_request(row=row, attempt=attempt, size=size) for row, attempt, size in [(7, 0, 3), (2, 1, 1), (2, 0, 4)]
]


def test_results_come_in_the_order_of_requests_whatever_the_order_of_completions(chat) -> None:
    first, _ = gathered(chat, REQUESTS)
    assert [group[0].rollout_id.group for group in first] == [GroupId(7, 0), GroupId(2, 1), GroupId(2, 0)]
    assert [[r.rollout_id.member for r in group] for group in first] == [[0, 1, 2], [0], [0, 1, 2, 3]]
    assert {r.reward for group in first for r in group} == {0.0, 1.0}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        other, _ = gathered(chat, REQUESTS, pick=lambda waiting, rng=rng: int(rng.integers(waiting)))
        assert as_data(other) == as_data(first)


def test_an_engine_failure_of_one_request_fails_its_member_alone(chat) -> None:
    good, _ = gathered(chat, REQUESTS)
    found, fake = gathered(chat, REQUESTS, fails=lambda request: request.request_id == "2.0.1.1")
    lost = found[2][1]
    assert lost.status == "engine" and "lost 2.0.1.1" in str(lost.error) and len(lost.turns) == 1
    expected = as_data(good)
    expected[2][1] = as_data(found)[2][1]
    assert as_data(found) == expected
    assert len(fake.asked) == 16


def test_the_same_group_twice_is_refused(chat) -> None:
    with pytest.raises(ValueError, match="being played already"):
        gathered(chat, [REQUESTS[0], REQUESTS[1], REQUESTS[0]])


def test_fault_23_groups_are_formed_by_identity_though_prompts_are_equal(chat) -> None:
    requests = [group_request(row=row, attempt=attempt, size=2) for row, attempt in [(0, 0), (5, 0), (0, 1)]]
    found, fake = gathered(chat, requests, pick=lambda waiting: waiting - 1)
    assert len({one.token_ids.tobytes() for one in fake.asked[:6]}) == 1
    assert [{r.rollout_id.group for r in group} for group in found] == [{one.group_id} for one in requests]
    assert len({one.seed for one in fake.asked}) == 12


def test_progress_is_told_and_no_request_gives_no_group(chat) -> None:
    ticks = []
    collect(
        REQUESTS, environment=two_turns(), renderer=chat, engine=FakeEngine(writer(chat)),
        on_progress=lambda: ticks.append(1),
    )  # fmt: skip
    assert len(ticks) == 16
    assert gathered(chat, [])[0] == []
