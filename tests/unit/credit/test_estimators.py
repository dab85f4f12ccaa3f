"""Each estimator by hand, against literal recursions, and against the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scored import MASK, group, random_group, spread
from small_models import trajectory

from lecritique.config.estimators import (
    AdaptiveLambda,
    Evpo,
    GaeLambda,
    GroupMean,
    LeaveOneOut,
    LengthLambda,
    SoftPenalty,
    Tether,
    Value,
)
from lecritique.credit.estimators import advantages_of, baselines_of, credited, discounting, token_credits


def columns(of, estimator, *, rho: float = 0.0, use_critic: bool = False, target_lambda: float = 1.0):
    """Advantages of each member of one group."""
    credits = token_credits([of], estimator, value_target_lambda=target_lambda)
    return advantages_of(of, credits, estimator, rho=rho, use_critic=use_critic)


def first(column, mask=MASK) -> float:
    """The one number of a broadcast advantage, checked to be broadcast."""
    on = np.array(mask, dtype=bool)
    assert len(set(column[on].tolist())) == 1 and not column[~on].any()
    return float(column[on][0])


def test_fault_19_leave_one_out_against_mean() -> None:
    of = group([1, 0, 0, 1, 0, 1, 0, 0])
    loo = [first(column) for column in columns(of, LeaveOneOut())]
    mean = [first(column) for column in columns(of, GroupMean())]
    assert [round(a, 4) for a in (loo[0], loo[1])] == [0.7143, -0.4286]
    assert (mean[0], mean[1]) == (0.625, -0.375)


def test_fault_20_uneven_groups_by_identity() -> None:
    one, two = group([1, 1, 0], row=0), group([0, 1], row=1)
    assert [first(c) for c in columns(one, GroupMean())] == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert [first(c) for c in columns(two, GroupMean())] == pytest.approx([-0.5, 0.5])


def test_scaling_by_the_sample_std() -> None:
    of = group([1, 1, 0])
    expected = np.array([1 / 3, 1 / 3, -2 / 3]) / (np.std([1, 1, 0], ddof=1) + 1e-6)
    assert [first(c) for c in columns(of, GroupMean(scale="std"))] == pytest.approx(expected.tolist())


def test_value_is_return_minus_value_on_action_tokens() -> None:
    """Fault 1's numbers: A = [.8, .6, .4]."""
    of = group([1.0], [[0.2, 0.4, 0.6]])
    (column,) = columns(of, Value())
    np.testing.assert_allclose(column, spread([0.8, 0.6, 0.4], MASK), atol=1e-15)


def test_fault_4_lambda_runs_over_action_tokens_only() -> None:
    of = group([1.0], [[0.2, 0.4, 0.6]], masks=[(0, 1, 1, 0, 0, 1)])
    for lam, expected in ((0.95, [0.751, 0.58, 0.4]), (0.5, [0.4, 0.4, 0.4]), (0.0, [0.2, 0.2, 0.4])):
        (column,) = columns(of, Value(gae_lambda=lam))
        np.testing.assert_allclose(column, spread(expected, [0, 1, 1, 0, 0, 1]), atol=1e-12)


def test_fault_5_an_episode_that_ends_on_an_environment_message() -> None:
    mask = (0, 1, 1, 0, 0)
    of = group([1.0], [[0.2, 0.4]], masks=[mask])
    (column,) = columns(of, Value(gamma=0.5, gae_lambda=0.5))
    np.testing.assert_allclose(column, spread([0.15, 0.6], mask), atol=1e-15)


def test_tether_by_hand() -> None:
    """R = [1, 0, 1], B = [.5, 1, .5]: A = R - ((1 - rho) B + rho V)."""
    values = [[0.6, 0.8, 0.7], [0.4, 0.2, 0.1], [0.5, 0.9, 0.3]]
    for column, reward, baseline, v in zip(
        columns(group([1, 0, 1], values), Tether(), rho=0.25), [1, 0, 1], [0.5, 1, 0.5], values, strict=True
    ):
        expected = [reward - (0.75 * baseline + 0.25 * each) for each in v]
        np.testing.assert_allclose(column, spread(expected, MASK), atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_tether_at_rho_one_is_the_value_estimator_bit_for_bit_and_at_rho_zero_leave_one_out(seed: int) -> None:
    of = random_group(seed)
    for lam, gamma in ((1.0, 1.0), (0.9, 0.95)):
        value = columns(of, Value(gae_lambda=lam, gamma=gamma))
        tethered = columns(of, Tether(gae_lambda=lam, gamma=gamma), rho=1.0)
        assert [c.tolist() for c in tethered] == [c.tolist() for c in value]
    for one, other in zip(columns(of, Tether(), rho=0.0), columns(of, LeaveOneOut()), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_evpo_is_value_with_the_critic_and_the_group_mean_without() -> None:
    of = random_group(1)
    for use, stand_in in ((True, Value()), (False, GroupMean())):
        for one, other in zip(columns(of, Evpo(), use_critic=use), columns(of, stand_in), strict=True):
            assert one.tolist() == other.tolist()


def test_the_baseline_is_recorded_where_one_was_subtracted() -> None:
    of = group([1, 0, 1], [[0.1] * 3] * 3)

    def baselines(estimator, use_critic: bool = False):
        return baselines_of(of, estimator, use_critic=use_critic)

    assert baselines(LeaveOneOut()) == baselines(Tether()) == [0.5, 1.0, 0.5]
    assert baselines(GroupMean()) == baselines(Evpo()) == pytest.approx([2 / 3] * 3)
    assert baselines(Value()) == baselines(Evpo(), use_critic=True) == [None] * 3


def literal_gae(returns: float, values: np.ndarray, *, gamma: float, lam: float) -> list[float]:
    """The recursion of the method sheet, section 3, over the action tokens of one trajectory."""
    advantages, following, value_after = [], 0.0, 0.0
    for index in reversed(range(len(values))):
        reward = returns if index == len(values) - 1 else 0.0
        following = reward + gamma * value_after - values[index] + gamma * lam * following
        value_after = values[index]
        advantages.insert(0, following)
    return advantages


@pytest.mark.parametrize(("gamma", "lam", "target_lambda"), [(1.0, 1.0, 1.0), (0.9, 0.5, 0.3), (1.0, 0.0, 1.0)])
def test_credit_of_a_batch_equals_the_recursion_on_each_trajectory_alone(gamma, lam, target_lambda) -> None:
    groups = [random_group(seed, row=seed, size=1 + seed) for seed in range(1, 4)]
    found = iter(token_credits(groups, Value(gamma=gamma, gae_lambda=lam), value_target_lambda=target_lambda))
    for of in groups:
        for own, prediction in zip(of.trajectories, of.predictions, strict=True):
            credit, on = next(found), own.action_mask
            v = prediction.values[on]
            expected = literal_gae(own.episode_return, v, gamma=gamma, lam=lam)
            targets = v + literal_gae(own.episode_return, v, gamma=gamma, lam=target_lambda)
            np.testing.assert_allclose(credit.advantages_T, spread(expected, on), atol=1e-12)
            np.testing.assert_allclose(credit.targets_T, spread(targets, on), atol=1e-12)
            assert credit.values_T.tolist() == prediction.values.tolist()
    assert next(found, None) is None


def test_the_batch_that_a_trajectory_is_credited_in_changes_nothing() -> None:
    groups = [random_group(seed, row=seed) for seed in range(3)]
    together = token_credits(groups, Value(gae_lambda=0.9), value_target_lambda=0.7)
    alone = [c for of in groups for c in token_credits([of], Value(gae_lambda=0.9), value_target_lambda=0.7)]
    for one, other in zip(together, alone, strict=True):
        assert one.advantages_T.tolist() == other.advantages_T.tolist()
        assert one.targets_T.tolist() == other.targets_T.tolist()


def test_without_a_critic_targets_are_the_returns_and_nothing_is_credited_from_values() -> None:
    credits = token_credits([group([1.0, 0.25])], LeaveOneOut(), value_target_lambda=1.0)
    assert [c.targets_T.tolist() for c in credits] == [spread([r] * 3, MASK).tolist() for r in (1.0, 0.25)]
    assert token_credits([], LeaveOneOut(), value_target_lambda=1.0) == []


def test_a_trajectory_without_action_tokens_has_zero_credit() -> None:
    of = group([1.0, 0.0], [[], [0.5]], masks=[(0, 0, 0), (0, 1)])
    credit = token_credits([of], Value(), value_target_lambda=1.0)[0]
    assert not credit.advantages_T.any() and not credit.targets_T.any() and len(credit.advantages_T) == 3


def test_gae_lambda_by_retained_share() -> None:
    """Fault 17's lambda."""
    gamma, lam = discounting(Value(gae_lambda=GaeLambda(retained=0.4, length=8192)))
    assert (gamma, lam) == (1.0, pytest.approx(0.9998881543592094, abs=1e-15))
    assert discounting(LeaveOneOut()) == (1.0, 1.0)


def test_the_record_says_what_the_credit_was_made_from() -> None:
    of = group([1.0], [[0.2, 0.4, 0.6]], version=7)
    (credit,) = token_credits([of], Tether(), value_target_lambda=1.0)
    fields = {"group": of, "baseline": 0.5}
    own = of.trajectories[0]
    tether = credited(own, credit, credit.advantages_T, estimator=Tether(), rho=0.3, **fields)
    assert (tether.rho, tether.estimator, tether.value_version, tether.baseline) == (0.3, "tether", 7, 0.5)
    assert tether.values.tolist() == of.predictions[0].values.tolist()
    value = credited(own, credit, credit.advantages_T, estimator=Value(), rho=0.3, **fields)
    assert value.rho is None
    bare = credited(trajectory(MASK), credit, credit.advantages_T, estimator=LeaveOneOut(), rho=0.0, **{
        **fields, "group": group([1.0])
    })  # fmt: skip
    assert bare.values is None and bare.value_version is None


def test_a_lambda_by_length_is_each_trajectorys_own_by_its_action_tokens() -> None:
    """max(0, 1 - 1 / (alpha T)), for advantages and targets apart; observation tokens do not count."""
    groups = [random_group(seed, row=seed) for seed in range(2)]
    estimator = Value(gae_lambda=LengthLambda(alpha=0.4))
    found = token_credits(groups, estimator, value_target_lambda=LengthLambda(alpha=0.8))
    everything = [(t, p) for of in groups for t, p in zip(of.trajectories, of.predictions, strict=True)]
    for credit, (own, prediction) in zip(found, everything, strict=True):
        on, v = own.action_mask, prediction.values[own.action_mask]
        lam, target_lam = (max(0.0, 1 - 1 / (alpha * len(v))) for alpha in (0.4, 0.8))
        expected = literal_gae(own.episode_return, v, gamma=1.0, lam=lam)
        targets = v + literal_gae(own.episode_return, v, gamma=1.0, lam=target_lam)
        np.testing.assert_allclose(credit.advantages_T, spread(expected, on), atol=1e-12)
        np.testing.assert_allclose(credit.targets_T, spread(targets, on), atol=1e-12)
        assert credit.gae_lambda == pytest.approx(lam, abs=1e-15)
    assert len({credit.gae_lambda for credit in found}) > 2


def test_an_adapting_lambda_is_the_one_given_for_the_batch() -> None:
    of, adapting = random_group(3), Value(gae_lambda=AdaptiveLambda(bias_weight=1.0))
    for lam in (1.0, 0.7):
        got = token_credits([of], adapting, value_target_lambda=1.0, adapted_lambda=lam)
        expected = token_credits([of], Value(gae_lambda=lam), value_target_lambda=1.0)
        assert [c.advantages_T.tolist() for c in got] == [c.advantages_T.tolist() for c in expected]
        assert {c.gae_lambda for c in got} == {lam}
    fixed = token_credits([of], Value(gae_lambda=0.5), value_target_lambda=1.0, adapted_lambda=0.7)
    assert {c.gae_lambda for c in fixed} == {0.5}


def test_overlong_responses_are_penalised_where_returns_are_compared_and_nowhere_else() -> None:
    """Limit 4, cache 2: lengths 2, 3, 5 cost 0, 1/2, 1."""
    masks = [(0, 1, 1), (0, 1, 0, 1, 1), (0, 1, 1, 1, 1, 1)]
    of = group([1.0, 1.0, 0.0], masks=masks)
    estimator = GroupMean(overlong=SoftPenalty(limit=4, cache=2))
    shaped = np.array([1.0, 0.5, -1.0])
    for column, mask, expected in zip(columns(of, estimator), masks, shaped - shaped.mean(), strict=True):
        np.testing.assert_allclose(column, spread([expected] * sum(mask), mask), atol=1e-12)
    assert baselines_of(of, estimator, use_critic=False) == pytest.approx([shaped.mean()] * 3)
    scaled = GroupMean(scale="std", overlong=SoftPenalty(limit=4, cache=2))
    expected = (shaped - shaped.mean()) / (shaped.std(ddof=1) + 1e-6)
    assert [first(c, m) for c, m in zip(columns(of, scaled), masks, strict=True)] == pytest.approx(expected.tolist())
    targets = token_credits([of], estimator, value_target_lambda=1.0)
    assert [c.targets_T.max() for c in targets] == [1.0, 1.0, 0.0]
    roomy = GroupMean(overlong=SoftPenalty())
    assert [c.tolist() for c in columns(of, roomy)] == [c.tolist() for c in columns(of, GroupMean())]


def test_tether_by_position_credits_each_token_with_its_own_coefficient() -> None:
    values = [[0.6, 0.8, 0.7], [0.4, 0.2, 0.1], [0.5, 0.9, 0.3]]
    of = group([1, 0, 1], values)
    rhos = [torch.tensor(spread(np.arange(3) * 0.25 + m / 10, MASK) + ~np.array(MASK, dtype=bool)) for m in range(3)]
    for m, (column, reward, baseline) in enumerate(
        zip(columns(of, Tether(), rho=rhos), [1, 0, 1], [0.5, 1, 0.5], strict=True)
    ):
        own = rhos[m].numpy()[np.array(MASK, dtype=bool)]
        expected = reward - ((1 - own) * baseline + own * np.array(values[m]))
        np.testing.assert_allclose(column, spread(expected, MASK), atol=1e-12)
