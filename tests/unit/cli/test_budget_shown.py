"""How a budget and what was spent are shown."""

from __future__ import annotations

import pytest

from lecritique.cli.compare import spending_table
from lecritique.cli.describe import arithmetic
from lecritique.cli.progress import TrainProgress, spent_share
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import Facts, resolve


def row(tokens: float, rollouts: float = 8.0) -> dict[str, float]:
    return {"reward": 0.5, "tokens_per_second": 10.0, "generated_tokens_total": tokens, "rollouts_total": rollouts}


def test_the_share_is_that_of_the_nearest_limit():
    assert spent_share(row(50.0), {}) is None
    assert spent_share(row(50.0), {"tokens": 200.0, "rollouts": 80.0}) == 0.25
    assert spent_share({}, {"tokens": 200.0}) == 0.0  # a row of an earlier version


def test_progress_of_a_budget_tells_every_twentieth_of_it(capsys):
    with TrainProgress("mean", 100_000, limits={"tokens": 1000.0}) as progress:
        for step in range(100):
            progress.step(step, row(10.0 * (step + 1)))
    lines = capsys.readouterr().out.splitlines()
    assert 18 <= len(lines) <= 24
    assert lines[0].startswith("mean  step 1/100000  1% of the budget  reward 0.500")
    assert lines[-1].startswith("mean  step 100/100000  100% of the budget") and lines[-1].endswith("0:00 left")


def test_a_plan_names_the_budget():
    config = compose(load_recipe("demo"), arm="mean", overrides=["run.budget.tokens=2e6", "run.budget.seconds=90"])
    lines = list(arithmetic(resolve(config, Facts(device="cpu", context_length=128, reward_range=(0.0, 1.0)))))
    assert any(line.startswith("Budget: ") and "2,000,000 tokens or 90 seconds" in line for line in lines)


@pytest.mark.parametrize("known", [True, False])
def test_the_table_of_costs(known):
    spent = {"rollouts": [8.0, 10.0], "tokens": [1000.0, 3000.0], "flops": [1e12, None], "seconds": [1.0, 2.0]}
    none = {unit: [None, None] for unit in spent}
    summary = {"spent": {"mean": spent if known else none}, "area": {"unit": "tokens", "arms": {"mean": [0.5, None]}}}
    cells = [next(iter(column.cells)) for column in spending_table(summary).columns]
    assert cells == (["mean", "9", "2,000", "1.00e+12", "1.5", "0.500"] if known else ["mean", *"----", "0.500"])
