"""A run whose micro-batches are packed is the run with padded ones, up to rounding."""

from __future__ import annotations

import math

import pytest

from tests.integration.short_runs import small_parts, trained, without_clocks


@pytest.mark.parametrize("arm", ["tether", "vaspo", "opsd"])
def test_packed_steps_equal_padded_steps(arm: str) -> None:
    exact = ("runtime.dtype=float64", "runtime.loop=synchronous", "task.form=multi_turn")
    padded, packed = (
        without_clocks(trained(small_parts(*exact, f"runtime.layout={layout}", arm=arm)))
        for layout in ("padded", "packed")
    )
    for one, other in zip(padded, packed, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if value is None:
                assert other[name] is None
            else:
                assert math.isclose(other[name], value, rel_tol=1e-5, abs_tol=1e-8), name
    assert padded[1]["policy_grad_norm"] > 0
