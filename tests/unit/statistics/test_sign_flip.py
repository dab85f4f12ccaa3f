"""The paired sign-flip test: by hand, both of its branches against each other, and its level."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lecritique.numerics.statistics import paired_test
from lecritique.numerics.statistics.paired_test import sign_flip_test


def test_by_hand() -> None:
    assert sign_flip_test([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip_test([1.0, 1.0, -1.0]) == 1.0
    assert sign_flip_test([3.0, 2.0, -1.0]) == 4 / 8  # +-4, +-6 of sums 6, 4, 2, 0 and their negatives
    assert sign_flip_test([0.1] * 10) == 2 / 1024


@pytest.mark.parametrize("seed", range(5))
def test_enumeration_against_a_loop(seed: int) -> None:
    d = np.random.default_rng(seed).normal(0.3, 1, 8)
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((1, -1), repeat=8)]
    assert sign_flip_test(d) == sum(x >= abs(d.sum()) - 1e-9 for x in sums) / 256


def test_invariances() -> None:
    d = np.random.default_rng(0).normal(0.4, 1, 9)
    p = sign_flip_test(d)
    assert p == sign_flip_test(-d) == sign_flip_test(1e-7 * d) == sign_flip_test(d[::-1])
    assert p == sign_flip_test(np.append(d, [0.0] * 30))
    assert sign_flip_test([0.0] * 5) == 1.0


def test_drawn_patterns_agree_with_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    d = np.random.default_rng(1).normal(0.5, 1, 12)
    exact = sign_flip_test(d)
    monkeypatch.setattr(paired_test, "_ENUMERATED_PAIRS", 4)
    drawn = sign_flip_test(d)
    assert abs(drawn - exact) < 4 * math.sqrt(exact * (1 - exact) / 20_000)
    assert drawn == sign_flip_test(d) != exact


def test_a_drawn_p_value_is_never_zero() -> None:
    assert sign_flip_test(np.ones(60), flips=99) == 1 / 100


def test_the_level_holds_under_the_null() -> None:
    rng = np.random.default_rng(2)
    rejected = np.mean([sign_flip_test(rng.normal(size=9)) <= 0.05 for _ in range(400)])
    nominal = 25 / 512  # the largest reachable level at or below .05, patterns counted in pairs
    assert abs(rejected - nominal) < 3 * math.sqrt(nominal * (1 - nominal) / 400)


def test_fewer_than_three_pairs_conclude_nothing() -> None:
    assert math.isnan(sign_flip_test([5.0, 5.0])) and math.isnan(sign_flip_test([]))
    assert sign_flip_test([5.0, 5.0, 5.0]) == 0.25


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="finite"):
        sign_flip_test([1.0, math.nan, 2.0])
    with pytest.raises(ValueError, match="flips"):
        sign_flip_test([1.0, 2.0, 2.0], flips=0)
