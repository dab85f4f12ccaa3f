"""What the summary says of arms beside their endpoints: tests over seeds, costs, areas; and the tables of it."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from lecritique.analysis.arm_tests import FEW_SEEDS_NOTE, areas, budget_of, seed_tests, spent
from lecritique.analysis.headline import headline
from lecritique.analysis.read import load_comparison
from lecritique.analysis.summary import comparison_summary, write_summary
from lecritique.analysis.tables import how_arms_were_tested, paired_table, spending_table
from tests.unit.analysis.make_runs import make_comparison, write_metrics


def curve(path: Path, rewards, tokens, *, budget=None, state: str = "finished") -> None:
    """A run with these rewards whose steps sampled so many tokens each."""
    totals = np.cumsum(tokens)
    rows = [
        {
            "step": step,
            "resume": 0,
            "reward": reward,
            "rollouts": 8,
            "rollouts_total": 8 * (step + 1),
            "generated_tokens_total": float(total),
            "flops_total": 1e9 * float(total),
            "seconds_total": 0.5 * (step + 1),
        }
        for step, (reward, total) in enumerate(zip(rewards, totals, strict=True))
    ]
    write_metrics(path, rows)
    config = {"run": {"steps": 99, "seed": 0, "budget": budget or {}}, "estimator": {"type": "mean"}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "status.json").write_text(json.dumps({"state": state, "step": len(rows), "steps": len(rows)}))


def two_arms(folder: Path, *, seeds: int = 3, budget=None, shift: float = 0.1):
    """`slow` makes twice the steps of half the tokens; `fast` earns `shift` more at every token."""
    (folder / "x").mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        rewards = 0.2 + 0.05 * seed + np.linspace(0, 0.3, 12)
        curve(folder / "slow" / f"seed-{seed}", rewards, [50] * 12, budget=budget)
        curve(folder / "fast" / f"seed-{seed}", rewards[1::2] + shift + 0.001 * seed, [100] * 6, budget=budget)
    declared = {"schema": 1, "recipe": "own", "arms": ["slow", "fast"], "seeds": list(range(seeds))}
    (folder / "compare.json").write_text(json.dumps(declared))
    return load_comparison(folder)


def test_tests_of_endpoints_by_hand():
    found = seed_tests([0.5, 0.7, 0.6, None], [0.4, 0.5, 0.3, 0.1])
    d = (0.1, 0.2, 0.3)
    assert found["permutation_p"] == 0.25 and found["permutation_exact"] and found["permutation_standard_error"] == 0
    assert found["effect_dz"] == pytest.approx(np.mean(d) / np.std(d, ddof=1))
    assert found["difference_in_sds"] == pytest.approx(0.2 / 0.1)
    wins = found["probability_of_improvement"]
    assert wins["value"] == pytest.approx(8.5 / 9) and wins["low"] <= wins["value"] <= wins["high"]
    assert found["note"] is None


@pytest.mark.parametrize("seeds", [0, 1, 2])
def test_fewer_than_three_seeds_claim_nothing(seeds):
    found = seed_tests([0.9, 0.8][:seeds], [0.1, 0.2][:seeds])
    assert found["note"] == FEW_SEEDS_NOTE and found["permutation_p"] is None and found["permutation_exact"] is None
    assert (found["effect_dz"] is None, found["difference_in_sds"] is None) == (seeds < 2, seeds < 2)
    wins = found["probability_of_improvement"]
    assert wins["low"] is wins["high"] is None and (wins["value"] is None) == (seeds == 0)


def test_what_a_broken_run_wrote_breaks_no_summary():
    found = seed_tests([1e308, 0.5, 0.6, 0.7], [-1e308, 0.4, 0.5, 0.5])
    assert found["permutation_p"] == 0.25 and json.dumps(found, allow_nan=False)


def test_the_area_ends_where_the_budget_does_and_does_not_see_the_number_of_steps(tmp_path):
    comparison = two_arms(tmp_path, budget={"rollouts": 0, "tokens": 500, "flops": 0.0, "seconds": 0.0})
    assert budget_of(comparison) == ("tokens", 500.0)
    found = areas(comparison)
    assert (found["unit"], found["until"]) == ("tokens", 500.0)
    rewards = 0.2 + np.linspace(0, 0.3, 12)
    assert found["arms"]["slow"][0] == pytest.approx(rewards[:10].mean())
    assert found["arms"]["fast"][0] == pytest.approx(rewards[1:10:2].mean() + 0.1)
    (pair,) = found["paired"]
    assert (pair["a"], pair["b"], pair["seeds"]) == ("slow", "fast", 3) and pair["permutation_p"] == 0.25
    differences = [a - b for a, b in zip(found["arms"]["slow"], found["arms"]["fast"], strict=True)]
    assert pair["difference"] == pytest.approx(np.mean(differences)) and pair["low"] <= pair["difference"]
    # Of different length by design: nobody is warned that the endpoints are not of the same steps.
    assert not any("differ in length" in caution for caution in headline(comparison).cautions)
    two_arms(tmp_path)
    assert any("differ in length" in caution for caution in headline(load_comparison(tmp_path)).cautions)


def test_without_a_budget_the_axis_is_rollouts_up_to_where_the_first_finished_run_ends(tmp_path):
    comparison = two_arms(tmp_path)
    found = areas(comparison)
    assert budget_of(comparison) is None and (found["unit"], found["until"]) == ("rollouts", 48.0)
    # A run that goes on still shortens nobody's axis, and has no area before it gets there.
    curve(tmp_path / "fast" / "seed-0", [0.1, 0.2], [100, 100], state="running")
    found = areas(load_comparison(tmp_path))
    assert found["until"] == 48.0 and found["arms"]["fast"][0] is None and found["arms"]["fast"][1] is not None


def test_runs_of_earlier_versions_have_an_area_over_rollouts(tmp_path):
    comparison = load_comparison(make_comparison(tmp_path / "old", seeds=(0, 1), steps=9))
    found, costs = areas(comparison), spent(comparison)
    assert found["until"] == 9 * 128 and all(value is not None for value in found["arms"]["pvf"])
    run = comparison.runs["pvf", 0]
    assert found["arms"]["pvf"][0] == pytest.approx(run.series("reward").mean())
    assert costs["pvf"] == {unit: [None, None] for unit in ("rollouts", "tokens", "flops", "seconds")}


def test_all_four_costs_of_every_arm_are_reported(tmp_path):
    summary = comparison_summary(two_arms(tmp_path))
    assert summary["spent"]["fast"] == {
        "rollouts": [48.0] * 3, "tokens": [600.0] * 3, "flops": [6e11] * 3, "seconds": [3.0] * 3,
    }  # fmt: skip
    assert summary["spent"]["slow"]["rollouts"] == [96.0] * 3 and summary["budget"] is None


def test_the_summary_keeps_its_first_keys_and_is_the_same_again(tmp_path):
    folder = make_comparison(tmp_path / "c", seeds=(0, 1, 2), steps=12)
    first = write_summary(folder).read_bytes()
    assert write_summary(folder).read_bytes() == first
    summary = json.loads(first)
    assert list(summary)[:7] == ["schema", "recipe", "base_reward", "seeds", "arms", "paired", "method"]
    assert set(summary["method"]) >= {"name", "replicates", "level", "window_steps", "block_steps", "note", "tests"}
    for entry in summary["paired"]:
        assert list(entry)[:7] == ["metric", "a", "b", "difference", "low", "high", "seeds"]
    assert len(summary["area"]["paired"]) == len(list(itertools.combinations(summary["arms"], 2)))


@pytest.mark.parametrize(
    "section",
    [[], "x", {"tokens": True}, {"tokens": -5}, {"tokens": "9"}, {"tokens": 10**400}, {"tokens": 3, "seconds": 4}],
)
def test_a_strange_budget_is_none_or_read_as_what_it_is(tmp_path, section):
    found = budget_of(two_arms(tmp_path, budget=section))
    assert found == (("tokens", 1.0) if section == {"tokens": True} else None)


@pytest.mark.parametrize("totals", [[5.0, 4.0], [math.nan, 2.0], [-1.0, 3.0], [0.0, 0.0]])
def test_totals_that_fall_or_are_missing_give_no_area(tmp_path, totals):
    two_arms(tmp_path)
    rows = [
        {"step": i, "reward": 0.5, "rollouts": -1.0, "rollouts_total": None if math.isnan(total) else total}
        for i, total in enumerate(totals)
    ]
    write_metrics(tmp_path / "fast" / "seed-0", rows)
    found = areas(load_comparison(tmp_path))
    assert found["arms"]["fast"][0] is None and json.dumps(found, allow_nan=False)


def test_the_tables_show_tests_and_costs(tmp_path):
    comparison = two_arms(tmp_path, budget={"tokens": 500})
    summary = comparison_summary(comparison)
    paired, costs = paired_table(comparison, summary), spending_table(comparison, summary)
    assert ">0.250<" in paired and all(f">{head}<" in paired for head in ("p", "d_z", "in sds", "wins"))
    assert "mean reward over tokens up to 500" in costs and ">6.00e+11<" in costs and ">600<" in costs
    assert "not corrected for the 1 pair" in how_arms_were_tested(summary)
    lone = comparison_summary(two_arms(tmp_path / "lone", seeds=1))
    assert "%" in paired_table(load_comparison(tmp_path / "lone"), lone)  # wins, and dashes for the rest


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, 1e200])
def test_what_a_broken_run_wrote_is_no_pair_whichever_arm_it_is(broken):
    others = [0.4, 0.5, 0.3]
    for a, b in (([broken, 0.7, 0.6], others), (others, [broken, 0.7, 0.6])):
        found = seed_tests(a, b)
        assert found["note"] == FEW_SEEDS_NOTE
        assert found["difference_in_sds"] == seed_tests(a[1:], b[1:])["difference_in_sds"] is not None
