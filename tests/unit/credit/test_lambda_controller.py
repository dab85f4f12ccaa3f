"""The lambda that adapts: what it measures, what it makes of it, and what of it survives a resume."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from lecritique.config.estimators import AdaptiveLambda
from lecritique.core.errors import CheckpointError
from lecritique.credit.adaptive_lambda import LambdaController, Measured, measured


def random_measured(seed: int, *, size: int = 4) -> tuple[Measured, list[float], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    returns = (rng.random(size) < 0.5).astype(float).tolist()
    values = [rng.random(rng.integers(5, 40)) for _ in range(size)]
    return measured(torch.tensor(returns, dtype=torch.float64), values), returns, values


def test_a_group_is_measured_by_its_error_against_returns_its_variance_and_its_lengths() -> None:
    """R = [1, 0], V = [[.5, .5], [.25]]: squared errors .25, .25, .0625; variance 1/2; lengths 2 and 1."""
    found = measured(torch.tensor([1.0, 0.0], dtype=torch.float64), [np.array([0.5, 0.5]), np.array([0.25])])
    assert (found.squared_error.total, found.squared_error.count) == (0.5625, 3)
    assert (found.variance.total, found.variance.count) == (0.5, 1)
    assert (found.length.total, found.length.count) == (3, 2)
    silent = measured(torch.tensor([1.0, 0.0], dtype=torch.float64), [np.zeros(0), np.array([0.25])])
    assert (silent.length.value(), silent.squared_error.count) == (1.0, 1)


def test_lambda_by_hand_over_three_batches() -> None:
    """share = 1 - open s0^2 / MSE, x = w share / (w share + 1 - share), lambda = x^(2 / (T - 1)); means fade."""
    config = AdaptiveLambda(bias_weight=3.0, open_share=0.25, decay=0.6)
    one = LambdaController(config)
    error, error_weight, deviation, freedom, tokens, responses = (0.0,) * 6
    for batch in range(3):
        assert batch or one.gae_lambda == 1.0
        groups = [random_measured(10 * batch + k) for k in range(2)]
        one.observe([of for of, _, _ in groups])
        error, error_weight, deviation, freedom, tokens, responses = (
            0.6 * each for each in (error, error_weight, deviation, freedom, tokens, responses)
        )
        for _, returns, values in groups:
            error += sum(float(((r - v) ** 2).sum()) for r, v in zip(returns, values, strict=True))
            error_weight += sum(map(len, values))
            deviation += float(np.var(returns) * len(returns))
            freedom += len(returns) - 1
            tokens += sum(map(len, values))
            responses += len(values)
        share = min(max(1 - 0.25 * (deviation / freedom) / (error / error_weight), 0.0), 1.0)
        kept = 3.0 * share / (3.0 * share + 1 - share)
        expected = kept ** (2 / (tokens / responses - 1))
        assert one.gae_lambda == pytest.approx(expected, rel=1e-12) and 0.5 < expected < 1.0


def test_the_better_the_critic_the_lower_the_lambda() -> None:
    returns = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    lambdas = []
    for distance in (0.9, 0.6, 0.45):
        one = LambdaController(AdaptiveLambda(bias_weight=1.0))
        one.observe([measured(returns, [np.full(20, abs(r - distance)) for r in returns.tolist()])])
        lambdas.append(one.gae_lambda)
    assert lambdas == sorted(lambdas, reverse=True) and len(set(lambdas)) == 3 and lambdas[-1] < 0.95


@pytest.mark.parametrize("groups", [[], [measured(torch.tensor([1.0], dtype=torch.float64), [np.array([0.3])])]])
def test_lambda_is_one_while_error_or_noise_is_not_known(groups) -> None:
    """Without siblings there is no variance within groups to measure."""
    one = LambdaController(AdaptiveLambda(bias_weight=1.0))
    one.observe(groups)
    assert one.gae_lambda == 1.0


def test_a_batch_without_groups_lets_nothing_fade() -> None:
    one = LambdaController(AdaptiveLambda(bias_weight=1.0, decay=0.5))
    one.observe([random_measured(1)[0]])
    before = one.state()
    one.observe([])
    assert one.state() == before


def test_a_resume_goes_on_where_it_stopped_and_other_settings_are_an_error() -> None:
    config = AdaptiveLambda(bias_weight=1.0)
    straight, first = LambdaController(config), LambdaController(config)
    for one in (straight, first):
        one.observe([random_measured(1)[0]])
    resumed = LambdaController(config)
    resumed.restore(json.loads(json.dumps(first.state())))
    for one in (straight, resumed):
        one.observe([random_measured(2)[0]])
    assert resumed.gae_lambda == straight.gae_lambda != 1.0 and resumed.state() == straight.state()
    assert math.isfinite(resumed.gae_lambda)
    for name in ("bias_weight", "open_share", "decay"):
        with pytest.raises(CheckpointError, match=name):
            LambdaController(config.model_copy(update={name: 0.123})).restore(first.state())
    with pytest.raises(CheckpointError, match="incomplete"):
        LambdaController(config).restore({"contract": config.model_dump()})
