"""The adaptive lambda against the true optimum, by enumerating every outcome of small trees."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tree_mdp import Tree

from lecritique.numerics.adaptive_lambda import adaptive_lambda, critic_error_share, within_group_variance
from lecritique.numerics.gae import gae, terminal_rewards

F64 = torch.float64
ACTIONS = 3
SEEDS = range(6)


class Study:
    """One tree and one critic: the exact risk of every lambda, and what a run would measure.

    The truth that a lambda-return estimates is E[R | history, action, task variant]: siblings share the variant.
    """

    def __init__(self, seed: int, critic: Callable[[Tree], torch.Tensor]) -> None:
        self.tree = tree = Tree(seed)
        self.values_ET = critic(tree)
        self.truth_ET = tree.exact_values(sees_variant=True, looks_ahead=1)
        self.rewards_ET = terminal_rewards(tree.rewards, tree.action_mask_ET)

    def token_mean(self, errors_ET: torch.Tensor) -> float:
        mask = self.tree.action_mask_ET
        return float(self.tree.probability @ torch.where(mask, errors_ET.square(), 0.0).sum(-1)) / ACTIONS

    def risk(self, lam: float) -> float:
        factors = {"gamma": 1.0, "gae_lambda": lam, "value_target_lambda": lam}
        _, returns_ET = gae(self.rewards_ET, self.values_ET, self.tree.action_mask_ET, **factors)
        return self.token_mean(returns_ET - self.truth_ET)

    def best(self) -> tuple[float, float]:
        risks = {i / 200: self.risk(i / 200) for i in range(201)}
        lam = min(risks, key=risks.__getitem__)
        return lam, risks[lam]

    def measured(self) -> float:
        tree = self.tree
        within = within_group_variance(tree.rewards[tree.groups])
        assert within.count == len(tree.groups)
        squares_G = (tree.rewards[tree.groups][:, 0] - tree.rewards[tree.groups][:, 1]).square() / 2
        assert within.total == pytest.approx(float(squares_G.sum()))
        mse = self.token_mean(tree.rewards[:, None] - self.values_ET)
        return critic_error_share(mse, float(tree.group_probability @ squares_G))

    def true_share(self) -> float:
        error = self.token_mean(self.values_ET - self.tree.exact_values(sees_variant=True))
        noise = self.token_mean(self.tree.rewards[:, None] - self.truth_ET)
        return error / (error + noise)


def exact(tree: Tree) -> torch.Tensor:
    return tree.exact_values(sees_variant=True)


def mean(tree: Tree) -> float:
    return float(tree.probability @ tree.rewards)


CRITICS: dict[str, Callable[[Tree], torch.Tensor]] = {
    "half way to the mean": lambda t: 0.5 * mean(t) + 0.5 * exact(t),
    "the mean": lambda t: mean(t) + 0.0 * exact(t),
    "too high": lambda t: mean(t) + 0.3 + 0.0 * exact(t),
    "exact but shifted": lambda t: exact(t) + 0.15,
    "blind to the variant": lambda t: t.exact_values(sees_variant=False),
    "noisy": lambda t: exact(t) + 0.3 * t.arbitrary_values(7, sees_variant=True),
    "arbitrary": lambda t: t.arbitrary_values(7, sees_variant=True),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CRITICS)
def test_the_chosen_lambda_is_near_the_best_and_never_much_worse_than_either_end(name: str, seed: int) -> None:
    study = Study(seed, CRITICS[name])
    chosen = study.risk(adaptive_lambda(study.measured(), ACTIONS))
    _, least = study.best()
    assert chosen <= 1.3 * least
    assert chosen <= 1.15 * min(study.risk(0.0), study.risk(1.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_exact_critic_gets_lambda_zero_from_its_true_share_and_most_of_the_gain_from_the_measured_one(
    seed: int,
) -> None:
    study = Study(seed, exact)
    assert study.best()[0] == 0.0
    assert study.true_share() == 0.0
    assert adaptive_lambda(study.true_share(), ACTIONS) == 0.0
    chosen = study.risk(adaptive_lambda(study.measured(), ACTIONS))
    assert chosen - study.risk(0.0) <= 0.2 * (study.risk(1.0) - study.risk(0.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_closed_form_is_exact_for_a_constant_critic(seed: int) -> None:
    """One step from the end, where n is 1 for every token that counts, x is lambda itself."""
    study = Study(seed, CRITICS["too high"])
    values, truth = study.values_ET[:, 3], study.truth_ET[:, 3]
    probability, rewards = study.tree.probability, study.tree.rewards
    error = float(probability @ (values - truth).square())
    noise = float(probability @ (rewards - truth).square())
    lam = adaptive_lambda(error / (error + noise), 3)

    def risk(lam: float) -> float:
        factors = {"gamma": 1.0, "gae_lambda": lam, "value_target_lambda": lam}
        _, returns = gae(study.rewards_ET, study.values_ET, study.tree.action_mask_ET, **factors)
        return float(probability @ (returns[:, 3] - truth).square())

    assert risk(lam) == pytest.approx(error * noise / (error + noise), rel=1e-12)
    assert risk(lam) < min(risk(lam - 1e-3), risk(lam + 1e-3))


def test_a_better_critic_gets_a_smaller_lambda() -> None:
    def lam(distance: float) -> float:
        study = Study(0, lambda t: exact(t) + distance)
        return adaptive_lambda(study.measured(), ACTIONS)

    chosen = [lam(distance) for distance in (0.0, 0.1, 0.2, 0.5, 1.0, 10.0, 1000.0)]
    assert chosen == sorted(chosen)
    assert chosen[-1] == pytest.approx(1.0, abs=1e-6)


def test_by_hand() -> None:
    # Two groups: deviations .5 and .5 over one degree of freedom, 0 over two; the third has one valid return.
    returns = torch.tensor([[1.0, 0.0, math.nan], [1.0, 1.0, 1.0], [0.5, math.nan, math.nan]])
    within = within_group_variance(returns)
    assert (within.total, within.count) == (0.5, 3.0)
    assert within_group_variance(returns[:1]).merge(within_group_variance(returns[1:])) == within
    assert critic_error_share(0.2, 0.2) == pytest.approx(0.5)
    assert critic_error_share(0.2, 0.2, open_share=0.25) == pytest.approx(0.75)
    assert critic_error_share(0.1, 0.3) == 0.0
    assert critic_error_share(0.0, 0.0) == 0.0
    assert adaptive_lambda(0.4, 8193) == pytest.approx(0.4 ** (1 / 4096), abs=1e-15)
    assert adaptive_lambda(0.25, 3, bias_weight=9.0) == pytest.approx(0.75)
    assert adaptive_lambda(0.25, 1) == adaptive_lambda(0.25, 2) == adaptive_lambda(0.25, 3) == 0.25
    assert adaptive_lambda(critic_error_share(math.nan, 0.2), 100) == 1.0


def test_bad_input_is_refused() -> None:
    for arguments in ((-0.1, 1.0), (0.1, -1.0), (0.1, 0.1, 1.5)):
        with pytest.raises(ValueError, match="critic_mse"):
            critic_error_share(*arguments[:2], open_share=arguments[2] if len(arguments) == 3 else 0.5)
    for share in (-0.1, 1.1):
        with pytest.raises(ValueError, match="error_share"):
            adaptive_lambda(share, 10)
    for settings in ({"length": 0.5}, {"length": 10, "bias_weight": 0.0}, {"length": math.nan}):
        with pytest.raises(ValueError, match="length"):
            adaptive_lambda(0.5, **settings)
