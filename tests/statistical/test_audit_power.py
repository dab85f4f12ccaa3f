"""The statistical audit on an enumerable tree: planted leaks are flagged, admissible critics are not.

20 repetitions; at most 2 false alarms, each leak found at least 18 times, among 400 episodes or, where the observation
says little of the action before it, 1,200.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tree_mdp import ACTIONS, F64, NAN, Tree

from lecritique.analysis.audit import without_mean
from lecritique.analysis.gradient_statistics import GradientSums, mean_is_zero

REPETITIONS = 20
EPISODES = 400


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


def knows_feedback(tree: Tree) -> torch.Tensor:
    """An exact critic, but for the first action: there it says what the observation, which comes later, makes of z."""
    values = tree.exact_values(sees_variant=True)
    for i, e in enumerate(tree.episodes):
        values[i, 1] = 2.0 * float((e.tokens[2] == 1) == (e.variant == 1))
    return values


def knows_outcome(tree: Tree) -> torch.Tensor:
    return torch.where(tree.action_mask_ET, tree.rewards[:, None], torch.full((), NAN, dtype=F64))


def flagged(tree: Tree, values_ET: torch.Tensor, seed: int, episodes: int = EPISODES) -> bool:
    drawn = torch.multinomial(
        tree.probability, episodes, replacement=True, generator=torch.Generator().manual_seed(seed)
    ).numpy()
    mask = tree.action_mask_ET[0].numpy()
    columns = [[values_ET[i].numpy()] for i in drawn]
    centred = without_mean(columns, [[mask]] * episodes)
    scores = tree.scores.numpy()[drawn][:, list(ACTIONS)]
    differences = np.einsum("nt,ntp->np", np.stack([c[0][mask] for c in centred]), scores)
    return mean_is_zero(differences @ differences.T, flips=1000, seed=seed).flagged


def times_flagged(tree: Tree, values_ET: torch.Tensor, episodes: int = EPISODES) -> int:
    return sum(flagged(tree, values_ET, seed, episodes) for seed in range(REPETITIONS))


@pytest.mark.parametrize("sees_variant", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_false_alarms_are_rare(tree: Tree, sees_variant: bool, exact: bool) -> None:
    values_ET = (
        tree.exact_values(sees_variant=sees_variant) if exact else tree.arbitrary_values(5, sees_variant=sees_variant)
    )
    assert times_flagged(tree, values_ET) <= 2


@pytest.mark.parametrize("leak", ["outcome", "future token", "later feedback"])
def test_planted_leaks_are_found(tree: Tree, leak: str) -> None:
    values_ET = {
        "outcome": knows_outcome,
        "future token": lambda tree: tree.exact_values(sees_variant=True, looks_ahead=1),
        "later feedback": knows_feedback,
    }[leak](tree)
    assert times_flagged(tree, values_ET, 1200 if leak == "later feedback" else EPISODES) >= 18


def test_a_difference_of_the_detectable_norm_is_found_as_often_as_stated() -> None:
    """Power at the stated norm is 0.8 to the error of the normal approximation and of 200 repetitions."""
    P, D, repetitions = 60, 30, 200
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(repetitions, P, D))
    stated = np.mean([mean_is_zero(x @ x.T, flips=400).detectable_norm for x in noise[:20]])
    shift = np.full(D, stated / np.sqrt(D))
    found = [mean_is_zero((x + shift) @ (x + shift).T, flips=1000).flagged for x in noise]
    assert 0.65 <= np.mean(found) <= 0.95


def test_the_level_is_kept_in_many_dimensions() -> None:
    rng = np.random.default_rng(1)
    p = [mean_is_zero(x @ x.T, flips=400).p_value for x in rng.normal(size=(300, 20, 200))]
    # 5% of p-values below 0.05, within 3 binomial standard errors.
    assert abs(np.mean(np.array(p) <= 0.05) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 300)


def test_moments_from_norms_and_inner_products_are_the_literal_ones() -> None:
    rng = np.random.default_rng(2)
    members = [2, 4, 3]
    g = [rng.normal(size=(k, 5)) for k in members]
    sums = np.stack([x.sum(0) for x in g])
    kept = GradientSums(
        trajectories=np.array(members, dtype=float),
        norms_sq=np.array([np.square(x).sum() for x in g]),
        gram=sums @ sums.T,
    )
    ones = np.ones((1, 3))
    pairs = [(a, b) for p in range(3) for q in range(3) if p != q for a in g[p] for b in g[q]]
    mean_sq = np.mean([a @ b for a, b in pairs])
    everyone = np.concatenate(g)
    assert kept.mean_norm_sq(ones)[0] == pytest.approx(mean_sq)
    assert kept.trace(ones)[0] == pytest.approx(np.square(everyone).sum(1).mean() - mean_sq)
    group = np.mean([np.square(x.mean(0)).sum() for x in g])
    assert kept.group_trace(ones)[0] == pytest.approx(group - mean_sq)
    # A problem that is drawn twice makes no pair with itself.
    twice = np.array([[2.0, 1.0, 0.0]])
    assert kept.mean_norm_sq(twice)[0] == pytest.approx(sums[0] @ sums[1] / 8)


def test_few_problems_conclude_nothing_and_bad_input_is_refused() -> None:
    assert np.isnan(mean_is_zero(np.eye(7)).p_value) and not mean_is_zero(np.eye(7)).flagged
    with pytest.raises(ValueError, match="P, P"):
        mean_is_zero(np.ones((9, 8)))
    with pytest.raises(ValueError, match="finite"):
        mean_is_zero(np.full((9, 9), np.nan))
