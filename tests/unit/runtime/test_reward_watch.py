"""Equal rewards from the first steps on are noticed once, and only when all are equal."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lecritique.runtime.reward_watch import RewardWatch


def step(*rewards):
    return [SimpleNamespace(reward=reward) for reward in rewards]


@pytest.mark.parametrize("reward", [0.0, 1.0, -0.5])
def test_the_last_watched_step_tells_it_once(reward):
    watch = RewardWatch(3)
    assert [watch.see(step(reward, None, reward)) for _ in range(6)] == [False, False, True, False, False, False]
    assert watch.warning.startswith(f"every one of the 6 rollouts of the first 3 steps earned {reward:g}: ")


@pytest.mark.parametrize("steps", [[(0, 1), (0, 0), (0, 0)], [(0, 0), (0, 0), (1, 1)], [(1, 1), (0, 0), (0, 0)]])
def test_two_different_rewards_are_enough(steps):
    watch = RewardWatch(3)
    assert not any(watch.see(step(*rewards)) for rewards in [*steps, (0, 0)])


def test_rollouts_without_a_reward_say_nothing():
    watch = RewardWatch(2)
    assert not watch.see(step(None)) and not watch.see(step(None)) and watch.reward is None
