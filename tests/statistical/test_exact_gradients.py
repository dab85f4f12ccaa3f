"""Bias and variance of the estimators, by enumerating every outcome of a small tree: no sampling, no tolerance for it.

An admissible baseline leaves the expected gradient equal to the gradient of the expected reward; what the
critic knows of the outcome beyond the history does not.
"""

from __future__ import annotations

import pytest
import torch
from tree_mdp import Tree, moments

from lecritique.credit.tether import TetherController
from lecritique.numerics.baselines import group_advantages, group_baselines
from lecritique.numerics.policy_losses import dppo_loss, reinforce_loss, token_mean
from lecritique.numerics.tether import TetherSums, tether_advantages, tether_fit, tether_pairs, tether_sums

F64 = torch.float64
EXACT = 1e-10


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


def bias(tree: Tree, estimates_NP: torch.Tensor, probability_N: torch.Tensor) -> float:
    return float((moments(estimates_NP, probability_N)[0] - tree.true_gradient).abs().max())


def group_returns(tree: Tree) -> torch.Tensor:
    return tree.rewards[tree.groups]


def per_group(tree: Tree, advantages_G2T: torch.Tensor) -> torch.Tensor:
    """Mean of the two members' gradient estimates."""
    return torch.einsum("gkt,gktp->gp", advantages_G2T, tree.scores[tree.groups]) / 2


def broadcast(tree: Tree, advantages_G2: torch.Tensor) -> torch.Tensor:
    mask_G2T = tree.action_mask_ET[tree.groups]
    return torch.where(mask_G2T, advantages_G2[..., None], torch.zeros((), dtype=F64))


def tethered(tree: Tree, values_ET: torch.Tensor, rho: float) -> torch.Tensor:
    baselines_G2 = group_baselines(group_returns(tree), "leave_one_out")
    groups = tree.groups
    return tether_advantages(
        tree.gae(values_ET)[groups],
        values_ET[groups],
        baselines_G2,
        rho,
        action_mask_T=tree.action_mask_ET[groups],
    )


def test_the_tree_is_a_distribution_and_its_scores_have_mean_zero(tree: Tree) -> None:
    assert tree.probability.sum().item() == pytest.approx(1.0, abs=1e-14)
    assert tree.group_probability.sum().item() == pytest.approx(1.0, abs=1e-14)
    assert torch.einsum("e,etp->tp", tree.probability, tree.scores).abs().max() < 1e-14
    assert tree.true_gradient.abs().max() > 0.01


@pytest.mark.parametrize("sees_variant", [False, True])
def test_value_and_privileged_value_are_unbiased_also_when_the_critic_is_wrong(tree: Tree, sees_variant: bool) -> None:
    for values_ET in (
        tree.exact_values(sees_variant=sees_variant),
        tree.arbitrary_values(7, sees_variant=sees_variant),
    ):
        estimates = tree.gradients(tree.gae(values_ET))
        assert bias(tree, estimates, tree.probability) < EXACT


@pytest.mark.parametrize("sees_variant", [False, True])
@pytest.mark.parametrize("gae_lambda", [0.0, 0.5])
def test_smaller_lambda_is_unbiased_for_an_exact_critic_only(tree: Tree, sees_variant: bool, gae_lambda: float) -> None:
    exact = tree.gae(tree.exact_values(sees_variant=sees_variant), gae_lambda)
    wrong = tree.gae(tree.arbitrary_values(7, sees_variant=sees_variant), gae_lambda)
    assert bias(tree, tree.gradients(exact), tree.probability) < EXACT
    assert bias(tree, tree.gradients(wrong), tree.probability) > 1e-2


def test_leave_one_out_is_unbiased_and_the_mean_shrinks_the_gradient_by_its_own_share(tree: Tree) -> None:
    _, loo_G2 = group_advantages(group_returns(tree), "leave_one_out")
    _, mean_G2 = group_advantages(group_returns(tree), "mean")
    assert bias(tree, per_group(tree, broadcast(tree, loo_G2)), tree.group_probability) < EXACT
    shrunk, _ = moments(per_group(tree, broadcast(tree, mean_G2)), tree.group_probability)
    assert torch.allclose(shrunk, 0.5 * tree.true_gradient, atol=EXACT)


@pytest.mark.parametrize("sees_variant", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_tether_with_a_lagged_coefficient_is_unbiased(tree: Tree, sees_variant: bool, exact: bool) -> None:
    values_ET = (
        tree.exact_values(sees_variant=sees_variant) if exact else tree.arbitrary_values(3, sees_variant=sees_variant)
    )
    controller = TetherController(batch_size=4, decay=0.5, clip=False)
    advantages_ET = tree.gae(values_ET)
    used = set()
    for group in (5, 400, 700, 1100, 30, 900):
        rho = controller.rho
        used.add(rho)
        assert bias(tree, per_group(tree, tethered(tree, values_ET, rho)), tree.group_probability) < EXACT
        members = tree.groups[group].tolist()
        for member, sibling in zip(members, reversed(members), strict=True):
            baseline = float(tree.rewards[sibling])
            controller.observe(
                *tether_pairs(advantages_ET[member], values_ET[member], baseline, tree.action_mask_ET[member])
            )
    assert len(used) >= 3


def test_a_coefficient_fitted_on_the_group_itself_is_biased(tree: Tree) -> None:
    values_ET = tree.exact_values(sees_variant=False)
    advantages_ET = tree.gae(values_ET)
    baselines_G2 = group_baselines(group_returns(tree), "leave_one_out").tolist()
    own = []
    for members, baselines in zip(tree.groups.tolist(), baselines_G2, strict=True):
        sums = TetherSums()
        for e, b in zip(members, baselines, strict=True):
            sums = sums.merge(tether_sums(*tether_pairs(advantages_ET[e], values_ET[e], b, tree.action_mask_ET[e])))
        own.append(min(max(tether_fit(sums) or 0.0, 0.0), 1.0))
    rho_G = torch.tensor(own, dtype=F64)[:, None, None]
    ends = [tethered(tree, values_ET, end) for end in (0.0, 1.0)]
    assert bias(tree, per_group(tree, (1 - rho_G) * ends[0] + rho_G * ends[1]), tree.group_probability) > 1e-3


@pytest.mark.parametrize("looks_ahead", [1, 5])
def test_a_critic_that_sees_what_follows_is_biased(tree: Tree, looks_ahead: int) -> None:
    values_ET = tree.exact_values(sees_variant=True, looks_ahead=looks_ahead)
    estimates = tree.gradients(tree.gae(values_ET))
    assert bias(tree, estimates, tree.probability) > 1e-2


def test_a_critic_that_sees_the_outcome_teaches_nothing(tree: Tree) -> None:
    values_ET = torch.where(tree.action_mask_ET, tree.rewards[:, None], torch.nan)
    assert tree.gae(values_ET).eq(0).all()
    assert tree.gradients(tree.gae(values_ET)).eq(0).all()


def test_variance_falls_from_no_baseline_to_value_to_privileged_value(tree: Tree) -> None:
    mask = tree.action_mask_ET
    columns = {
        "none": torch.where(mask, tree.rewards[:, None], 0.0),
        "value": tree.gae(tree.exact_values(sees_variant=False)),
        "pvf": tree.gae(tree.exact_values(sees_variant=True)),
    }
    variance = {name: moments(tree.gradients(a), tree.probability)[1] for name, a in columns.items()}
    assert variance["pvf"] < 0.9 * variance["value"] < 0.9 * 0.9 * variance["none"]


def test_without_a_variant_the_privileged_value_is_the_value() -> None:
    plain = Tree(variant_matters=False)
    clean, privileged = (plain.exact_values(sees_variant=sees) for sees in (False, True))
    assert torch.allclose(clean, privileged, atol=1e-14, equal_nan=True)


def exact_sums(tree: Tree, values_ET: torch.Tensor) -> TetherSums:
    """Expected sums of a group of two."""
    baselines_G2 = group_baselines(group_returns(tree), "leave_one_out")
    keep = tree.action_mask_ET[tree.groups]
    x = (values_ET[tree.groups] - baselines_G2[..., None])[keep].reshape(len(keep), -1)
    y = (group_returns(tree) - baselines_G2)[..., None].expand(keep.shape)[keep].reshape(len(keep), -1)
    p = tree.group_probability
    return TetherSums(
        weight=float(x.shape[1]),
        sxx=float(p @ x.square().sum(-1)),
        sxy=float(p @ (x * y).sum(-1)),
        syy=float(p @ y.square().sum(-1)),
    )


def test_the_fit_converges_to_the_population_optimum(tree: Tree) -> None:
    values_ET = tree.arbitrary_values(3, sees_variant=False) * 0.3 + tree.exact_values(sees_variant=False)
    exact = exact_sums(tree, values_ET)
    optimum = tether_fit(exact, ridge=0.0)
    assert 0.1 < optimum < 0.9
    grid = torch.linspace(0, 1, 1001, dtype=F64).tolist()
    assert min(grid, key=exact.mse) == pytest.approx(optimum, abs=1e-3)

    advantages_ET = tree.gae(values_ET)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(tree.group_probability, 20_000, replacement=True, generator=generator)
    gaps = []
    for count in (200, 20_000):
        times_G = torch.bincount(drawn[:count], minlength=len(tree.groups)).tolist()
        sums = TetherSums()
        for times, members in zip(times_G, tree.groups.tolist(), strict=True):
            for e, sibling in zip(members, reversed(members), strict=True):
                if times:
                    baseline = float(tree.rewards[sibling])
                    pairs = tether_pairs(advantages_ET[e], values_ET[e], baseline, tree.action_mask_ET[e])
                    one = tether_sums(*pairs)
                    sums = sums.merge(
                        TetherSums(
                            weight=times * one.weight,
                            sxx=times * one.sxx,
                            sxy=times * one.sxy,
                            syy=times * one.syy,
                        )
                    )
        gaps.append(abs(tether_fit(sums, ridge=0.0) - optimum))
    assert gaps[1] < 0.01
    assert gaps[1] < gaps[0]


def test_an_exact_critic_deserves_full_trust_unless_the_group_knows_more(tree: Tree) -> None:
    privileged = tether_fit(exact_sums(tree, tree.exact_values(sees_variant=True)), ridge=0.0)
    assert privileged == pytest.approx(1.0, abs=1e-12)
    # The siblings share the hidden variant, which a clean critic does not see.
    clean = tether_fit(exact_sums(tree, tree.exact_values(sees_variant=False)), ridge=0.0)
    assert 0.0 < clean < 0.9
    plain = Tree(variant_matters=False)
    alone = tether_fit(exact_sums(plain, plain.exact_values(sees_variant=False)), ridge=0.0)
    assert alone == pytest.approx(1.0, abs=1e-12)


def test_the_optimal_coefficient_has_the_smallest_error_of_the_mixed_baseline(tree: Tree) -> None:
    sums = exact_sums(tree, tree.exact_values(sees_variant=False))
    best = tether_fit(sums, ridge=0.0)
    assert sums.mse(best) < min(sums.mse(0.0), sums.mse(1.0))


@pytest.mark.parametrize("loss_name", ["dppo", "reinforce", "reinforce_ratio"])
def test_minimising_the_losses_follows_the_true_gradient(tree: Tree, loss_name: str) -> None:
    """The package's loss, weighted by the episodes' probabilities, has minus the true gradient."""
    parameters_P = tree.parameters_P.clone().requires_grad_()
    lp_ET, mask = tree.log_policy(parameters_P), tree.action_mask_ET
    lq_ET, advantages_ET = lp_ET.detach(), tree.gae(tree.exact_values(sees_variant=False))
    inputs = lp_ET, lq_ET, advantages_ET
    token_loss = {
        "dppo": lambda: dppo_loss(*inputs, action_mask_N=mask),
        "reinforce": lambda: reinforce_loss(*inputs, on_policy=True, action_mask_N=mask),
        "reinforce_ratio": lambda: reinforce_loss(*inputs, on_policy=False, action_mask_N=mask),
    }[loss_name]()
    expected_loss = token_mean(token_loss.loss_N * tree.probability[:, None], mask, action_tokens=1)
    expected_loss.backward()
    assert torch.allclose(parameters_P.grad, -tree.true_gradient, atol=EXACT)
