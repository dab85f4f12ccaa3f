"""Variance ratios from norms and inner products of sampled trajectories against enumeration on a tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tree_mdp import Tree, moments

from lecritique.analysis.gradient_statistics import GradientSums
from lecritique.analysis.gradient_study import less_constant, rho_intervals
from lecritique.analysis.score_gradients import ProblemSums
from lecritique.analysis.value_statistics import Resampling
from lecritique.analysis.variance_ratios import (
    NONE,
    NONE_CENTRED,
    Traces,
    contrasts,
    of_critics,
    traces_of,
    variance_ratios,
)
from lecritique.credit.estimators import ScoredGroup
from lecritique.numerics.baselines import group_advantages, group_baselines
from lecritique.numerics.statistics.bootstrap import cluster_draws, percentile_bounds
from lecritique.numerics.tether import score_norm_optimum, tether_pairs
from tests.unit.small_models import trajectory

PROBLEMS = 400
ESTIMATORS = (NONE, NONE_CENTRED, "mean", "leave_one_out", "value", "pvf")
# The tree's rewards lie in [0, 1.8].
MIDDLE = 0.9


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


def per_member(tree: Tree) -> dict[str, torch.Tensor]:
    """The gradient of each member of every group of two, [G, 2, P], by estimator."""
    groups = tree.groups
    scores = tree.scores.sum(1)[groups]
    found = {
        NONE: tree.rewards[groups][..., None] * scores,
        NONE_CENTRED: (tree.rewards[groups] - MIDDLE)[..., None] * scores,
    }
    for kind in ("mean", "leave_one_out"):
        _, advantages = group_advantages(tree.rewards[groups], kind)
        found[kind] = advantages[..., None] * scores
    for name, sees in (("value", False), ("pvf", True)):
        found[name] = tree.gradients(tree.gae(tree.exact_values(sees_variant=sees)))[groups]
    return found


def drawn_groups(tree: Tree, seed: int, count: int = PROBLEMS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(tree.group_probability, count, replacement=True, generator=generator)


def kept(gradients: dict[str, torch.Tensor], drawn: torch.Tensor) -> dict[str, GradientSums]:
    width = next(iter(gradients.values())).shape[-1]
    sums = ProblemSums(len(drawn), len(gradients), width)
    for problem, group in enumerate(drawn.tolist()):
        for member in (0, 1):
            sums.add(problem, torch.stack([of[group, member] for of in gradients.values()]).float())
    return dict(zip(gradients, sums.sums(), strict=True))


def sampled(gradients: dict[str, torch.Tensor], drawn: torch.Tensor, *, replicates: int) -> Traces:
    return traces_of(kept(gradients, drawn), Resampling(len(drawn), replicates=replicates))


def exact_ratios(tree: Tree, gradients: dict[str, torch.Tensor]) -> dict[str, tuple[float, float]]:
    """By enumeration: of a member's gradient, and of the group's mean."""
    p = tree.group_probability
    traces = {
        name: (
            moments(of.reshape(-1, of.shape[-1]), torch.repeat_interleave(p, 2) / 2)[1],
            moments(of.mean(1), p)[1],
        )
        for name, of in gradients.items()
    }
    return {name: (one / traces[NONE][0], group / traces[NONE][1]) for name, (one, group) in traces.items()}


def test_ratios_equal_enumeration_within_their_intervals(tree: Tree) -> None:
    gradients = per_member(tree)
    exact = exact_ratios(tree, gradients)
    assert exact["pvf"][0] < exact["value"][0] < 1
    repetitions, inside = 8, 0
    for seed in range(repetitions):
        found = variance_ratios(sampled(gradients, drawn_groups(tree, seed), replicates=400))
        for name in ESTIMATORS[1:]:
            for kind, expected in zip(("trajectory", "group"), exact[name], strict=True):
                ratio = found[name][kind]["ratio"]
                inside += ratio["low"] <= expected <= ratio["high"]
                assert ratio["estimate"] == pytest.approx(expected, rel=0.25)
    # 95% of 80 intervals that are not independent of each other.
    assert inside >= 70


def test_large_samples_come_to_the_enumerated_ratio(tree: Tree) -> None:
    gradients = per_member(tree)
    exact = exact_ratios(tree, gradients)
    found = variance_ratios(sampled(gradients, drawn_groups(tree, 9, 2500), replicates=2))
    for name in ESTIMATORS:
        for kind, expected in zip(("trajectory", "group"), exact[name], strict=True):
            assert found[name][kind]["ratio"]["estimate"] == pytest.approx(expected, rel=0.08)


def test_a_pair_s_ratio_is_the_enumerated_one(tree: Tree) -> None:
    gradients = per_member(tree)
    exact = exact_ratios(tree, gradients)
    repetitions, inside, pairs = 8, 0, 0
    for seed in range(repetitions):
        together = contrasts(sampled(gradients, drawn_groups(tree, seed), replicates=400))
        assert len(together) == len(ESTIMATORS) * (len(ESTIMATORS) - 1) / 2
        for pair in together:
            for place, kind in enumerate(("trajectory", "group")):
                ratio, expected = pair[kind], exact[pair["a"]][place] / exact[pair["b"]][place]
                inside += ratio["low"] <= expected <= ratio["high"]
                pairs += 1
        (best,) = (pair["trajectory"] for pair in together if {pair["a"], pair["b"]} == {"pvf", "value"})
        assert best["high"] < 1
    assert inside >= 0.87 * pairs


def test_a_pair_s_interval_is_of_problems_drawn_once_for_both(tree: Tree) -> None:
    gradients, drawn = per_member(tree), drawn_groups(tree, 3, 30)
    traces = sampled(gradients, drawn, replicates=40)
    pair = next(p for p in contrasts(traces) if (p["a"], p["b"]) == ("pvf", "value"))
    literal = []
    for problems in cluster_draws(30, replicates=40):
        counts = np.bincount(problems, minlength=30)[None].astype(float)
        above, below = (kept(gradients, drawn)[name].trace(counts)[0] for name in ("pvf", "value"))
        literal.append(above / below)
    assert (pair["trajectory"]["low"], pair["trajectory"]["high"]) == pytest.approx(percentile_bounds(literal))
    assert [(p["a"], p["b"]) for p in of_critics(contrasts(traces), ["value", "pvf"])] == [
        ("value", NONE_CENTRED), ("pvf", NONE_CENTRED), ("value", "mean"), ("pvf", "mean"),
        ("value", "leave_one_out"), ("pvf", "leave_one_out"), ("pvf", "value"),
    ]  # fmt: skip


@pytest.mark.parametrize("b", [0.0, 0.3, MIDDLE])
def test_a_constant_leaves_the_mean_gradient_and_changes_its_size_by_the_stated_equation(tree: Tree, b: float) -> None:
    p, R, s = tree.probability, tree.rewards, tree.scores.sum(1)
    mean, variance = moments((R - b)[:, None] * s, p)
    assert torch.allclose(mean, tree.true_gradient, atol=1e-12)
    size = s.square().sum(-1)
    stated = float(p @ (R**2 * size - 2 * b * R * size + b**2 * size) - mean.square().sum())
    assert variance == pytest.approx(stated, rel=1e-10)
    members = tuple(trajectory([0, 1, 1], episode_return=r, member=k) for k, r in enumerate((0.0, 1.0)))
    group = ScoredGroup(group_id=members[0].rollout_id.group, trajectories=members, predictions=None)
    assert [column.tolist() for column in less_constant(group, b)] == [[0, -b, -b], [0, 1 - b, 1 - b]]


def test_no_baseline_is_one_without_spread(tree: Tree) -> None:
    found = variance_ratios(sampled(per_member(tree), drawn_groups(tree, 1, 50), replicates=50))
    assert found[NONE]["trajectory"]["ratio"] == pytest.approx({"estimate": 1, "low": 1, "high": 1})


def test_the_optimum_weighted_by_score_norms_is_the_enumerated_one(tree: Tree) -> None:
    values = tree.exact_values(sees_variant=False)[tree.groups]
    advantages = tree.gae(tree.exact_values(sees_variant=False))[tree.groups]
    mask = tree.action_mask_ET[tree.groups]
    baselines = group_baselines(tree.rewards[tree.groups], "leave_one_out")
    norms = tree.scores.square().sum(-1)[tree.groups]
    x, y = tether_pairs(advantages, values, 0.0, mask)
    gap = baselines[..., None].expand_as(values)[mask]
    x, y = x - gap, y - gap
    shape = (len(tree.groups), -1)
    p = tree.group_probability[:, None].expand(len(tree.groups), 6).reshape(-1)
    exact = score_norm_optimum(x, y, norms[mask] * p)
    drawn = drawn_groups(tree, 4, 2000)
    columns = [c.reshape(shape)[drawn].reshape(-1).numpy() for c in (x, y, norms[mask])]
    draws = Resampling(2000, replicates=300)
    found = rho_intervals(*columns, np.ones(len(columns[0])), problem_N=np.repeat(np.arange(2000), 6), draws=draws)
    best = found["score_norm_optimum"]
    assert best["low"] <= exact <= best["high"] and best["estimate"] == pytest.approx(exact, abs=0.05)
    assert found["rho"]["estimate"] != best["estimate"]
    # A token that stands for two is that token twice.
    few = [c[:12] for c in columns]
    twice = rho_intervals(
        *few, np.r_[2.0, np.ones(11)], problem_N=np.repeat([0, 1], 6), draws=Resampling(2, replicates=2)
    )
    again = rho_intervals(
        *[np.r_[c[0], c] for c in few],
        np.ones(13),
        problem_N=np.r_[0, np.repeat([0, 1], 6)],
        draws=Resampling(2, replicates=2),
    )
    assert twice["score_norm_optimum"]["estimate"] == pytest.approx(again["score_norm_optimum"]["estimate"])


def test_rewards_that_are_all_zero_leave_nothing_to_compare_with() -> None:
    sums = ProblemSums(3, 1, 2)
    for problem in range(3):
        sums.add(problem, torch.zeros(1, 2))
    found = variance_ratios(traces_of(dict(zip([NONE], sums.sums(), strict=True)), Resampling(3, replicates=20)))
    assert found[NONE]["trajectory"]["ratio"] == {"estimate": None, "low": None, "high": None}
