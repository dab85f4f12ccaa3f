"""Curves over seeds: means, bands, other axes, thinning; and bars with differences from a reference arm."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lecritique.analysis.arm_style import arm_colour, arm_dash, arm_marker, swatch
from lecritique.analysis.bar_figures import difference_bars, endpoint_bars
from lecritique.analysis.curve_figures import STEPS, XAxis, _thinned, curve_plot, metric_curves, smoothed, without
from lecritique.analysis.dynamics_figures import policy_dynamics
from lecritique.analysis.figures import tick_text
from lecritique.analysis.read import load_comparison
from lecritique.analysis.reward_figures import budget_plots
from tests.unit.analysis.make_runs import make_comparison, write_metrics

NONE = {"name": "x", "title": "x", "label": "x", "caption": "x", "absent": "x"}


def comparison_of(tmp_path, metrics):
    """`metrics` maps (arm, seed) to the rows of its run."""
    arms = {arm: {} for arm, _ in metrics}
    path = make_comparison(tmp_path, arms=arms, seeds=tuple(dict.fromkeys(seed for _, seed in metrics)), steps=1)
    for (arm, seed), rows in metrics.items():
        write_metrics(path / arm / f"seed-{seed}", [{"step": t, **row} for t, row in enumerate(rows)])
    return load_comparison(path)


def rewards(*values, **more):
    return [{"reward": value, **{name: column[t] for name, column in more.items()}} for t, value in enumerate(values)]


def test_the_mean_and_the_band_are_those_of_the_seeds_that_have_the_step(tmp_path):
    found = comparison_of(tmp_path, {("a", 0): rewards(0.0, 0.2, None), ("a", 1): rewards(1.0, 0.4, 0.6)})
    (curve,) = metric_curves(found, "reward")
    np.testing.assert_allclose(curve.x, [0, 1, 2])
    np.testing.assert_allclose(curve.y, [0.5, 0.3, 0.6])
    np.testing.assert_allclose(curve.low, [0.0, 0.2, 0.6])
    np.testing.assert_allclose(curve.high, [1.0, 0.4, 0.6])
    rows = curve_plot([curve], **NONE).rows
    assert [(r.x, r.y) for r in rows if r.seed == 1] == [(0, 1.0), (1, 0.4), (2, 0.6)]
    assert [(r.y, r.low, r.high) for r in rows if r.seed is None] == [
        (0.5, 0.0, 1.0), (pytest.approx(0.3), 0.2, 0.4), (0.6, 0.6, 0.6),
    ]  # fmt: skip


def test_over_other_axes_seeds_are_compared_at_the_same_place(tmp_path):
    found = comparison_of(
        tmp_path,
        {
            ("a", 0): rewards(0.0, 1.0, rollouts_total=(10, 20)),
            ("a", 1): rewards(0.0, 1.0, 1.0, rollouts_total=(10, 30, 50)),
        },
    )
    (curve,) = metric_curves(found, "reward", XAxis(label="r", of=lambda run: run.series("rollouts_total")))
    np.testing.assert_allclose(curve.x, [10, 15, 20])
    np.testing.assert_allclose(curve.y, [0.0, (0.5 + 0.25) / 2, (1.0 + 0.5) / 2])
    np.testing.assert_allclose(curve.low, [0.0, 0.25, 0.5])


def test_costs_are_totals_where_recorded_and_sums_of_steps_elsewhere(tmp_path):
    steps = {"rollouts": (4, 4), "rollouts_failed": (1, 0), "response_tokens": (10.0, 20.0), "seconds": (1.0, 2.0)}
    found = comparison_of(tmp_path, {("a", 0): rewards(0.0, 1.0, **steps)})
    x = {plot.name: [row.x for row in plot.rows if row.seed is None] for plot in budget_plots(found)}
    assert x == {"reward-by-rollouts": [4, 8], "reward-by-tokens": [30, 110], "reward-by-seconds": [1, 3]}
    totals = {"rollouts_total": (5, 9), "generated_tokens_total": (70, 150), "flops_total": (1e9, 2e9)}
    found = comparison_of(
        tmp_path / "b", {("a", 0): rewards(0.0, 1.0, **steps, **totals, seconds_total=(600.0, 7200.0))}
    )
    plots = {plot.name: plot for plot in budget_plots(found)}
    x = {name: [row.x for row in plot.rows if row.seed is None] for name, plot in plots.items()}
    assert (
        x["reward-by-rollouts"] == [5, 9] and x["reward-by-tokens"] == [70, 150] and x["reward-by-flops"] == [1e9, 2e9]
    )
    assert x["reward-by-seconds"] == [10, 120] and plots["reward-by-seconds"].x_label == "minutes"


def test_what_is_measured_now_and_then_is_joined_as_it_is(tmp_path):
    rows = [{"reward": 0.1, **({"evaluation_score": t / 100} if t % 10 == 9 else {})} for t in range(90)]
    (curve,) = metric_curves(comparison_of(tmp_path, {("a", 0): rows}), "evaluation_score")
    np.testing.assert_allclose(curve.x, np.arange(9, 90, 10))
    np.testing.assert_allclose(curve.y, curve.x / 100)


def test_last_measurements_at_steps_of_their_own_are_one_point_and_no_trend(tmp_path):
    def measured(steps, score):
        return [{"reward": 0.0, "evaluation_score": None} for _ in range(steps)] + [
            {"reward": 0.0, "evaluation_score": score}
        ]

    found = comparison_of(tmp_path, {("a", 0): measured(4, 0.3), ("a", 1): measured(6, 0.1)})
    (curve,) = metric_curves(found, "evaluation_score")
    assert (list(curve.x), list(curve.low), list(curve.high)) == ([5.0], [0.1], [0.3])
    assert curve.y == pytest.approx([0.2])


def test_long_curves_are_averages_and_their_csv_keeps_what_was_averaged(tmp_path):
    values = np.random.default_rng(0).random(400)
    (curve,) = metric_curves(comparison_of(tmp_path, {("a", 0): rewards(*values.tolist())}), "reward")
    np.testing.assert_allclose(curve.y, smoothed(values, 21))
    np.testing.assert_allclose([r.unsmoothed for r in curve_plot([curve], **NONE).rows if r.seed is None], values)
    assert len(curve_plot([curve], **NONE).rows) == 800
    x, y = _thinned(curve.x, curve.y)
    assert len(x) <= 241 and x[0] == 0 and x[-1] == 399 and y[-1] == curve.y[-1]


def test_arms_without_a_metric_have_no_curve_and_are_named(tmp_path):
    found = comparison_of(tmp_path, {("mean", 0): rewards(0.1), ("pvf", 0): rewards(0.1, explained_variance=(0.5,))})
    curves = metric_curves(found, "explained_variance", STEPS)
    assert [curve.arm for curve in curves] == ["pvf"] and without(found, curves) == " Not recorded by mean."
    assert without(found, metric_curves(found, "reward")) == "" and metric_curves(found, "rho") == []


def test_a_metric_that_never_moved_is_said_and_not_drawn(tmp_path):
    rows = [{"reward": 0.1, "dropped_fraction": 0.0, "policy_grad_norm": 1.0 + t} for t in range(3)]
    found = policy_dynamics(comparison_of(tmp_path, {("a", 0): rows, ("b", 0): rows}), [])
    assert [plot.name for plot in found.plots] == ["policy-grad-norm"] and list(found.still) == [("Clip fraction", 0.0)]


def test_differences_are_paired_by_seed(tmp_path):
    found = comparison_of(
        tmp_path,
        {
            ("a", 0): rewards(0.1),
            ("a", 1): rewards(0.5),
            ("b", 0): rewards(0.2),
            ("b", 1): rewards(0.7),
            ("c", 0): rewards(0.0),
            ("c", 1): rewards(None),
        },
    )
    b, c = difference_bars(found, "reward", "a")
    assert b.seeds == pytest.approx({0: 0.1, 1: 0.2}) and b.found.estimate == pytest.approx(0.15)
    assert c.seeds == pytest.approx({0: -0.1}) and c.found.seeds == 1
    assert difference_bars(found, "explained_variance", "a") == [] and endpoint_bars(found, "rho") == []


def test_no_two_arms_of_a_large_comparison_look_alike():
    looks = {(arm_colour(i), repr(arm_dash(i)), arm_marker(i)) for i in range(35)}
    assert len(looks) == 35 and len({swatch(i) for i in range(35)}) == 35


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.25, "\u22120.25"), (1500.0, "1500"), (25_000.0, "25k"), (2.5e6, "2.5M"), (3e14, "300T"),
        (2e-5, "2e\u22125"), (1e30, "1e+30"),
    ],
)  # fmt: skip
def test_ticks_are_short(value, text):
    assert tick_text(value) == text


def test_nan_everywhere_draws_nothing(tmp_path):
    found = comparison_of(tmp_path, {("a", 0): rewards(math.nan, math.nan)})
    plot = curve_plot(metric_curves(found, "reward"), **NONE)
    assert plot.draw is None and plot.rows == [] and plot.svg() is None


def test_curves_that_span_more_than_a_number_can_hold_are_drawn(tmp_path):
    found = comparison_of(tmp_path, {("a", 0): rewards(1.7e308, -1.7e308, 0.2)})
    drawn = curve_plot(metric_curves(found, "reward"), **NONE, base=-1.7e308).svg()
    assert drawn is not None and drawn.startswith("<svg")
