"""Moments and fits merge exactly, in any split and order."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lecritique.core.metrics import CATALOG, Last, Max, Mean, Quantile, ValueFit, null_if_undefined
from lecritique.core.moments import Moments

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60)


def split(values: list[float], cuts: list[int]) -> list[list[float]]:
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    return [values[a:b] for a, b in itertools.pairwise(edges)]


def value_fit(values: list[float], targets: list[float]) -> ValueFit:
    error = np.array(targets) - np.array(values)
    return ValueFit(error=Moments.of(error), target=Moments.of(targets))


@given(NUMBERS, st.lists(st.integers(0, 60), max_size=6), st.randoms(use_true_random=False))
def test_moments_merge_to_those_of_the_union_in_any_split_and_order(values, cuts, rng):
    parts = split(values, cuts)
    rng.shuffle(parts)
    merged = Moments()
    for part in parts:
        merged = merged.merge(Moments.of(part))
    assert merged.count == len(values)
    assert merged.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert merged.variance == pytest.approx(np.var(values), abs=1e-6)


def test_moments_keep_small_variances_on_large_means():
    values = 1e8 + np.array([0.0, 1.0, 2.0, 3.0])
    merged = Moments.of(values[:1]).merge(Moments.of(values[1:]))
    assert merged.variance == pytest.approx(1.25, rel=1e-9)


def test_moments_of_nothing():
    assert Moments.of([]) == Moments() and Moments().merge(Moments()) == Moments()
    assert Moments().merge(Moments.of([2.0])) == Moments(1, 2.0, 0.0)
    assert math.isnan(Moments().variance)


def test_explained_variance_is_pooled_not_averaged():
    # Known fault 13.
    first, second = value_fit([0.8, 0.3], [1, 0]), value_fit([0.6, 0.9, 0.5, 0.6], [1, 1, 1, 0])
    assert first.merge(second).value() == pytest.approx(0.32875, abs=1e-12)
    assert (first.value() + second.value()) / 2 != pytest.approx(0.32875, abs=0.01)


def test_a_constant_offset_shows_in_bias_and_error_only():
    fit = value_fit([5.0, 6.0, 5.0, 6.0], [0.0, 1.0, 0.0, 1.0])
    assert fit.value() == 1.0
    assert fit.bias == 5.0
    assert fit.mse == 25.0


def test_a_bad_fit_stays_negative():
    assert value_fit([1.0, 0.0], [0.0, 1.0]).value() == -3.0


@pytest.mark.parametrize("targets", [[], [1.0], [0.5, 0.5, 0.5], [0.0, 1e-7]])
def test_explained_variance_of_constant_targets_is_undefined(targets):
    assert math.isnan(value_fit([0.3] * len(targets), targets).value())


def test_bias_and_error_of_nothing_are_undefined():
    assert math.isnan(ValueFit().bias) and math.isnan(ValueFit().mse)


@given(NUMBERS, st.lists(st.integers(0, 60), max_size=4))
def test_every_metric_merges_to_that_of_the_union(values, cuts):
    mean, largest, quantile, last = Mean(), Max(), Quantile(0.9), Last()
    for part in split(values, cuts):
        mean = mean.merge(Mean(math.fsum(part), len(part)))
        largest = largest.merge(Max(max(part, default=-math.inf)))
        quantile = quantile.merge(Quantile(0.9, tuple(part)))
        last = last.merge(Last(part[-1])) if part else last
    assert mean.value() == pytest.approx(np.mean(values), abs=1e-9)
    assert largest.value() == max(values)
    assert quantile.value() == pytest.approx(np.quantile(values, 0.9), abs=1e-9)
    assert last.value() == values[-1]


@pytest.mark.parametrize("metric", [Mean(), Max(), Last(), Quantile(0.5), ValueFit()])
def test_a_metric_of_nothing_is_undefined(metric):
    assert math.isnan(metric.value())


def test_quantiles_of_different_order_do_not_merge():
    with pytest.raises(ValueError, match=r"0\.5 and the 0\.9 quantile"):
        Quantile(0.5).merge(Quantile(0.9))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_undefined_becomes_null(value):
    assert null_if_undefined(value) is None


def test_numbers_stay_numbers():
    assert null_if_undefined(np.float32(0.5)) == 0.5 and type(null_if_undefined(np.float32(0.5))) is float


def test_the_catalog_has_no_duplicate_meaning():
    texts = [spec.text for spec in CATALOG.values()]
    assert len(texts) == len(set(texts))
