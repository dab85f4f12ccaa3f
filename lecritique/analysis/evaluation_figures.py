"""The ablation table: arms by endpoint and evaluation set, each against a reference arm.

Evaluations come from training (`run.eval_every`; one score a seed) and from folders of `lecritique eval` (one score a
problem). P problems, R replicates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.bootstrap import Interval, endpoint_interval, paired_interval
from lecritique.analysis.curve_figures import curve_plot, metric_curves, without
from lecritique.analysis.evaluation_records import Evaluated, TrainingScores, training_scores
from lecritique.analysis.figures import SMALL, Plot, Row
from lecritique.analysis.read import Comparison
from lecritique.analysis.summary import arm_endpoint, paired_endpoint
from lecritique.analysis.tables import arm_name, table
from lecritique.analysis.wording import MISSING, clean, number, shortened, signed
from lecritique.numerics.statistics.bootstrap import cluster_draws, percentile_bounds

_RNG_SEED = 2016
_ENDPOINTS = {"reward": "reward, last steps", "explained_variance": "explained variance, last steps"}

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure: each arm's estimate, and its difference from the reference arm where they share seeds."""

    name: str
    title: str
    estimates: Mapping[str, Interval]
    differences: Mapping[str, Interval]


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The table: its columns, and what a reader must know of its evaluations."""

    reference: str
    columns: Sequence[Column]
    notes: Sequence[str]


def ablation(comparison: Comparison, reference: str, folders: Sequence[Evaluated] = ()) -> Ablation:
    """Endpoints, the last evaluation while training, and evaluations in folders, set by set and averaged."""
    columns = [_endpoint_column(comparison, metric, reference) for metric in _ENDPOINTS]
    columns += _training_columns(comparison, reference)
    found, notes = _folder_columns(comparison, reference, folders)
    known = [column for column in [*columns, *found] if _any(column.estimates)]
    return Ablation(reference=reference, columns=known, notes=notes)


def ablation_table(comparison: Comparison, found: Ablation) -> str:
    """The table as HTML; empty text when there is a single arm and no evaluation."""
    if not found.columns or (len(comparison.arms) == 1 and all(c.name in _ENDPOINTS for c in found.columns)):
        return ""
    heads = ["arm", *(escape(clean(column.title)) for column in found.columns)]
    rows = [
        [arm_name(comparison, arm), *(_cell(column, arm, found.reference) for column in found.columns)]
        for arm in comparison.arms
    ]
    return table(heads, rows, numeric=range(1, len(heads)), raw_heads=True)


def ablation_plot(comparison: Comparison, found: Ablation) -> Plot:
    """The table as rows of a CSV; nothing is drawn of it."""
    rows = []
    for column in found.columns:
        for arm in comparison.arms:
            for label, values in (("", column.estimates), (f" minus {found.reference}", column.differences)):
                value = values.get(arm)
                if value is not None and math.isfinite(value.estimate):
                    series = f"{column.title}{label}"
                    rows.append(Row(arm=arm, series=series, x="", y=value.estimate, low=value.low, high=value.high))
    return Plot(
        name="ablation-table",
        title="Ablation table",
        caption=f"Each measure with its 95% interval, and its paired difference from {shortened(found.reference, 40)}.",
        absent="",
        draw=None,
        rows=rows,
    )


def set_plots(comparison: Comparison) -> list[Plot]:
    """Score of each evaluation set while training, where there are several."""
    recorded = training_scores(comparison)
    names = _set_names(recorded)
    if len(names) < 2:
        return []
    found = []
    for number_, name in enumerate(names):
        curves = metric_curves(comparison, lambda run, name=name: _over_steps(recorded, run.arm, run.seed, name))  # type: ignore[misc]
        found.append(
            curve_plot(
                curves,
                name=f"evaluation-set-{number_}",
                title=shortened(name, 40),
                label="avg@K",
                caption="Evaluated while training." + without(comparison, curves),
                absent="",
                dots=True,
                size=SMALL,
            )
        )
    return found


def _endpoint_column(comparison: Comparison, metric: str, reference: str) -> Column:
    return Column(
        name=metric,
        title=_ENDPOINTS[metric],
        estimates={arm: arm_endpoint(comparison, metric, arm) for arm in comparison.arms},
        differences={
            arm: paired_endpoint(comparison, metric, arm, reference) for arm in comparison.arms if arm != reference
        },
    )


def _training_columns(comparison: Comparison, reference: str) -> list[Column]:
    """The last evaluation of each run: intervals over seeds, one number each."""
    recorded = training_scores(comparison)
    names = _set_names(recorded)
    last = {key: scores[max(scores)] for key, scores in recorded.items() if scores}
    if not last:
        return []
    steps = sorted({max(scores) for scores in recorded.values() if scores})
    when = f"after step {steps[0]}" if len(steps) == 1 else f"after steps {steps[0]} to {steps[-1]}"
    columns = [
        _seed_column(comparison, reference, f"{name}, {when}", {k: s.get(name, math.nan) for k, s in last.items()})
        for name in names
    ]
    if len(names) > 1:
        means = {k: float(np.mean([s.get(name, math.nan) for name in names])) for k, s in last.items()}
        columns.append(_seed_column(comparison, reference, f"average of {len(names)} sets, {when}", means))
    return columns


def _seed_column(comparison: Comparison, reference: str, title: str, scores: Mapping[tuple[str, int], float]) -> Column:
    def windows(arm: str) -> list[Floats]:
        return [np.array([scores.get((arm, seed), math.nan)]) for seed in comparison.seeds]

    return Column(
        name=title,
        title=title,
        estimates={arm: endpoint_interval(windows(arm)) for arm in comparison.arms},
        differences={
            arm: paired_interval(windows(arm), windows(reference)) for arm in comparison.arms if arm != reference
        },
    )


def _folder_columns(
    comparison: Comparison, reference: str, folders: Sequence[Evaluated]
) -> tuple[list[Column], list[str]]:
    if not folders:
        return [], []
    names = list(dict.fromkeys(name for one in folders for name in one.scores))
    columns, draws, notes = [], {}, []
    for index, name in enumerate(names):
        described = [one.described[name] for one in folders if name in one.scores]
        settings = {str({k: v for k, v in d.items() if k != "problems"}) for d in described}
        if len(settings) > 1:
            notes.append(f"The evaluations of {shortened(name, 40)} differ in their settings: do not compare them.")
        means = {arm: _problem_means(folders, arm, name) for arm in comparison.arms}
        columns.append(_problem_column(comparison, reference, f"{name}, avg@{described[0].get('k')}", means, index))
        draws[name] = means
    if len(names) > 1:
        from lecritique.analysis.evaluation import average_name  # imports torch

        title = average_name({"sets": {n: next(o.described[n] for o in folders if n in o.scores) for n in names}})
        columns.append(_average_column(comparison, reference, f"average of {title}", list(draws.values())))
    notes += [f"{one.path}: {done} of {planned} problems so far." for one in folders for done, planned in one.missing]
    return columns, notes


def _problem_means(folders: Sequence[Evaluated], arm: str, name: str) -> dict[int, dict[int, float]]:
    """Score of each problem by seed and row."""
    return {one.seed: dict(one.scores[name]) for one in folders if one.arm == arm and name in one.scores}


def _problem_column(
    comparison: Comparison, reference: str, title: str, means: Mapping[str, dict[int, dict[int, float]]], index: int
) -> Column:
    estimates, differences = {}, {}
    for arm in comparison.arms:
        own = _replicated(means[arm], None, index)
        estimates[arm] = _interval([own])
        if arm != reference:
            differences[arm] = _interval([_replicated(means[arm], means[reference], index)])
    return Column(name=title, title=title, estimates=estimates, differences=differences)


def _average_column(
    comparison: Comparison, reference: str, title: str, sets: Sequence[Mapping[str, dict[int, dict[int, float]]]]
) -> Column:
    estimates, differences = {}, {}
    for arm in comparison.arms:
        estimates[arm] = _interval([_replicated(means[arm], None, i) for i, means in enumerate(sets)])
        if arm != reference:
            differences[arm] = _interval([_replicated(means[arm], means[reference], i) for i, means in enumerate(sets)])
    return Column(name=title, title=title, estimates=estimates, differences=differences)


def _replicated(
    own: Mapping[int, Mapping[int, float]], other: Mapping[int, Mapping[int, float]] | None, index: int
) -> tuple[float, Floats, int] | None:
    """Mean over problems (a difference with `other`), its replicates [R] and the seeds; None without a common one.

    Problems are those that all seeds have; a problem counts with its mean over them.
    """
    seeds = [seed for seed in own if other is None or seed in other]
    if not seeds:
        return None
    every = [own[seed] for seed in seeds] + ([] if other is None else [other[seed] for seed in seeds])
    rows = sorted(set.intersection(*(set(scores) for scores in every)))
    if not rows:
        return None
    of_P = np.mean([[own[seed][row] for row in rows] for seed in seeds], axis=0)
    if other is not None:
        of_P = of_P - np.mean([[other[seed][row] for row in rows] for seed in seeds], axis=0)
    draws = cluster_draws(len(rows), seed=_RNG_SEED + index)
    return float(of_P.mean()), of_P[draws].mean(axis=1), len(seeds)


def _interval(sets: Sequence[tuple[float, Floats, int] | None]) -> Interval:
    """Of the sets' mean, each counting the same; NaN when one of them is missing."""
    known = [found for found in sets if found is not None]
    if len(known) < len(sets):
        return Interval(estimate=math.nan, low=math.nan, high=math.nan, seeds=0)
    low, high = percentile_bounds(np.mean([replicates for _, replicates, _ in known], axis=0))
    estimate = float(np.mean([mean for mean, _, _ in known]))
    return Interval(estimate=estimate, low=low, high=high, seeds=min(seeds for _, _, seeds in known))


def _cell(column: Column, arm: str, reference: str) -> str:
    found = column.estimates.get(arm)
    if found is None or not math.isfinite(found.estimate):
        return MISSING
    bounds = f"{number(found.low)} to {number(found.high)}" if math.isfinite(found.low) else "no interval"
    shown = f"<b>{number(found.estimate)}</b><small>{bounds}</small>"
    if arm == reference:
        return f"{shown}<small>the reference</small>"
    difference = column.differences.get(arm)
    if difference is None or not math.isfinite(difference.estimate):
        return f"{shown}<small>cannot be paired</small>"
    ends = f" ({signed(difference.low)} to {signed(difference.high)})" if math.isfinite(difference.low) else ""
    return f"{shown}<small>{signed(difference.estimate)}{ends}</small>"


def _any(estimates: Mapping[str, Interval]) -> bool:
    return any(math.isfinite(found.estimate) for found in estimates.values())


def _set_names(recorded: TrainingScores) -> list[str]:
    return list(dict.fromkeys(name for scores in recorded.values() for sets in scores.values() for name in sets))


def _over_steps(recorded: TrainingScores, arm: str, seed: int, name: str) -> tuple[Floats, Floats] | None:
    points = [(step, sets[name]) for step, sets in sorted(recorded.get((arm, seed), {}).items()) if name in sets]
    if not points:
        return None
    x, y = np.array(points, dtype=np.float64).T
    return x, y


def described_method(found: Ablation) -> str:
    """How to read the table, in one paragraph."""
    by_problem = any("avg@" in column.title for column in found.columns)
    said = (
        f"Below each number its 95% interval, and its paired difference from {shortened(found.reference, 40)} over the "
        "seeds both have. Endpoints and evaluations while training vary over seeds and steps; no significance is "
        "claimed from fewer than three seeds."
    )
    return said + (
        " Intervals of folders of lecritique eval resample problems alone and say nothing of other seeds."
        if by_problem
        else ""
    )
