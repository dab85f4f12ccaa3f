"""What is not finite in one run and not alike in the other is infinitely far."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.actors.run_distance import apart

NAN = math.nan


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ([1.0, 4.0], [1.0, 3.0], 0.25),
        ([0.0], [1e-6], 1e-3),  # over the least size
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([1.0, NAN], [2.0, NAN], 0.5),
        ([1.0, NAN], [1.0, 2.0], math.inf),
        ([1.0, 2.0], [1.0, NAN], math.inf),
        ([math.inf], [math.inf], 0.0),
        ([math.inf], [-math.inf], math.inf),
        ([math.inf, 1.0], [math.inf, 2.0], 0.5),
    ],
)
def test_how_far_two_tensors_are_apart(one: list[float], other: list[float], distance: float) -> None:
    assert apart(torch.tensor(one), torch.tensor(other), least=1e-3) == pytest.approx(distance)
