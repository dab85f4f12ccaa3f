"""Properties of the numerics on generated input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lecritique.core.metrics import ValueFit
from lecritique.numerics.alignment import align_values, align_values_padded, insert_context, project_values
from lecritique.numerics.baselines import group_advantages, group_baselines
from lecritique.numerics.explained_variance import value_fit
from lecritique.numerics.gae import gae, gae_segments, terminal_rewards
from lecritique.numerics.policy_losses import dppo_loss, token_mean
from lecritique.numerics.tether import TetherSums, tether_advantages, tether_ema, tether_fit, tether_sums
from lecritique.numerics.value_losses import categorical_loss, categorical_value, two_hot

F64 = torch.float64
unit = st.floats(0.0, 1.0)
number = st.floats(-10.0, 10.0)
fast = settings(max_examples=60, deadline=None)


def column(size: int, elements: st.SearchStrategy[float] = number) -> st.SearchStrategy[torch.Tensor]:
    return st.lists(elements, min_size=size, max_size=size).map(lambda xs: torch.tensor(xs, dtype=F64))


@st.composite
def episodes(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, values and mask of one episode."""
    size = draw(st.integers(1, 12))
    mask = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    return draw(column(size)), draw(column(size)), mask


@fast
@given(episodes(), unit, unit, unit, st.integers(0, 12))
def test_gae_ignores_where_observation_tokens_stand(
    episode: tuple[torch.Tensor, ...], gamma: float, lam: float, target_lam: float, place: int
) -> None:
    rewards, values, mask = episode
    factors = {"gamma": gamma, "gae_lambda": lam, "value_target_lambda": target_lam}
    place = min(place, len(mask))
    junk = torch.tensor([math.nan, 1e6], dtype=F64)
    wider = [torch.cat([c[:place], junk.to(c.dtype), c[place:]]) for c in (rewards, values)]
    wider_mask = torch.cat([mask[:place], torch.tensor([False, False]), mask[place:]])
    plain, found = gae(rewards, values, mask, **factors), gae(*wider, wider_mask, **factors)
    for before, after in zip(plain, found, strict=True):
        assert torch.equal(before[mask], after[wider_mask])
        assert after[~wider_mask].eq(0).all()


@fast
@given(episodes(), unit, unit)
def test_equal_lambdas_make_the_target_value_plus_advantage(
    episode: tuple[torch.Tensor, ...], gamma: float, lam: float
) -> None:
    rewards, values, mask = episode
    advantages, targets = gae(rewards, values, mask, gamma=gamma, gae_lambda=lam, value_target_lambda=lam)
    assert torch.allclose(targets[mask], (values + advantages)[mask], atol=1e-10)


@fast
@given(episodes(), unit, unit, number)
def test_gae_is_linear_in_rewards_and_values(
    episode: tuple[torch.Tensor, ...], gamma: float, lam: float, factor: float
) -> None:
    rewards, values, mask = episode
    factors = {"gamma": gamma, "gae_lambda": lam, "value_target_lambda": lam}
    once, _ = gae(rewards, values, mask, **factors)
    scaled, _ = gae(factor * rewards, factor * values, mask, **factors)
    assert torch.allclose(scaled, factor * once, atol=1e-9)


@fast
@given(episodes(), unit, st.integers(0, 12))
def test_cutting_an_episode_into_segments_changes_no_bit(
    episode: tuple[torch.Tensor, ...], lam: float, cut: int
) -> None:
    factors = {"gamma": 0.9, "gae_lambda": lam, "value_target_lambda": 1.0}
    whole, _ = gae(*episode, **factors)
    pieces = [[c[:cut], c[cut:]] for c in episode]
    found, _ = gae_segments(*pieces, **factors)
    assert torch.equal(torch.cat(found), whole)


@fast
@given(st.lists(number, min_size=2, max_size=9), number)
def test_group_advantages_ignore_a_shift_of_all_returns_and_invalid_members(returns: list[float], shift: float) -> None:
    group = torch.tensor(returns, dtype=F64)
    for kind in ("mean", "leave_one_out"):
        _, plain = group_advantages(group, kind)
        _, shifted = group_advantages(group + shift, kind)
        _, longer = group_advantages(torch.cat([torch.tensor([math.nan]), group]), kind)
        assert torch.allclose(plain, shifted, atol=1e-12)
        assert torch.allclose(longer[1:], plain, atol=1e-13)
        assert plain.sum().item() == pytest.approx(0.0, abs=1e-10)


@fast
@given(st.lists(number, min_size=2, max_size=9), st.data())
def test_the_own_return_never_reaches_its_leave_one_out_baseline(returns: list[float], data: st.DataObject) -> None:
    group = torch.tensor(returns, dtype=F64)
    i = data.draw(st.integers(0, len(returns) - 1))
    changed = group.clone()
    changed[i] = data.draw(st.floats(-1e12, 1e12))
    assert group_baselines(group, "leave_one_out")[i] == group_baselines(changed, "leave_one_out")[i]


@fast
@given(column(8), column(8), st.integers(0, 8), unit)
def test_tether_sums_split_anywhere_and_their_fit_is_the_best_coefficient(
    x: torch.Tensor, y: torch.Tensor, cut: int, other: float
) -> None:
    whole = tether_sums(x, y)
    merged = tether_sums(x[cut:], y[cut:]).merge(tether_sums(x[:cut], y[:cut]))
    assert merged.weight == whole.weight
    assert merged.sxy == pytest.approx(whole.sxy, abs=1e-10)
    fit = tether_fit(whole, ridge=0.0)
    if fit is not None:
        assert whole.mse(fit) <= whole.mse(other) + 1e-9
    assert 0.0 <= tether_ema(0.5, fit, decay=other * 0.99) <= 1.0


@fast
@given(column(5), column(5), number, unit)
def test_tether_lies_between_value_and_leave_one_out(
    advantages: torch.Tensor, values: torch.Tensor, baseline: float, rho: float
) -> None:
    ends = [tether_advantages(advantages, values, baseline, end) for end in (0.0, 1.0)]
    found = tether_advantages(advantages, values, baseline, rho)
    assert torch.allclose(found, (1 - rho) * ends[0] + rho * ends[1], atol=1e-12)
    assert torch.equal(ends[1], advantages)


@fast
@given(st.lists(st.tuples(number, number), min_size=2, max_size=12), st.integers(0, 12))
def test_value_fits_merge_to_the_whole(pairs: list[tuple[float, float]], cut: int) -> None:
    values, targets = torch.tensor(pairs, dtype=F64).T
    whole = value_fit(values, targets)
    merged = ValueFit().merge(value_fit(values[:cut], targets[:cut])).merge(value_fit(values[cut:], targets[cut:]))
    assert merged.bias == pytest.approx(whole.bias, abs=1e-10)
    assert merged.mse == pytest.approx(whole.mse, abs=1e-9)
    assert merged.target.variance == pytest.approx(whole.target.variance, abs=1e-9)


@fast
@given(st.integers(2, 40), st.floats(-5, 5), st.floats(0.01, 20), unit, st.data())
def test_two_hot_keeps_the_expectation_and_the_loss_bound(
    atoms: int, low: float, width: float, place: float, data: st.DataObject
) -> None:
    support = {"low": low, "high": low + width}
    target = torch.tensor([low + place * width], dtype=F64)
    weights = two_hot(target, atoms=atoms, **support)
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert (weights @ torch.linspace(low, low + width, atoms, dtype=F64)).item() == pytest.approx(
        target.item(), abs=1e-9
    )
    logits = data.draw(column(atoms))[None]
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum().item()
    assert categorical_loss(logits, target, **support).item() >= entropy - 1e-9
    assert low - 1e-9 <= categorical_value(logits, **support).item() <= low + width + 1e-9


@fast
@given(column(6, st.floats(-8, 0)), column(6, st.floats(-8, 0)), column(6), st.integers(1, 63), st.integers(0, 6))
def test_policy_loss_ignores_masked_content_order_and_split(
    lp: torch.Tensor, lq: torch.Tensor, advantages: torch.Tensor, bits: int, cut: int
) -> None:
    mask = torch.tensor([bool(bits >> i & 1) for i in range(6)])
    tokens = int(mask.sum())

    def share(columns: list[torch.Tensor], kept: torch.Tensor) -> float:
        loss = dppo_loss(*columns, action_mask_N=kept).loss_N
        return token_mean(loss, kept, action_tokens=tokens).item()

    columns = [lp, lq, advantages]
    whole = share(columns, mask)
    assert share([c.masked_fill(~mask, math.nan) for c in columns], mask) == whole
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    assert share([c[order] for c in columns], mask[order]) == pytest.approx(whole, rel=1e-12, abs=1e-12)
    halves = share([c[:cut] for c in columns], mask[:cut]) + share([c[cut:] for c in columns], mask[cut:])
    assert halves == pytest.approx(whole, rel=1e-12, abs=1e-12)


@fast
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 2**31))
def test_packed_alignment_is_each_sequence_shifted(lengths: list[int], seed: int) -> None:
    emitted = torch.randn(sum(lengths), dtype=F64, generator=torch.Generator().manual_seed(seed))
    found = align_values(emitted, lengths)
    rows = torch.split(emitted, lengths)
    assert torch.equal(found, torch.cat([align_values_padded(row) for row in rows]))


@fast
@given(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.lists(st.integers(100, 199), max_size=5), st.data())
def test_projection_undoes_insertion(ids: list[int], context: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(ids)))
    conditioned = insert_context(ids, position, context)
    assert len(conditioned) == len(ids) + len(context)
    assert project_values(conditioned, position, len(context)).tolist() == ids


@fast
@given(episodes(), number)
def test_a_terminal_reward_is_placed_once(episode: tuple[torch.Tensor, ...], reward: float) -> None:
    mask = episode[2]
    placed = terminal_rewards(reward, mask)
    assert placed.sum().item() == (reward if mask.any() else 0.0)
    if mask.any() and reward:
        assert placed.nonzero().flatten().tolist() == [int(mask.nonzero().max())]


def test_no_sums_is_a_neutral_element() -> None:
    some = TetherSums(weight=3.0, sxx=1.0, sxy=2.0, syy=5.0)
    assert TetherSums().merge(some) == some.merge(TetherSums()) == some
