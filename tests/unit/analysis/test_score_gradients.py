"""Weighted gradients of a network's log-probs: against a full softmax, and as a sketch within its stated error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lecritique.analysis.score_gradients import ProblemSums, ScoreGradients, cells_for
from tests.unit.small_models import small_policy, trajectory

MASK = [0, 0, 1, 1, 0, 1, 1, 1]


@pytest.fixture(scope="module")
def policy():
    return small_policy(1)


def literal(policy, of, weights, temperature=1.0):
    """The gradient of sum_t w_t log p(token t), from the logits of the whole sequence."""
    logits = policy(input_ids=torch.from_numpy(np.array(of.token_ids))[None], use_cache=False).logits[0] / temperature
    everything = torch.log_softmax(logits, dim=-1)
    total = sum(float(weights[t]) * everything[t - 1, int(of.token_ids[t])] for t in np.flatnonzero(of.action_mask))
    found = torch.autograd.grad(total, list(policy.parameters()))
    return torch.cat([g.flatten() for g in found])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_exact_gradients_are_those_of_the_full_softmax(policy, temperature):
    of = trajectory(MASK, seed=3)
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=len(MASK)), np.ones(len(MASK))]
    gradients = ScoreGradients(policy, temperature=temperature)
    found = gradients.weighted(of, weights)
    assert found.shape == (2, gradients.parameters) and gradients.relative_error == 0
    for row, column in zip(found, weights, strict=True):
        assert torch.allclose(row.double(), literal(policy, of, column, temperature), atol=1e-5)


def test_what_stands_off_the_mask_is_not_read(policy):
    of = trajectory(MASK, seed=3)
    junk = np.where(of.action_mask, 0.5, np.nan)
    gradients = ScoreGradients(policy, temperature=1.0)
    assert torch.equal(gradients.weighted(of, [junk]), gradients.weighted(of, [np.full(len(MASK), 0.5)]))


def test_norms_of_single_tokens(policy):
    of = trajectory(MASK, seed=4)
    found = ScoreGradients(policy, temperature=1.0).token_norms_sq(of, [0, 3])
    for norm, place in zip(found, np.flatnonzero(of.action_mask)[[0, 3]], strict=True):
        alone = np.arange(len(MASK)) == place
        assert norm == pytest.approx(float(literal(policy, of, alone).square().sum()), rel=1e-4)


def test_a_sketch_keeps_norms_and_inner_products_within_its_stated_error(policy):
    of = [trajectory(MASK, seed=s) for s in range(2)]
    ones = [np.ones(len(MASK))]
    exact = [ScoreGradients(policy, temperature=1.0).weighted(t, ones)[0].double() for t in of]
    cells, seeds = 256, 60
    sketches = [ScoreGradients(policy, temperature=1.0, cells=cells, seed=s) for s in range(seeds)]
    assert sketches[0].width == cells and sketches[0].relative_error == pytest.approx(np.sqrt(2 / cells))
    folded = [[s.weighted(t, ones)[0].double() for t in of] for s in sketches]
    norms = np.array([float(a.square().sum()) for a, _ in folded]) / float(exact[0].square().sum())
    products = np.array([float(a @ b) for a, b in folded])
    stated = sketches[0].relative_error
    assert norms.mean() == pytest.approx(1, abs=4 * stated / np.sqrt(seeds))
    assert norms.std() < 1.3 * stated
    size = float(exact[0].norm() * exact[1].norm())
    assert products.mean() == pytest.approx(float(exact[0] @ exact[1]), abs=4 * stated * size / np.sqrt(seeds))
    # Linear, and the same each time: the sketch of a sum is the sum of sketches.
    assert torch.equal(folded[3][0].float(), sketches[3].weighted(of[0], ones)[0])
    assert torch.allclose(
        sketches[3].weighted(of[0], [np.full(len(MASK), 3.0)])[0].double(), 3 * folded[3][0], atol=1e-3
    )


def test_sums_of_problems(policy):
    rng = np.random.default_rng(5)
    g = torch.from_numpy(rng.normal(size=(5, 2, 7))).float()
    sums = ProblemSums(4, 2, 7)
    for index, problem in enumerate([0, 0, 1, 3, 3]):
        sums.add(problem, g[index])
    first, second = sums.sums()
    assert first.trajectories.tolist() == [2, 1, 2]  # problem 2 has no trajectory
    of = g[:, 1].double().numpy()
    totals = np.stack([of[:2].sum(0), of[2], of[3:].sum(0)])
    assert second.gram == pytest.approx(totals @ totals.T, rel=1e-5)
    assert second.norms_sq == pytest.approx([np.square(of[:2]).sum(), np.square(of[2]).sum(), np.square(of[3:]).sum()])


def test_large_models_are_sketched():
    assert cells_for(400_000, problems=64, weightings=7) is None
    assert cells_for(4_000_000_000, problems=2, weightings=1) == 4096
