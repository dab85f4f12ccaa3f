"""The score-norm-weighted coefficient minimises the size of the per-token gradient, by enumeration on a tree."""

from __future__ import annotations

import pytest
from tree_mdp import Tree

from lecritique.numerics.baselines import group_baselines
from lecritique.numerics.tether import score_norm_optimum, tether_advantages, tether_fit, tether_pairs, tether_sums


@pytest.mark.parametrize("seed", range(3))
def test_it_minimises_the_expected_squared_norm_of_the_token_gradient(seed: int) -> None:
    tree = Tree(seed)
    values_G2T = tree.exact_values(sees_variant=False)[tree.groups]
    gae_G2T = tree.gae(tree.exact_values(sees_variant=False))[tree.groups]
    mask_G2T = tree.action_mask_ET[tree.groups]
    norms_G2T = tree.scores.square().sum(-1)[tree.groups]
    weights_G2T = norms_G2T * tree.group_probability[:, None, None]
    baselines_G2 = group_baselines(tree.rewards[tree.groups], "leave_one_out")

    def size(rho: float) -> float:
        advantages = tether_advantages(gae_G2T, values_G2T, baselines_G2, rho, action_mask_T=mask_G2T)
        return float((weights_G2T * advantages.square())[mask_G2T].sum())

    gap_G2T = baselines_G2[..., None].expand_as(values_G2T)[mask_G2T]
    pairs = tether_pairs(gae_G2T, values_G2T, 0.0, mask_G2T)
    x_N, y_N = pairs[0] - gap_G2T, pairs[1] - gap_G2T
    best = score_norm_optimum(x_N, y_N, weights_G2T[mask_G2T])
    assert best is not None
    assert size(best) < min(size(best - 1e-3), size(best + 1e-3))
    assert size(best) <= min(size(i / 100) for i in range(-50, 151))
    # The fit that training uses weighs tokens alike: near, and not the same.
    token_N = tree.group_probability[:, None, None].expand_as(values_G2T)[mask_G2T].sqrt()
    plain = tether_fit(tether_sums(token_N * x_N, token_N * y_N), ridge=0.0)
    assert plain is not None
    assert abs(plain - best) > 1e-4
