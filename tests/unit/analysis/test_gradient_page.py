"""The page of a gradient study: its sentence, its pairs, and what it does with what is undefined."""

from __future__ import annotations

import numpy as np
import pytest

from lecritique.analysis.gradient_page import gradients_html, headline
from lecritique.analysis.variance_ratios import KINDS, NONE, NONE_CENTRED, Trace, contrasts, variance_ratios

UNKNOWN = {"estimate": None, "low": None, "high": None}
NORMS = ("high", "low", "optimal_constant", "size_at_optimum", "mean_return", "size_at_mean")


def study(traces: dict[str, float], *, spread: float = 0.0, hostile: str = "") -> dict:
    """A study whose resampled traces move apart by a relative `spread`, each estimator its own way."""
    rng = np.random.default_rng(0)
    made = {
        name: dict.fromkeys(
            KINDS, Trace(estimate=value, replicates_R=value * np.exp(spread * rng.normal(size=200)), problems=9)
        )
        for name, value in traces.items()
    }
    return {
        "origin": f"recipe demo{hostile}", "problems": 9, "rollouts": 36, "parameters": 1000, "numbers_kept": 1000,
        "relative_error_of_a_norm": 0.0, "replicates": 200, "estimators": variance_ratios(made),
        "contrasts": contrasts(made), "critics": [name for name in traces if name in ("value", "pvf")],
        "score_norms": {**dict.fromkeys(NORMS, UNKNOWN), "trajectories": {"high": 3, "low": 33}}, "tether": None,
    }  # fmt: skip


TRACES = {NONE: 1.0, NONE_CENTRED: 6.0, "mean": 3.0, "value": 4.0, "pvf": 2.0}


@pytest.mark.parametrize(
    ("traces", "spread", "said"),
    [
        (TRACES, 0.01, "Of the baselines pvf leaves the least variance in the gradient"),
        (TRACES, 0.5, "Of the baselines pvf leaves the least variance in the gradient, but its lead over mean is not "),
        (TRACES | {"value": 1.0}, 0.01, "Of the baselines value leaves the least variance in the gradient"),
        (dict.fromkeys(TRACES, 0.0), 0.0, "Rewards did not vary"),
    ],
)
def test_the_headline_claims_what_the_paired_interval_allows(traces, spread, said):
    found = headline(study(traces, spread=spread))
    assert found.startswith(said) and ("not settled" in found) == ("not" in said and "Rewards" not in said)


def test_the_page_has_figures_and_pairs_and_no_foreign_markup():
    html = gradients_html(study(TRACES, spread=0.1, hostile="<img src=x>"))
    assert 'id="gradients-trajectory-' in html and 'id="gradients-group-' in html
    assert "<td>pvf over value</td>" in html and "<td>value over none, rewards centred</td>" in html
    assert "<img" not in html and "recipe demo&lt;img" in html


def test_without_variance_the_page_says_so_in_place_of_figures():
    html = gradients_html(study(dict.fromkeys(TRACES, 0.0)))
    assert 'id="gradients-' not in html and html.count("there is nothing to compare with") == 2
