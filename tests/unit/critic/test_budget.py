"""Updates owed a policy step: even, without drift, and the same after a resume."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lecritique.critic.budget import UpdateBudget


@pytest.mark.parametrize(
    ("rate", "owed"),
    [
        (0.0, [0, 0, 0, 0, 0, 0]),
        (0.5, [0, 1, 0, 1, 0, 1]),
        (1.0, [1, 1, 1, 1, 1, 1]),
        (1.5, [1, 2, 1, 2, 1, 2]),
        (2.0, [2, 2, 2, 2, 2, 2]),
        (1 / 3, [0, 0, 1, 0, 0, 1]),
    ],
)
def test_what_each_step_owes(rate: float, owed: list[int]) -> None:
    budget = UpdateBudget(rate)
    assert [budget.due() for _ in range(6)] == owed


@given(st.integers(0, 400), st.integers(1, 300))
def test_decimal_rates_do_not_drift(hundredths: int, steps: int) -> None:
    budget = UpdateBudget(hundredths / 100)
    assert sum(budget.due() for _ in range(steps)) == math.floor(Fraction(hundredths, 100) * steps)


def test_a_resume_goes_on_with_the_rhythm() -> None:
    straight, first, resumed = UpdateBudget(0.4), UpdateBudget(0.4), UpdateBudget(0.4)
    expected = [straight.due() for _ in range(10)]
    got = [first.due() for _ in range(4)]
    resumed.restore(json.loads(json.dumps(first.state())))
    assert got + [resumed.due() for _ in range(6)] == expected


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="from 0"):
        UpdateBudget(rate)
