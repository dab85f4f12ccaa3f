"""Drawing a token: exact frequencies, the cut distribution, and the log-prob of what was drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal_decoding import probabilities

from lecritique.core.rollout import Sampling
from lecritique.rollout.sampling import draw

LOGITS = [0.3, 2.0, -1.0, 1.9, 0.0, 0.31, -4.0, 1.0]
SETTINGS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(top_k=3),
    Sampling(top_p=0.7),
    Sampling(temperature=1.3, top_k=5, top_p=0.8),
    Sampling(top_k=1),
    Sampling(top_k=100, top_p=1e-6),
]


def drawn(sampling: Sampling, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits = torch.tensor([LOGITS], dtype=torch.float64).expand(len(uniforms), -1)
    tokens, logprobs = draw(logits, torch.from_numpy(uniforms), sampling)
    return tokens.numpy(), logprobs.numpy()


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_frequencies_over_a_grid_of_uniforms_are_the_probabilities(sampling: Sampling) -> None:
    """Each of the n cells of the grid gives one draw, so a count is off by less than one."""
    n = 4000
    expected = np.array(probabilities(LOGITS, sampling))
    tokens, logprobs = drawn(sampling, (np.arange(n) + 0.5) / n)
    counts = np.bincount(tokens, minlength=len(LOGITS))
    assert np.abs(counts - n * expected).max() <= 1.0
    assert set(tokens) <= set(np.flatnonzero(expected))
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_random_uniforms_pass_a_chi_square_test(sampling: Sampling) -> None:
    n = 20_000
    expected = np.array(probabilities(LOGITS, sampling))
    tokens, _ = drawn(sampling, np.random.default_rng(5).random(n))
    counts = np.bincount(tokens, minlength=len(LOGITS))
    kept = expected > 0
    chi_square = float(((counts - n * expected)[kept] ** 2 / (n * expected[kept])).sum())
    # Far above the 0.9999 quantile of 7 degrees of freedom (29.9) only when a probability is wrong.
    assert chi_square < 30.0


def test_the_ends_of_the_unit_interval_draw_tokens_with_mass() -> None:
    low, high = 0.0, 1.0 - 2.0**-53
    for sampling in SETTINGS:
        allowed = np.flatnonzero(probabilities(LOGITS, sampling))
        tokens, logprobs = drawn(sampling, np.array([low, high]))
        assert tokens.tolist() == [allowed[0], allowed[-1]]
        assert np.isfinite(logprobs).all()


def test_logits_of_minus_infinity_are_never_drawn_and_ties_of_top_k_keep_k() -> None:
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0, 1.0, -torch.inf]])
    grid = torch.linspace(0, 1 - 1e-9, 300, dtype=torch.float64)
    tokens, _ = draw(logits.expand(300, -1), grid, Sampling())
    assert set(tokens.tolist()) == {1, 3, 4}
    tokens, logprobs = draw(logits.expand(300, -1), grid, Sampling(top_k=2))
    assert len(set(tokens.tolist())) == 2 and set(tokens.tolist()) <= {1, 3, 4}
    assert logprobs.tolist() == pytest.approx([np.log(0.5)] * 300)


def test_each_row_has_its_own_distribution_and_uniform() -> None:
    logits = torch.tensor([[0.0, 100.0, 0.0], [100.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    tokens, logprobs = draw(logits, torch.tensor([0.5, 0.5, 0.99]), Sampling())
    assert tokens.tolist() == [1, 0, 2]
    assert logprobs.tolist() == pytest.approx([0.0, 0.0, np.log(1 / 3)], abs=1e-6)
