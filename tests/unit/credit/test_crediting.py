"""Credit across batches: Tether's coefficient, EVPO's choice, groups that shrank, warm-up."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scored import MASK, group, random_group, spread

from lecritique.config.estimators import (
    AdaptiveLambda,
    Evpo,
    GaeLambda,
    GroupMean,
    LeaveOneOut,
    LengthLambda,
    Tether,
    Value,
)
from lecritique.core.errors import CheckpointError
from lecritique.credit.crediting import Crediting, metrics_of, value_fit_of
from lecritique.credit.estimators import token_credits
from lecritique.credit.tether import BucketedTetherController, TetherController
from lecritique.numerics.tether import tether_fit


def crediting(estimator, *, batch_size: int = 4, warmup_updates: int = 0, target_lambda: float = 1.0) -> Crediting:
    return Crediting(estimator, value_target_lambda=target_lambda, batch_size=batch_size, warmup_updates=warmup_updates)


def advantages(credit) -> list[list[float]]:
    return [member.advantages.tolist() for member in credit.members]


GROUP_ESTIMATORS = [GroupMean(), LeaveOneOut(), Tether(), Evpo()]


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS, ids=lambda e: e.type)
def test_fault_18_a_group_of_one_is_dropped_and_counted_by_group_estimators(estimator) -> None:
    groups = [random_group(0, row=0), random_group(1, row=1, size=1), random_group(2, row=2)]
    credit = crediting(estimator).credit(groups, warm=True)
    assert credit.groups_dropped == 1
    assert [members[0].trajectory.group_id.row for members in credit.groups] == [0, 2]
    without = crediting(estimator).credit([groups[0], groups[2]], warm=True)
    assert advantages(credit) == advantages(without)
    assert metrics_of(credit, crediting(estimator))["groups_dropped"] == 1.0


def test_fault_18_a_group_of_one_is_kept_for_value() -> None:
    credit = crediting(Value()).credit([group([1.0], [[0.2, 0.4, 0.6]])], warm=True)
    assert credit.groups_dropped == 0
    np.testing.assert_allclose(credit.members[0].advantages, spread([0.8, 0.6, 0.4], MASK), atol=1e-15)


def test_a_cold_value_critic_still_learns_from_groups_of_one_and_the_policy_does_not() -> None:
    """K = 1 with a warm-up: were they dropped, the critic would never see a sample and never be warm."""
    groups = [random_group(0, row=0, size=1), random_group(1, row=1, size=3)]
    credit = crediting(Value()).credit(groups, warm=False)
    assert credit.groups_dropped == 0 and len(credit.members) == 4
    assert {m.trajectory.group_id.row for m in credit.policy_members} == {1}
    assert {m.estimator for m in credit.policy_members} == {"leave_one_out"}
    assert credit.fit.target.count == sum(t.action_tokens for g in groups for t in g.trajectories)
    warm = crediting(Value()).credit(groups, warm=True)
    assert warm.policy_members == warm.members


@pytest.mark.parametrize("estimator", [Value(gae_lambda=0.5), Tether(gamma=0.9), Evpo()], ids=lambda e: e.type)
def test_while_cold_the_policy_is_credited_by_leave_one_out_exactly(estimator) -> None:
    groups = [random_group(seed, row=seed) for seed in range(3)]
    cold = crediting(estimator, target_lambda=0.5).credit(groups, warm=False)
    plain = crediting(LeaveOneOut()).credit(groups, warm=True)
    assert advantages(cold) == advantages(plain)
    assert {m.estimator for m in cold.members} == {"leave_one_out"} and {m.rho for m in cold.members} == {None}
    # Targets and fit are the estimator's own.
    warm = crediting(estimator, target_lambda=0.5).credit(groups, warm=True)
    assert [m.value_targets.tolist() for m in cold.members] == [m.value_targets.tolist() for m in warm.members]
    assert cold.fit == warm.fit


def test_zero_variance_groups_are_credited_by_value_estimators_and_keep_their_targets() -> None:
    of = group([1.0, 1.0], [[0.2] * 3, [0.9] * 3])
    for estimator in (Value(), Tether(), Evpo()):
        credit = crediting(estimator).credit([of], warm=True)
        assert [m.value_targets.tolist() for m in credit.members] == [spread([1.0] * 3, MASK).tolist()] * 2


def test_the_first_batch_of_tether_is_leave_one_out_and_rho_moves_afterwards() -> None:
    """The fit over all tokens of the batch, written out with numpy; rho <- decay rho + (1 - decay) clip(fit)."""
    one = crediting(Tether(decay=0.8), batch_size=8)
    rho = 0.0
    for batch in range(4):
        groups = [random_group(10 * batch + k, row=k) for k in range(2)]
        credit = one.credit(groups, warm=True)
        assert credit.rho == pytest.approx(rho, abs=1e-12) and {m.rho for m in credit.members} == {credit.rho}
        x, y = [], []
        for of in groups:
            returns = [t.episode_return for t in of.trajectories]
            for m, (own, prediction) in enumerate(zip(of.trajectories, of.predictions, strict=True)):
                baseline = (sum(returns) - returns[m]) / (len(returns) - 1)
                v = prediction.values[own.action_mask]
                expected = returns[m] - ((1 - rho) * baseline + rho * v)
                got = next(c for c in credit.members if c.trajectory is own).advantages
                np.testing.assert_allclose(got, spread(expected, own.action_mask), atol=1e-12)
                x += (v - baseline).tolist()
                y += [returns[m] - baseline] * len(v)
        x, y = np.array(x), np.array(y)
        fit = (x @ y) / (x @ x + 1e-6 * max(x @ x, y @ y))
        rho = 0.8 * rho + 0.2 * min(max(fit, 0.0), 1.0)
        assert one.tether.last_fit == pytest.approx(fit, rel=1e-9)
    assert rho > 0


def test_fault_25_values_that_equal_the_baseline_keep_rho_and_count_a_skip() -> None:
    of = group([1.0, 0.0], [[0.0] * 3, [1.0] * 3])
    one = crediting(Tether(), batch_size=2)
    for skips in (1, 2):
        credit = one.credit([of], warm=True)
        assert (one.tether.rho, one.tether.skipped) == (0.0, skips)
    metrics = metrics_of(credit, one)
    assert metrics["rho_skipped"] == 2.0 and math.isnan(metrics["rho_fit"])


def test_fault_24_changing_a_return_reaches_siblings_through_leave_one_out_only() -> None:
    values = [[0.3, 0.5, 0.2], [0.6, 0.1, 0.9], [0.4, 0.4, 0.8]]
    history = [random_group(7, row=9)]
    credits = []
    for changed in (0.0, 1.0):
        one = crediting(Tether(decay=0.5), batch_size=4)
        one.credit(history, warm=True)
        credits.append(one.credit([group([changed, 1.0, 0.0], values)], warm=True))
    assert credits[0].rho == credits[1].rho != 0.0
    rho = credits[0].rho
    for m in (1, 2):
        moved = credits[1].members[m].advantages - credits[0].members[m].advantages
        # The sibling's leave-one-out baseline rose by 1/2.
        np.testing.assert_allclose(moved, spread([-(1 - rho) * 0.5] * 3, MASK), atol=1e-12)
    assert credits[0].members[1].value_targets.tolist() == credits[1].members[1].value_targets.tolist()
    for estimator, moves in ((Value(), False), (LeaveOneOut(), True)):
        pair = [crediting(estimator).credit([group([c, 1.0, 0.0], values)], warm=True) for c in (0.0, 1.0)]
        assert (pair[0].members[1].advantages.tolist() != pair[1].members[1].advantages.tolist()) == moves


def test_a_window_that_closes_inside_a_batch_moves_rho_for_later_groups_only() -> None:
    groups = [random_group(seed, row=seed) for seed in range(3)]
    one = crediting(Tether(decay=0.0), batch_size=4)
    credit = one.credit(groups, warm=True)
    used = [members[0].rho for members in credit.groups]
    assert used[0] == 0.0 and len(set(used)) == 3
    assert all(len({m.rho for m in members}) == 1 for members in credit.groups)
    alone = crediting(Tether(decay=0.0), batch_size=4)
    assert [alone.credit([each], warm=True).rho for each in groups] == used


def test_groups_scored_before_the_warm_up_version_do_not_enter_the_fit() -> None:
    one = crediting(Tether(), batch_size=4, warmup_updates=20)
    early = [random_group(0, version=19), random_group(1, row=1, version=0)]
    one.credit(early, warm=False)
    assert (one.tether.rho, one.tether.pending_rollouts, one.tether.fits) == (0.0, 0, 0)
    late = random_group(2, row=2, version=20)
    one.credit([early[0], late], warm=True)
    assert one.tether.fits == 1
    only = crediting(Tether(), batch_size=4)
    only.credit([late], warm=True)
    assert one.tether.rho == only.tether.rho != 0.0


def test_fault_26_rho_over_batches_with_a_constant_fit_and_after_a_resume() -> None:
    """V - B = (R - B) / .8 on every token makes every fit .8 (ridge 0)."""
    returns = np.array([1.0, 0.0, 0.0, 1.0])
    baselines = (returns.sum() - returns) / 3
    values = baselines + (returns - baselines) / 0.8
    of = group(returns.tolist(), [[v] * 3 for v in values])
    one, seen = crediting(Tether(ridge=0.0)), {}
    for batch in range(1, 51):
        one.credit([of], warm=True)
        seen[batch] = round(one.tether.rho, 3)
    assert [seen[k] for k in (1, 2, 10, 50)] == [0.04, 0.078, 0.321, 0.738]


def test_fault_26_pending_rollouts_survive_a_resume_and_a_changed_batch_size_is_an_error() -> None:
    groups = [random_group(seed, row=seed, size=3) for seed in range(6)]
    straight, first = crediting(Tether()), crediting(Tether())
    expected = [straight.credit([each], warm=True).rho for each in groups]
    got = [first.credit([each], warm=True).rho for each in groups[:3]]
    state = json.loads(json.dumps(first.state()))
    assert state["tether"]["pending_rollouts"] == 1 and state["evpo"] is None
    resumed = crediting(Tether())
    resumed.tether.restore(state["tether"])
    assert got + [resumed.credit([each], warm=True).rho for each in groups[3:]] == expected
    with pytest.raises(CheckpointError, match="batch_size"):
        crediting(Tether(), batch_size=5).tether.restore(state["tether"])


def test_evpo_chooses_by_the_batch_and_lagged_by_the_batch_before() -> None:
    good = group([1.0, 0.0, 1.0], [[0.9] * 3, [0.1] * 3, [0.8] * 3])
    bad = group([1.0, 0.0, 1.0], [[0.1] * 3, [0.9] * 3, [0.2] * 3], row=1)
    flat = group([1.0, 1.0, 1.0], [[0.5] * 3] * 3, row=2)
    series = [good, bad, flat, good, good]
    own, lagged = crediting(Evpo()), crediting(Evpo(lagged=True))
    for estimator, expected in ((own, [1, 0, 0, 1, 1]), (lagged, [0, 1, 0, 0, 1])):
        chosen = [estimator.credit([each], warm=True) for each in series]
        assert [c.evpo_uses_critic for c in chosen] == [bool(e) for e in expected]
        for each, credit in zip(series, chosen, strict=True):
            stand_in = Value() if credit.evpo_uses_critic else GroupMean()
            assert advantages(credit) == advantages(crediting(stand_in).credit([each], warm=True))
    assert metrics_of(chosen[0], lagged)["evpo_uses_critic"] == 0.0
    assert crediting(Value()).credit([good], warm=True).evpo_uses_critic is None


def test_fault_13_explained_variance_is_pooled_over_tokens() -> None:
    groups = [
        group([1.0, 0.0], [[0.8], [0.3]], masks=[(0, 1), (0, 1)]),
        group([1.0, 1.0, 1.0, 0.0], [[0.6], [0.9], [0.5], [0.6]], masks=[(0, 1)] * 4, row=1),
    ]
    credit = crediting(Value()).credit(groups, warm=True)
    assert credit.fit.value() == pytest.approx(0.32875, abs=1e-12)
    metrics = metrics_of(credit, crediting(Value()))
    assert metrics["explained_variance"] == credit.fit.value()
    assert metrics["value_bias"] == pytest.approx(np.mean([-0.2, 0.3, -0.4, -0.1, -0.5, 0.6]))
    assert metrics["value_mse"] == pytest.approx(np.mean(np.square([-0.2, 0.3, -0.4, -0.1, -0.5, 0.6])))


def test_the_fit_ignores_what_stands_off_the_mask_and_is_empty_without_a_critic() -> None:
    of = random_group(3)
    junk = random_group(3)
    for prediction, own in zip(junk.predictions, junk.trajectories, strict=True):
        object.__setattr__(prediction, "values", np.where(own.action_mask, prediction.values, 1e6))
    fits = [value_fit_of([g], token_credits([g], Value(), value_target_lambda=1.0)) for g in (of, junk)]
    assert fits[0] == fits[1] and fits[0].target.count == sum(t.action_tokens for t in of.trajectories)
    bare = crediting(LeaveOneOut()).credit([group([1.0, 0.0])], warm=True)
    assert bare.fit.target.count == 0 and bare.rho is None
    assert "explained_variance" not in metrics_of(bare, crediting(LeaveOneOut()))


def test_no_group_at_all() -> None:
    for estimator in (*GROUP_ESTIMATORS, Value()):
        credit = crediting(estimator).credit([], warm=True)
        assert credit.members == () and credit.groups_dropped == 0
        assert math.isnan(credit.fit.value())


def test_the_controller_gets_the_contract_of_the_estimator() -> None:
    one = crediting(Tether(gamma=0.9, gae_lambda=0.8, ridge=1e-3, decay=0.5, clip=False), batch_size=2)
    other = TetherController(batch_size=2, gamma=0.9, gae_lambda=0.8, ridge=1e-3, decay=0.5, clip=False)
    other.restore(one.tether.state())
    one.credit([group([1.0, 0.0], [[1.0] * 3, [0.5] * 3])], warm=True)
    # x = V - B = [1, -.5], y = Q - B with discounting: the fit is unclipped.
    assert one.tether.rho == pytest.approx(0.5 * one.tether.last_fit) and one.tether.last_fit > 1.0
    assert tether_fit(one.tether.last_sums, ridge=1e-3) == one.tether.last_fit


def long_group(seed: int, *, row: int = 0, lengths=(1500, 1100, 40)):
    """Members of more and of less than 1,024 action tokens, observation tokens in front."""
    rng = np.random.default_rng([seed, row])
    masks = [[0, 0, *[1] * n] for n in lengths]
    returns = [1.0, 0.0, float(rng.random() < 0.5)]
    # The critic is good early and says the opposite late, so that the buckets come to differ.
    values = [
        np.where(np.arange(n) < 1024, 0.3 + 0.4 * r, 1.2 - 1.4 * r) + 0.05 * rng.normal(size=n)
        for n, r in zip(lengths, returns, strict=True)
    ]
    return group(returns, values, row=row, masks=masks)


def test_tether_with_a_horizon_has_a_coefficient_by_position() -> None:
    one = crediting(Tether(horizon=4096, decay=0.5), batch_size=3)
    assert isinstance(one.tether, BucketedTetherController) and len(one.tether.rhos) == 4
    first = one.credit([long_group(0)], warm=True)
    assert first.rho == 0.0 and all(
        not member.token_rho[member.trajectory.action_mask].any() for member in first.members
    )
    rhos = one.tether.rhos
    assert rhos[0] > 0.2 and rhos[1] == 0.0 and one.tether.skipped == (0, 0, 1, 1)  # clipped at 0 late
    of = long_group(1)
    second = one.credit([of], warm=True)
    returns = [t.episode_return for t in of.trajectories]
    for m, member in enumerate(second.members):
        on = member.trajectory.action_mask
        rho = np.where(np.arange(on.sum()) < 1024, rhos[0], rhos[1])
        baseline = (sum(returns) - returns[m]) / 2
        expected = returns[m] - ((1 - rho) * baseline + rho * of.predictions[m].values[on])
        np.testing.assert_allclose(member.advantages[on], expected, atol=1e-12)
        np.testing.assert_allclose(member.token_rho, np.where(on, spread(rho, on), 1.0), atol=1e-15)
        assert member.rho == pytest.approx(rho.mean())
    tokens = np.array([m.trajectory.action_tokens for m in second.members])
    assert second.rho == pytest.approx(float(tokens @ [m.rho for m in second.members]) / tokens.sum())
    metrics = metrics_of(second, one)
    fits = [fit for fit in one.tether.last_fits if fit is not None]
    assert len(fits) == 2 and metrics["rho_fit"] == pytest.approx(np.mean(fits))
    assert metrics["rho"] == second.rho and metrics["rho_skipped"] == 4.0


def test_one_bucket_in_use_is_plain_tether() -> None:
    """Responses that end in the first bucket are credited as without a horizon."""
    plain, bucketed = crediting(Tether()), crediting(Tether(horizon=2048))
    for seed in range(4):
        of = [random_group(seed, row=seed)]
        expected, got = plain.credit(of, warm=True), bucketed.credit(of, warm=True)
        np.testing.assert_allclose(np.concatenate(advantages(got)), np.concatenate(advantages(expected)), atol=1e-12)
    assert bucketed.tether.rhos[0] == pytest.approx(plain.tether.rho) != 0.0
    assert {m.token_rho for m in expected.members} == {None}
    cold = crediting(Tether(horizon=2048)).credit(of, warm=False)
    assert {m.token_rho for m in cold.members} == {m.rho for m in cold.members} == {None}


def test_the_state_of_buckets_is_restored_and_another_horizon_is_an_error() -> None:
    one, other = crediting(Tether(horizon=4096), batch_size=3), crediting(Tether(horizon=4096), batch_size=3)
    one.credit([long_group(0)], warm=True)
    state = json.loads(json.dumps(one.state()))
    other.tether.restore(state["tether"])
    assert other.tether.rhos == one.tether.rhos
    with pytest.raises(CheckpointError, match="buckets"):
        crediting(Tether(horizon=8192), batch_size=3).tether.restore(state["tether"])


@pytest.mark.parametrize("horizon", [0, 2048])
def test_lambdas_of_other_kinds_are_other_contracts(horizon: int) -> None:
    kinds = [1.0, 0.05, LengthLambda(alpha=0.05), LengthLambda(alpha=0.1), AdaptiveLambda(bias_weight=1.0)]
    states = [crediting(Tether(gae_lambda=kind, horizon=horizon)).state()["tether"] for kind in kinds]
    for a, kind in enumerate(kinds):
        for b, state in enumerate(states):
            own = crediting(Tether(gae_lambda=kind, horizon=horizon)).tether
            if a == b:
                own.restore(state)
            else:
                with pytest.raises(CheckpointError, match="gae_lambda"):
                    own.restore(state)


def test_the_lambda_of_the_batch_is_recorded_where_there_is_a_critic() -> None:
    groups = [random_group(seed, row=seed) for seed in range(2)]

    def recorded(estimator):
        one = crediting(estimator)
        return metrics_of(one.credit(groups, warm=True), one).get("gae_lambda")

    assert recorded(Value()) == recorded(Tether()) == recorded(Evpo()) == 1.0
    assert recorded(Value(gae_lambda=0.9)) == pytest.approx(0.9, abs=1e-15)
    assert recorded(Value(gae_lambda=GaeLambda(retained=0.5, length=2))) == pytest.approx(0.5**0.5)
    lengths = [t.action_tokens for of in groups for t in of.trajectories]
    assert recorded(Value(gae_lambda=LengthLambda(alpha=0.5))) == pytest.approx(
        np.mean([max(0.0, 1 - 2 / n) for n in lengths])
    )
    assert recorded(GroupMean()) is None and recorded(LeaveOneOut()) is None


@pytest.mark.parametrize("estimator", [Value, Tether, Evpo])
def test_an_adapting_lambda_starts_at_one_and_never_depends_on_its_own_batch(estimator) -> None:
    kind = AdaptiveLambda(bias_weight=1.0, decay=0.5)
    one = crediting(estimator(gae_lambda=kind))
    first = one.credit([random_group(0)], warm=True)
    assert first.gae_lambda == 1.0
    plain = crediting(estimator()).credit([random_group(0)], warm=True)
    assert advantages(first) == advantages(plain)
    after = one.adapting.gae_lambda
    assert 0.0 < after < 1.0
    values = [[0.3, 0.5, 0.2], [0.6, 0.1, 0.9], [0.4, 0.4, 0.8]]
    for changed in (0.0, 1.0):
        other = crediting(estimator(gae_lambda=kind))
        other.credit([random_group(0)], warm=True)
        assert other.credit([group([changed, 1.0, 0.0], values)], warm=True).gae_lambda == pytest.approx(
            after, rel=1e-14
        )
        assert other.adapting.gae_lambda != after


def test_a_cold_critic_says_nothing_of_its_accuracy() -> None:
    one = crediting(Value(gae_lambda=AdaptiveLambda(bias_weight=1.0)), warmup_updates=5)
    one.credit([random_group(0, version=4)], warm=False)
    assert one.adapting.gae_lambda == 1.0
    one.credit([random_group(0, version=4), random_group(1, row=1, version=5)], warm=True)
    only = crediting(Value(gae_lambda=AdaptiveLambda(bias_weight=1.0)))
    only.credit([random_group(1, row=1)], warm=True)
    assert one.adapting.gae_lambda == only.adapting.gae_lambda < 1.0
    assert one.state()["gae_lambda"]["seen"] == only.state()["gae_lambda"]["seen"]
    assert crediting(Value()).state()["gae_lambda"] is None


STATEFUL = [Tether(), Tether(horizon=4096), Evpo(lagged=True), Value(gae_lambda=AdaptiveLambda(bias_weight=1.0))]


@pytest.mark.parametrize("estimator", STATEFUL, ids=lambda e: f"{e.type} {getattr(e, 'horizon', '')}")
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_credit_after_a_resume_is_that_of_the_uninterrupted_run(estimator, stop: int) -> None:
    batches = [[random_group(10 * seed + k, row=10 * seed + k, size=3) for k in range(2)] for seed in range(7)]
    straight, first, resumed = (crediting(estimator, batch_size=4) for _ in range(3))
    expected = [advantages(straight.credit(batch, warm=True)) for batch in batches]
    got = [advantages(first.credit(batch, warm=True)) for batch in batches[:stop]]
    resumed.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    got += [advantages(resumed.credit(batch, warm=True)) for batch in batches[stop:]]
    assert got == expected and resumed.state() == straight.state()


def test_the_state_of_another_estimator_is_refused() -> None:
    with pytest.raises(CheckpointError, match="this run has state of 'tether' and the checkpoint has none"):
        crediting(Tether()).restore(crediting(Value()).state())
    with pytest.raises(CheckpointError, match="the checkpoint has state of 'evpo' and this run has none"):
        crediting(Value()).restore(crediting(Evpo()).state())
    with pytest.raises(CheckpointError, match="buckets"):
        crediting(Tether()).restore(crediting(Tether(horizon=4096)).state())
    with pytest.raises(CheckpointError, match="batch_size = 4, this run has 5"):
        crediting(Tether(), batch_size=5).restore(crediting(Tether()).state())
