"""Intervals of held-out EV: of the pooled moments, over problems, with the same draws for all variants."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lecritique.analysis.pretraining import explained_variance_intervals, pretraining_summary
from lecritique.config.losses import Mse
from lecritique.core.metrics import ValueFit
from lecritique.core.moments import Moments
from lecritique.models.value_model import ValueModel
from lecritique.runtime.pretraining import Fitted, Point


class Backbone(torch.nn.Linear):
    """Just enough for a value model."""

    class config:  # noqa: N801
        @staticmethod
        def get_text_config():
            return type("Text", (), {"hidden_size": 2})


def fitted(values: list[list[float]], returns: list[list[float]]) -> Fitted:
    fits = tuple(
        ValueFit(error=Moments.of(np.array(g) - np.array(v)), target=Moments.of(g))
        for v, g in zip(values, returns, strict=True)
    )
    point = Point(
        update=0, explained_variance=0.5, bias=0.0, mse=0.1, loss=0.1, train_loss=math.nan, seconds=0.0
    )  # fmt: skip
    model = ValueModel(Backbone(2, 2), Mse(), seed=0)
    return Fitted(model=model, curve=(point,), fits=fits, problems=tuple(range(len(fits))), seconds=0.0)


RETURNS = [[1.0, 1.0], [0.0], [1.0, 0.0, 0.0], [0.0, 0.0]]
GUESSES = [[0.9, 0.7], [0.2], [0.6, 0.1, 0.4], [0.3, 0.0]]


def test_the_estimate_is_ev_over_all_tokens():
    found = explained_variance_intervals({"clean": fitted(GUESSES, RETURNS)})["clean"]
    values, returns = np.concatenate(GUESSES), np.concatenate(RETURNS)
    assert found.estimate == pytest.approx(1 - np.var(returns - values) / np.var(returns), abs=1e-12)
    assert found.units == 4 and found.low <= found.estimate <= found.high


def test_the_gain_is_a_difference_on_the_same_draws():
    perfect, same = fitted(RETURNS, RETURNS), fitted(GUESSES, RETURNS)
    equal = explained_variance_intervals({"clean": same, "privileged": same})["gain"]
    assert (equal.estimate, equal.low, equal.high) == (0.0, 0.0, 0.0)
    both = explained_variance_intervals({"clean": same, "privileged": perfect})
    assert both["privileged"].estimate == pytest.approx(1.0, abs=1e-12)
    assert both["gain"].low == pytest.approx(1.0 - both["clean"].high, abs=1e-9)


def test_what_is_undefined_is_null():
    constant = fitted([[0.5], [0.5]], [[1.0], [1.0]])
    summary = pretraining_summary({"privileged": constant}, {}, {"rollouts": 2})
    assert summary["variants"]["privileged"]["explained_variance"]["estimate"] is None
    assert summary["variants"]["privileged"]["curve"][0]["train_loss"] is None
    assert "privileged_minus_clean" not in summary
