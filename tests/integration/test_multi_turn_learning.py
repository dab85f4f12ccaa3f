"""On multi-turn Sudoku a critic that reads the solved grid explains more of the return than one that does not."""

from __future__ import annotations

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.runtime.build import build, load_base
from lecritique.runtime.synchronous import train_step

STEPS = 90


def explained_variance(arm: str) -> float:
    """Mean EV of the last third of a run."""
    config = compose(load_recipe("demo-multi-turn"), arm=arm, overrides=[f"run.steps={STEPS}"])
    parts = build(load_base(config))
    measured = [train_step(parts, step).metrics["explained_variance"] for step in range(STEPS)]
    parts.engine.close()
    last = measured[-(STEPS // 3) :]
    return sum(last) / len(last)


@pytest.mark.slow
def test_the_solved_grid_raises_the_critic_s_explained_variance():
    gain = explained_variance("pvf") - explained_variance("value")
    assert gain >= 0.1, f"EV(pvf) - EV(value) = {gain:.3f}"
