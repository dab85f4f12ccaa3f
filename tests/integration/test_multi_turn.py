"""Episodes of several turns train: given tokens carry no loss, every turn is the policy's own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lecritique.credit.schedules import score_then_train
from lecritique.rollout.collect import collect
from lecritique.runtime.steps import training_request, valid_groups
from tests.integration.short_runs import small_parts, trained, without_clocks

TURNS = ("task.form=multi_turn", "task.min_empty=4", "task.max_empty=6", "sampling.max_turn_tokens=4")


@pytest.mark.parametrize(
    ("arm", "overrides"),
    [
        ("mean", ()),
        ("value", ("estimator={type='value',gae_lambda=0.5}", "critic.value_target_lambda=0.5")),
        ("pvf", ("critic.context={type='reference',placement='user_suffix'}", "critic.loss.type=mse")),
        ("tether", ("policy.loss.reduction=response_mean",)),
        ("evpo", ()),
    ],
)
def test_arms_train_on_episodes_of_several_turns(arm, overrides):
    rows = trained(small_parts(*TURNS, *overrides, arm=arm))
    for row in rows:
        assert row["turns"] > 1.2 and row["response_tokens"] >= row["turns"]
        assert math.isfinite(row["policy_loss"]) and row["sampler_gap_nats"] < 1e-4
    assert rows[1]["policy_steps"] == 2


def test_the_same_seed_gives_the_same_numbers():
    first, second = (without_clocks(trained(small_parts(*TURNS, arm="tether"))) for _ in range(2))
    assert first == second


@pytest.fixture(scope="module")
def batch():
    """Rollouts of one batch with their credit under the plain critic."""
    parts = small_parts(*TURNS, arm="pvf")
    rollouts = collect(
        [training_request(parts, group_id) for group_id in parts.stream.groups(0, 4)],
        environment=parts.environment, renderer=parts.renderer,
        engine=parts.engine,
    )  # fmt: skip
    outcome = score_then_train(parts.learner, valid_groups(rollouts))
    parts.engine.close()
    members = {member.rollout_id: member for group in rollouts for member in group}
    return [(members[credit.trajectory.rollout_id], credit) for credit in outcome.credit.members]


def test_only_sampled_tokens_are_actions_and_every_turn_has_its_own(batch):
    for rollout, credit in batch:
        trajectory = credit.trajectory
        sampled = np.concatenate([turn.completion.token_ids for turn in rollout.turns])
        assert trajectory.token_ids[trajectory.action_mask].tolist() == sampled.tolist()
        turns = trajectory.turn_index[trajectory.action_mask]
        assert turns.tolist() == [i for i, t in enumerate(rollout.turns) for _ in t.completion.token_ids]
        assert (~trajectory.action_mask).sum() == sum(len(t.given_ids) for t in rollout.turns) + len(
            rollout.closing_ids
        )
    assert any(len(rollout.turns) > 2 for rollout, _ in batch)


def test_given_tokens_have_neither_value_nor_advantage(batch):
    for _, credit in batch:
        off = ~credit.trajectory.action_mask
        for column in (credit.values, credit.advantages, credit.value_targets):
            assert (column[off] == 0).all()


def test_the_return_reaches_every_turn(batch):
    # gamma = lambda = 1: A = R - V on each action token, across the environment's messages.
    for rollout, credit in batch:
        on = credit.trajectory.action_mask
        assert np.allclose(credit.value_targets[on], rollout.reward, atol=1e-12)
        assert np.allclose(credit.advantages[on], rollout.reward - credit.values[on], atol=1e-12)
