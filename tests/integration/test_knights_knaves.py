"""Knights and Knaves in runs: two steps with each context, and what the answer is worth to a critic."""

from __future__ import annotations

import math

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.runtime.build import build, load_base
from lecritique.runtime.synchronous import train_step
from tests.integration.short_runs import trained

SMALL = (
    "runtime.loop=synchronous",
    "run.steps=2",
    "task.rows=16",
    "rollout.batch_size=8",
    "critic.replay.refill_size=8",
    "critic.warmup_updates=0",
)
STEPS = 70


@pytest.mark.parametrize(
    ("content", "placement"),
    [("answer", "system_prefix"), ("solution", "user_suffix"), ("both", "system_prefix"), ("both", "user_suffix")],
)
def test_two_steps_with_the_context_on(content, placement):
    context = f'critic.context={{type="reference", content="{content}", placement="{placement}"}}'
    parts = build(load_base(compose(load_recipe("demo-knights"), arm="pvf", overrides=[*SMALL, context])))
    rows = trained(parts)
    assert len(rows) == 2
    assert all(math.isfinite(row["value_loss"]) for row in rows)


@pytest.mark.parametrize("arm", ["value", "tether"])
def test_two_steps_of_the_other_arms(arm):
    assert len(trained(build(load_base(compose(load_recipe("demo-knights"), arm=arm, overrides=SMALL))))) == 2


def explained_variance(arm: str) -> float:
    """Mean EV of the last third of a run of the demo."""
    config = compose(load_recipe("demo-knights"), arm=arm, overrides=[f"run.steps={STEPS}", "runtime.loop=synchronous"])
    parts = build(load_base(config))
    measured = [train_step(parts, step).metrics["explained_variance"] for step in range(STEPS)]
    parts.engine.close()
    last = measured[-(STEPS // 3) :]
    return sum(last) / len(last)


@pytest.mark.slow
def test_the_answer_raises_the_critic_s_explained_variance():
    gain = explained_variance("pvf") - explained_variance("value")
    assert gain >= 0.2, f"EV(pvf) - EV(value) = {gain:.3f}"
