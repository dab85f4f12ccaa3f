"""Tasksets of `verifiers`, played by our driver and scored by their own rewards.

The package pins other versions of what the rest of the tests use, so these run in an environment of their own:
`make test-verifiers`, which `make test-all` includes. There the package must be installed.
"""

import importlib.util
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lecritique.config.load import Recipe, compose
from lecritique.core.errors import ConfigurationError, EnvironmentFailure, VerifierFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import Completion, GroupRequest, Sampling
from lecritique.core.task import Message
from lecritique.rollout.driver import GroupDriver
from lecritique.runtime.build import build, load_base
from lecritique.tasks.junk import JUNK
from lecritique.tasks.registry import load_environment
from tests.integration.short_runs import trained

HERE = importlib.util.find_spec("verifiers") is not None
if not HERE and os.environ.get("LECRITIQUE_REQUIRE_VERIFIERS") == "1":
    raise RuntimeError("LECRITIQUE_REQUIRE_VERIFIERS = 1, but verifiers is not installed")
needs_verifiers = pytest.mark.skipif(not HERE, reason="verifiers is not installed: make test-verifiers")


@pytest.fixture(autouse=True)
def toy_tasksets(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("verifiers_toy")))


def sums(**options):
    return load_environment("verifiers", {"taskset": "toy_sums", **options})


def guessing(**options):
    return load_environment("verifiers", {"taskset": "toy_guessing", "rows": 8, **options})


def user(text):
    return (Message(role="user", content=text),)


def test_without_the_package_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'lecritique\[verifiers\]'"):
        sums()


@needs_verifiers
def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.5.0")
    with pytest.raises(ConfigurationError, match=r"verifiers 0\.4\.0 alone, got 0\.5\.0"):
        sums()


@needs_verifiers
def test_a_taskset_of_one_turn_is_scored_by_its_weighted_rewards():
    environment = sums()
    assert len(environment) == 6 and environment.reward_range == (0.0, 1.0)
    task = environment.task(2)
    assert task.messages == (Message(role="system", content="Add."), Message(role="user", content="1+2="))
    assert task.reference.answer == "3"
    for text, reward in (("3", 1.0), ("4", 0.25), ("four", 0.0), (" 3 ", 1.0), ("", 0.0)):
        assert environment.start(task).reply(text).reward == pytest.approx(reward)
    assert environment.start(task).reply(environment.gold(task, task.messages)).reward == 1.0


@needs_verifiers
def test_the_value_function_prompt_is_what_only_a_critic_sees():
    for environment, hint in ((sums(), "The sum is 2."), (guessing(), "It is 7.")):
        task = environment.task(1)
        assert task.env == hint and all(hint not in message.content for message in task.messages)


@needs_verifiers
def test_a_taskset_of_several_turns_is_played_by_its_own_env():
    environment = guessing()
    task = environment.task(1)
    assert task.messages == user("Game 1: guess.")
    episode = environment.start(task)
    assert [episode.reply(text).messages for text in ("3", "9")] == [user("higher"), user("lower")]
    assert episode.reply("7").reward == 1.0


@needs_verifiers
def test_stops_and_the_turn_limit_end_an_episode():
    environment = guessing(max_turns=3)
    episode = environment.start(environment.task(1))
    assert episode.reply("1").messages == user("higher")
    assert episode.reply("stop").reward == 0.0, "their @stop predicate"
    episode = environment.start(environment.task(1))
    assert [episode.reply("1").reward for _ in range(3)] == [None, None, 0.0]


@needs_verifiers
def test_options_reach_the_taskset():
    assert len(sums(taskset_options={"count": 3})) == 3
    assert len(sums(rows=2)) == 2


@needs_verifiers
def test_errors_of_a_taskset_are_told_from_wrong_answers():
    environment = sums()
    with pytest.raises(VerifierFailure, match="scorer broken"):
        environment.start(environment.task(0)).reply("raise")
    environment = guessing(limit_seconds=0.5)
    with pytest.raises(EnvironmentFailure, match=r"RuntimeError: .*engine broken"):
        environment.start(environment.task(1)).reply("crash")
    begun = time.monotonic()
    with pytest.raises(EnvironmentFailure, match=r"did not answer within 0\.5 s"):
        environment.start(environment.task(1)).reply("hang")
    assert time.monotonic() - begun < 1.5
    assert environment.start(environment.task(1)).reply("7").reward == 1.0, "others go on"


@needs_verifiers
def test_junk_earns_nothing():
    environment = guessing(max_turns=1)
    task = environment.task(1)
    for kind, junk in JUNK.items():
        assert environment.start(task).reply(junk).reward == 0.0, kind


@needs_verifiers
def test_episodes_run_side_by_side_and_may_be_left():
    environment = guessing()
    task = environment.task(1)
    episodes = [environment.start(task) for _ in range(20)]
    rewards = []

    def play(episode, last):
        episode.reply("1")
        rewards.append((last, episode.reply(last).reward))

    threads = [threading.Thread(target=play, args=(e, "7" if n % 2 else "stop")) for n, e in enumerate(episodes[:10])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rewards) == [("7", 1.0)] * 5 + [("stop", 0.0)] * 5
    del episodes, threads
    assert environment.start(task).reply("7").reward == 1.0


@needs_verifiers
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"taskset": "no_such_taskset"}, "'no_such_taskset' could not be loaded"),
        ({"taskset": "toy_sums", "taskset_options": {"cuont": 3}}, "could not be loaded"),
        ({"taskset": "toy_guessing"}, "has no end, expected task.rows"),
        ({"taskset": "toy_container"}, "BoxTask.file_is_there needs a container"),
        ({"taskset": "toy_sums", "environment": "user_sim"}, "played by 2 agents|could not be loaded"),
        ({}, "task.taskset"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(options, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_environment("verifiers", options)
    assert "\n" not in str(caught.value)


class Letters:
    """A renderer that makes each character a token."""

    stop_ids = frozenset({0})

    def render_prompt(self, messages):
        return self.extend(np.zeros(0, dtype=np.int64), messages)

    def extend(self, token_ids, messages):
        text = "".join(f"{message.role}:{message.content}\n" for message in messages)
        return np.concatenate([token_ids, np.array([ord(character) for character in text], dtype=np.int64)])

    def decode(self, token_ids):
        return "".join(chr(i) for i in token_ids if i)


@needs_verifiers
def test_our_driver_plays_a_group_of_several_turns():
    environment = guessing()
    request = GroupRequest(
        group_id=GroupId(row=1, attempt=0),
        task=environment.task(1),
        group_size=2,
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0),
        seed=0,
        max_turn_tokens=8,
        max_total_tokens=1000,
    )
    driver = GroupDriver(request, environment, Letters())
    script = {0: ["3", "7"], 1: ["9", "stop"]}
    waiting = driver.start()
    while waiting:
        asked = waiting.pop(0)
        text = script[asked.sequence_id.member].pop(0)
        ids = np.array([*map(ord, text), 0], dtype=np.int64)
        completion = Completion(
            request_id=asked.request_id,
            token_ids=ids,
            logprobs=np.zeros(len(ids)),
            finish_reason="stop",
            policy_version=np.zeros(len(ids), dtype=np.int64),
        )
        waiting += driver.feed(asked.sequence_id, completion)
    assert driver.finished
    first, second = driver.rollouts
    assert (first.reward, second.reward, first.error, second.error) == (1.0, 0.0, None, None)
    assert [turn.text for turn in first.turns] == ["3", "7"] and len(second.turns) == 2


def trained_config(taskset):
    tree = {
        "run": {"steps": 2},
        "task": {"type": "verifiers", "taskset": taskset, "rows": 6},
        "sampling": {"max_turn_tokens": 8},
        "rollout": {"batch_size": 8, "group_size": 4},
        "estimator": {"type": "value"},
        "critic": {"context": {"type": "env"}, "warmup_updates": 0, "replay": {"refill_size": 8}},
        "runtime": {"loop": "synchronous"},
    }
    return compose(Recipe(name="own", text="", tree=tree, arms={}, default_arm=None), overrides=())


@needs_verifiers
@pytest.mark.parametrize("taskset", ["toy_sums", "toy_guessing"])
def test_two_steps_train_with_the_value_function_prompt_as_the_critics_context(taskset):
    parts = build(load_base(trained_config(taskset)))
    task = parts.environment.task(1)
    inserted = parts.learner.context(task)
    assert task.env in parts.renderer.decode(inserted.token_ids)
    rows = trained(parts)
    assert [row["value_updates"] for row in rows] == [1, 2]
    assert all(row["rollouts_failed"] == 0 for row in rows)
