"""What siblings earned is worth reading where it says something: a measurement, small."""

from __future__ import annotations

import math

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.runtime.build import build, load_base
from tests.integration.command_line import ROOT
from tests.integration.short_runs import trained


def explained(arm: str, steps: int) -> float:
    """Mean explained variance of the last third, each step's before training on it."""
    recipe = load_recipe(str(ROOT / "benchmarks" / "siblings.toml"))
    rows = trained(build(load_base(compose(recipe, arm=arm))), steps)
    last = [row["explained_variance"] for row in rows[-(steps // 3) :]]
    return math.fsum(last) / len(last)


@pytest.mark.slow
def test_siblings_explain_what_a_clean_critic_cannot_know() -> None:
    assert explained("value", 18) < 0.03
    assert explained("siblings", 18) > 0.1
