"""Scored, then admitted, then trained on; versions that only grow; a queue that is bounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_models import rollout_id, small_policy, trajectory

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Bce
from lecritique.core.errors import CheckpointError
from lecritique.core.trajectory import ValueSample
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.critic.replay import ReplayBuffer
from lecritique.critic.system import ValueSystem
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore


def system(
    *, updates: float = 1, batch: int = 2, capacity: int = 4, refill: int | None = None, uses: int = 2
) -> ValueSystem:
    store = MemoryWeightStore()
    models = [ValueModel.from_policy(small_policy(), Bce(), seed=3) for _ in range(2)]
    return ValueSystem(
        evaluator=ValueEvaluator(models[0], store, max_tokens=1000, context_length=100),
        trainer=ValueTrainer(models[1], OptimizerConfig(learning_rate=1e-2), store, max_tokens=1000),
        replay=ReplayBuffer(batch_size=batch, capacity=capacity, refill_size=refill, max_uses=uses),
        updates_per_step=updates,
    )


def scored(one: ValueSystem, members: range) -> list[ValueSample]:
    """New rollouts with the version that scored them."""
    trajectories = [trajectory([0, 1, 1], member=m) for m in members]
    predictions = one.score(trajectories, [None] * len(trajectories))
    return [
        ValueSample(
            rollout_id=t.rollout_id, trajectories=(t,), contexts=(None,), value_targets=(np.ones(3),),
            value_version=p.value_version,
        )
        for t, p in zip(trajectories, predictions, strict=True)
    ]  # fmt: skip


def test_the_first_version_is_served_at_once_and_is_the_trainers() -> None:
    one = system()
    assert (one.evaluator.version, one.trainer.updates) == (0, 0)
    state = one.evaluator._model.state_dict()
    assert all((state[name] == tensor).all() for name, tensor in one.trainer.model.state_dict().items())


def test_nothing_is_trained_on_before_replay_is_ready_and_versions_grow_by_one_after() -> None:
    one = system()
    seen = []
    for step in range(5):
        metrics = one.learn(scored(one, range(2 * step, 2 * step + 2)))
        seen.append((metrics["replay_size"], metrics["value_updates"], one.evaluator.version))
        assert math.isnan(metrics["value_loss"]) == (step == 0)
    assert [updates for _, updates, _ in seen] == [0, 1, 2, 3, 4]
    assert all(updates == version for _, updates, version in seen)


def test_every_rollout_is_trained_on_by_a_version_no_older_than_the_one_that_scored_it() -> None:
    one = system()
    trained: list[tuple[int, ValueSample]] = []
    inner = one.trainer.update

    def watched(batch):
        trained.extend((one.trainer.updates, sample) for sample in batch.samples)
        return inner(batch)

    one.trainer.update = watched
    scored_at = {}
    for step in range(6):
        samples = scored(one, range(2 * step, 2 * step + 2))
        scored_at |= {sample.rollout_id: sample.value_version for sample in samples}
        assert not {sample.rollout_id for sample in samples} & {sample.rollout_id for _, sample in trained}
        one.learn(samples)
    assert trained and all(version >= scored_at[sample.rollout_id] for version, sample in trained)
    uses = [[sample.rollout_id for _, sample in trained].count(rollout_id(m)) for m in range(12)]
    assert max(uses) == 2


def test_the_published_critic_is_the_one_that_scores() -> None:
    one = system()
    own = [trajectory([0, 1, 1], member=9)]
    before = one.score(own, [None])[0].values.tolist()
    one.learn(scored(one, range(4)))
    after = one.score(own, [None])[0]
    assert after.value_version == 1 and after.values.tolist() != before


def test_several_updates_a_step_admit_turn_by_turn() -> None:
    one = system(updates=2, batch=2, capacity=2, uses=1)
    metrics = one.learn(scored(one, range(4)))
    assert (metrics["value_updates"], metrics["replay_size"], metrics["replay_evicted"]) == (2, 0, 0)


def test_the_loss_is_the_mean_over_the_updates_of_the_step() -> None:
    one, losses = system(updates=2, batch=2, capacity=4, uses=2), []
    inner = one.trainer.update
    one.trainer.update = lambda batch: losses.append(inner(batch)) or losses[-1]
    metrics = one.learn(scored(one, range(4)))
    assert len(losses) == 2
    assert metrics["value_loss"] == pytest.approx((losses[0]["value_loss"] + losses[1]["value_loss"]) / 2)
    assert metrics["value_grad_norm"] == losses[1]["value_grad_norm"]


def test_fault_40_a_critic_that_cannot_keep_up_drops_the_oldest_and_counts_them() -> None:
    one = system(updates=1, batch=2, capacity=2, uses=1)
    for step in range(5):
        metrics = one.learn(scored(one, range(8 * step, 8 * step + 8)))
    assert len(one._waiting) <= 2
    # 40 came: 10 were trained on, none is held, the rest was dropped or still waits.
    assert metrics["value_updates"] == 5
    assert metrics["replay_evicted"] + len(one._waiting) == 30
    assert min(sample.rollout_id.member for sample in one._waiting) >= 36


def test_without_updates_replay_fills_and_no_version_follows() -> None:
    one = system(updates=0)
    for step in range(4):
        metrics = one.learn(scored(one, range(2 * step, 2 * step + 2)))
    assert (metrics["value_updates"], one.evaluator.version) == (0, 0)
    assert metrics["replay_size"] == 4 and math.isnan(metrics["value_loss"])


def test_half_an_update_a_step_is_one_every_second_step() -> None:
    one = system(updates=0.5, capacity=2, uses=1)
    seen = [one.learn(scored(one, range(2 * step, 2 * step + 2)))["value_updates"] for step in range(6)]
    assert seen == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("updates", [0.5, 1, 2])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_resumed_after_any_step_it_equals_the_uninterrupted_one_to_the_bit(updates: float, stop: int) -> None:
    """More rollouts come than are trained on: the queue, what was dropped and the rhythm of updates matter."""

    def step(one: ValueSystem, number: int) -> dict[str, float]:
        return one.learn(scored(one, range(3 * number, 3 * number + 3)))

    settings = {"updates": updates, "batch": 2, "capacity": 3, "uses": 2}
    straight, first, resumed = (system(**settings) for _ in range(3))
    for number in range(stop):
        step(straight, number), step(first, number)
    resumed.restore(first.state())
    assert resumed.evaluator.version == resumed.trainer.updates == first.trainer.updates
    for number in range(stop, 7):
        expected, got = step(straight, number), step(resumed, number)
        assert str(got) == str(expected)  # NaN included
        assert resumed.evaluator.version == straight.evaluator.version
    for a, b in zip(straight.trainer.model.parameters(), resumed.trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)
    own = [trajectory([0, 1, 1], member=99)]
    assert straight.score(own, [None])[0].values.tolist() == resumed.score(own, [None])[0].values.tolist()
    assert straight.trainer.updates > 1 and straight._dropped == resumed._dropped
    assert updates == 2 or resumed._dropped > 0


def test_the_state_of_another_critic_is_refused() -> None:
    state = system().state()
    del state["trainer"]["weights"]["head.bias"]
    with pytest.raises(CheckpointError, match=r"saved weights of the critic have nothing for 'head\.bias'"):
        system().restore(state)
