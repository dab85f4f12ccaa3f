"""The group driver: ids only grow, limits, and failures that become data."""

from __future__ import annotations

import numpy as np
import pytest
from fake_episodes import Scripted, completion, group_request, renderer, user

from lecritique.core.errors import BudgetExceeded, EngineFailure, EnvironmentFailure, VerifierFailure
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import Rollout
from lecritique.core.task import Reply
from lecritique.rollout.driver import GroupDriver
from lecritique.rollout.trajectories import trajectory_of

ME = RolloutId(GroupId(0, 0), 0)
RIGHT = Reply(reward=1.0)


@pytest.fixture(scope="module")
def chat():
    return renderer()


@pytest.fixture(scope="module")
def stop(chat) -> int:
    return min(chat.stop_ids)


def played(environment: Scripted, chat, turns, **limits) -> tuple[Rollout, list]:
    """One member whose turns are (ids, finish reason); the rollout and the requests that it made."""
    driver = GroupDriver(group_request(**limits), environment, chat)
    asked = driver.start()
    for ids, finish in turns:
        assert not driver.finished
        asked += driver.feed(ME, completion(asked[-1], ids, finish))
    assert driver.finished
    return driver.rollouts[0], asked


def test_single_turn(chat, stop: int) -> None:
    environment = Scripted(RIGHT)
    ids = [*chat.encode_text("4"), stop]
    rollout, (asked,) = played(environment, chat, [(ids, "stop")])
    assert environment.heard == ["4"]
    assert (rollout.reward, rollout.status, rollout.truncated, len(rollout.turns)) == (1.0, "ok", False, 1)
    assert asked.token_ids.tolist() == chat.render_prompt((user("2+2?"),)).tolist()
    assert asked.stop_ids == chat.stop_ids and asked.max_new_tokens == 10
    assert trajectory_of(rollout).token_ids.tolist() == [*asked.token_ids, *ids]


def test_multi_turn_ids_only_extend_and_sampled_ids_stay_byte_for_byte(chat, stop: int) -> None:
    environment = Scripted(Reply(messages=(user("more"),)), Reply(messages=(user("and?"), user("so?"))), RIGHT)
    # Ids that no encoding of their text would give back are kept as they are.
    odd = [*chat.encode_text("a")] * 2 + [stop]
    turns = [(odd, "stop"), ([stop], "stop"), ([*chat.encode_text("z"), stop], "stop")]
    rollout, asked = played(environment, chat, turns)
    assert len(asked) == 3 and rollout.reward == 1.0
    for earlier, later, (ids, _) in zip(asked, asked[1:], turns, strict=False):
        assert later.token_ids[: len(earlier.token_ids)].tolist() == earlier.token_ids.tolist()
        assert later.token_ids[len(earlier.token_ids) :][: len(ids)].tolist() == ids
    assert asked[1].token_ids.tolist() == chat.extend([*asked[0].token_ids, *odd], (user("more"),)).tolist()
    assert len({one.request_id for one in asked}) == len({one.seed for one in asked}) == 3
    assert {one.sequence_id for one in asked} == {ME}
    found = trajectory_of(rollout)
    assert found.token_ids[found.action_mask].tolist() == [token for ids, _ in turns for token in ids]
    assert rollout.turns[1].messages == (user("more"),)


def test_fault_5_an_episode_that_ends_on_an_environment_message_keeps_its_reward(chat, stop: int) -> None:
    environment = Scripted(Reply(messages=(user("well done"),), reward=1.0))
    rollout, _ = played(environment, chat, [([5, stop], "stop")])
    found = trajectory_of(rollout)
    assert found.episode_return == 1.0
    assert len(rollout.closing_ids) > 0 and not found.action_mask[-len(rollout.closing_ids) :].any()
    assert np.flatnonzero(found.action_mask).tolist() == [len(found) - len(rollout.closing_ids) - k for k in (2, 1)]


def test_fault_6_a_cut_turn_gets_no_further_turn_and_the_finish_reason_decides(chat, stop: int) -> None:
    going_on = Reply(messages=(user("more"),))
    cut, asked = played(Scripted(going_on), chat, [([5] * 10, "length")])
    assert len(asked) == 1 and cut.truncated and cut.status == "truncated"
    assert cut.reward == -0.5 and len(cut.closing_ids) == 0
    whole, asked = played(Scripted(going_on, RIGHT), chat, [([5] * 9 + [stop], "stop"), ([stop], "stop")])
    assert len(asked) == 2 and not whole.truncated and whole.reward == 1.0


def test_a_cut_turn_that_is_judged_keeps_its_judgement(chat) -> None:
    cut, _ = played(Scripted(Reply(reward=0.25, messages=(user("bye"),))), chat, [([5] * 10, "length")])
    assert cut.truncated and cut.reward == 0.25 and len(cut.closing_ids) == 0


def test_the_last_turn_gets_the_room_that_is_left_and_none_ends_the_episode(chat, stop: int) -> None:
    going_on = Reply(messages=(user("more"),))
    prompt = len(chat.render_prompt((user("2+2?"),)))
    said = len(chat.extend([stop], (user("more"),))) - 1
    _, asked = played(
        Scripted(going_on, RIGHT), chat, [([5, stop], "stop"), ([stop], "stop")], total=prompt + 2 + said + 3
    )
    assert asked[1].max_new_tokens == 3
    full, asked = played(Scripted(going_on), chat, [([5, stop], "stop")], total=prompt + 2 + said)
    assert len(asked) == 1 and full.truncated and full.reward == -0.5 and full.error is None


def test_a_prompt_over_the_limit_is_budget_exceeded(chat) -> None:
    prompt = len(chat.render_prompt((user("2+2?"),)))
    rollout, asked = played(Scripted(), chat, [], total=prompt)
    assert asked == [] and isinstance(rollout.error, BudgetExceeded)
    assert f"row-0 has {prompt} tokens, the limit of an episode is {prompt}" in str(rollout.error)
    assert rollout.reward is None and rollout.status == "budget"


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (ZeroDivisionError("boom"), EnvironmentFailure, "scripted: ZeroDivisionError: boom"),
        (VerifierFailure("no verdict"), VerifierFailure, "no verdict"),
        (EnvironmentFailure("own words"), EnvironmentFailure, "own words"),
    ],
)
def test_what_start_and_reply_raise_becomes_data(chat, stop: int, raised, kind, text: str) -> None:
    at_start, asked = played(Scripted(start_error=raised), chat, [])
    at_reply, _ = played(Scripted(raised), chat, [([5, stop], "stop")])
    assert asked == []
    for rollout in (at_start, at_reply):
        assert type(rollout.error) is kind and str(rollout.error) == text
        assert rollout.reward is None
    assert len(at_reply.turns) == 1


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1.5, -0.6, "1.0", [1.0]])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_reward_that_is_none_is_a_verifier_failure_and_never_zero(chat, stop: int, reward, finish: str) -> None:
    rollout, _ = played(Scripted(Reply(reward=reward)), chat, [([5, stop], finish)])
    assert isinstance(rollout.error, VerifierFailure) and rollout.reward is None


def test_rewards_at_the_ends_of_the_range_and_numpy_numbers_are_fine(chat, stop: int) -> None:
    for reward in (-0.5, 1.0, np.float32(0.5), np.float64(1.0), 1, True):
        rollout, _ = played(Scripted(Reply(reward=reward)), chat, [([5, stop], "stop")])
        assert rollout.error is None and type(rollout.reward) is float and rollout.reward == float(reward)


def test_an_answer_that_is_no_reply_is_an_environment_failure(chat, stop: int) -> None:
    rollout, _ = played(Scripted(lambda text: None), chat, [([5, stop], "stop")])
    assert isinstance(rollout.error, EnvironmentFailure) and "NoneType" in str(rollout.error)


def test_a_cancelled_request_is_an_engine_failure_and_the_environment_hears_nothing(chat) -> None:
    environment = Scripted(RIGHT)
    rollout, _ = played(environment, chat, [([5], "cancelled")])
    assert isinstance(rollout.error, EngineFailure) and environment.heard == []


def test_members_have_their_own_seeds_and_fail_alone(chat, stop: int) -> None:
    driver = GroupDriver(group_request(size=3), Scripted(RIGHT), chat)
    asked = driver.start()
    assert len({one.seed for one in asked}) == 3
    driver.fail(asked[1].sequence_id, EngineFailure("gone"))
    assert not driver.finished
    for one in (asked[2], asked[0]):
        assert driver.feed(one.sequence_id, completion(one, [5, stop], "stop")) == []
    assert driver.finished
    assert [rollout.status for rollout in driver.rollouts] == ["ok", "engine", "ok"]
    assert [rollout.rollout_id.member for rollout in driver.rollouts] == [0, 1, 2]
    # What comes late for an ended member changes nothing.
    assert driver.feed(asked[1].sequence_id, completion(asked[1], [5, stop], "stop")) == []
    assert driver.rollouts[1].status == "engine"


def test_seeds_depend_on_root_row_attempt_member_and_turn_only(chat) -> None:
    def seeds(**changed) -> list[int]:
        return [one.seed for one in GroupDriver(group_request(size=2, **changed), Scripted(), chat).start()]

    assert seeds() == seeds()
    every = [seeds(), seeds(row=1), seeds(attempt=1), seeds(seed=1)]
    assert len({seed for pair in every for seed in pair}) == 8
