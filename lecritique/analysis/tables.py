"""Tables of the report: endpoints of every run, paired differences, every metric, and what the configs differ in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from lecritique.analysis.arm_style import ARM_COLOURS, swatch
from lecritique.analysis.arm_tests import area_means, mean_of
from lecritique.analysis.read import Comparison
from lecritique.analysis.summary import endpoint
from lecritique.analysis.wording import MINUS, MISSING, clean, counted, number, percent, signed
from lecritique.core.metrics import CATALOG, MetricSpec

_NOT_DIFFERENCES = frozenset({"run.arm", "run.seed", "run.name", "run.directory"})
ARM_COLOUR_COUNT = len(ARM_COLOURS)  # --arm-0, --arm-1, ... of page.css


def arm_name(comparison: Comparison, arm: str) -> str:
    """The arm's name behind a dot of its colour, or a piece of its line, as HTML."""
    return f'<span class="arm">{swatch(comparison.arms.index(arm))}<span>{escape(clean(arm))}</span></span>'


def endpoint_table(comparison: Comparison, summary: Mapping[str, Any]) -> str:
    """A row an arm: endpoints as means with every seed's value below."""
    heads = ["arm", "estimator", "reward", "gain", "explained variance", "rho", "steps", "state"]
    rows = []
    for arm in comparison.arms:
        entry = summary["arms"][arm]
        runs = [run for run in comparison.runs_of(arm) if run is not None]
        estimators = ", ".join(dict.fromkeys(run.estimator for run in runs)) or MISSING
        cells = [
            arm_name(comparison, arm),
            escape(clean(estimators)),
            *(_with_seeds(entry[key]) for key in ("reward_last", "reward_gain", "explained_variance_last", "rho_last")),
            escape(", ".join(MISSING if n is None else str(n) for n in entry["steps"])),
            escape(clean(_counted(entry["states"]))),
        ]
        rows.append(cells)
    return table(heads, rows, numeric=range(2, 6))


def paired_table(comparison: Comparison, summary: Mapping[str, Any]) -> str:
    """A row for every two arms and metric that can be paired; empty text when there is none."""
    rows = []
    for entry in summary["paired"]:
        if entry["difference"] is None:
            continue
        interval = MISSING
        if entry["low"] is not None and entry["high"] is not None:
            interval = f"{signed(entry['low'])} to {signed(entry['high'])}"
        a, b = arm_name(comparison, entry["a"]), arm_name(comparison, entry["b"])
        label = entry["metric"].replace("_", " ")
        named = [label, f"{a} {MINUS} {b}"]
        rows.append([*named, signed(entry["difference"]), interval, str(entry["seeds"]), *_tests(entry)])
    heads = ["metric", "difference of", "mean", "95% interval", "seeds", "p", "d_z", "in sds", "wins"]
    return table(heads, rows, numeric=range(2, 9)) if rows else ""


def spending_table(comparison: Comparison, summary: Mapping[str, Any]) -> str:
    """A row an arm: what its runs spent, mean over seeds, and the mean reward over that; empty when none says."""
    area, areas = summary["area"], area_means(summary)
    rows = []
    for arm in comparison.arms:
        spent = summary["spent"][arm]
        means = [mean_of(spent[unit]) for unit in ("rollouts", "tokens", "flops", "seconds")]
        if all(mean is None for mean in (*means, areas[arm])):
            continue
        cells = [number(mean, digits) for mean, digits in zip(means, (0, 0, 0, 1), strict=True)]
        rows.append([arm_name(comparison, arm), *cells, _with_seeds(area["arms"][arm])])
    end = "" if area["until"] is None else f" up to {number(area['until'], 0)}"
    heads = ["arm", "rollouts", "tokens", "FLOPs", "seconds", f"mean reward over {area['unit']}{end}"]
    return table(heads, rows, numeric=range(1, 6)) if rows else ""


def how_arms_were_tested(summary: Mapping[str, Any]) -> str:
    """How the numbers of the paired and the spending table were made, in words."""
    tests = summary["method"]["tests"]
    return (
        f"p is that of a two-sided sign-flip test of the seeds' differences, over all patterns up to 16 seeds and "
        f"{tests['flips']:,} drawn ones beyond, from {tests['fewest_seeds']} seeds on; no fewer than six seeds can get "
        f"it below 0.05. It is not corrected for the {counted(tests['pairs'], 'pair')} of arms. d_z is the mean "
        "difference in units of its own spread between seeds, 'in sds' in units of what seeds of one arm differ by; "
        "'wins' is the share of all pairs of runs in which the first arm is ahead. FLOPs are an estimate from "
        "sequence lengths and model size, tokens are those sampled; the mean reward over what was spent is the area "
        "under its curve."
    )


def _tests(entry: Mapping[str, Any]) -> list[str]:
    """Cells of p-value, effect sizes and probability of improvement; a dash where there are too few seeds."""
    wins = entry["probability_of_improvement"]
    bounds = ""
    if wins["low"] is not None:
        bounds = f"<small>{percent(wins['low'])} to {percent(wins['high'])}</small>"
    return [
        number(entry["permutation_p"]),
        number(entry["effect_dz"], 2),
        number(entry["difference_in_sds"], 2),
        MISSING if wins["value"] is None else f"{percent(wins['value'])}{bounds}",
    ]


def metric_table(comparison: Comparison) -> str:
    """Endpoint of every metric that any run wrote, mean over seeds, a column an arm."""
    written = {name for run in comparison.runs.values() for name in run.metrics}
    names = [name for name in CATALOG if name in written] + sorted(written - set(CATALOG))
    rows = []
    for name in names:
        cells = [_metric_head(name, CATALOG.get(name))]
        for arm in comparison.arms:
            ends = [endpoint(run.series(name)) for run in comparison.runs_of(arm) if run is not None]
            whole = all(end is None or end == round(end) for end in ends)
            cells.append(number(_mean(ends), 0 if whole and len(set(ends)) == 1 else 3))
        rows.append(cells)
    heads = ["metric", *(arm_name(comparison, arm) for arm in comparison.arms)]
    columns = range(1, len(comparison.arms) + 1)
    return table(heads, rows, numeric=columns, raw_heads=True) if rows else ""


def config_table(comparison: Comparison) -> str:
    """Keys whose value differs between arms, from the first run of each; empty text when none does."""
    first = {arm: next((run for run in comparison.runs_of(arm) if run is not None), None) for arm in comparison.arms}
    flat = {arm: dict(_flattened(run.config)) for arm, run in first.items() if run is not None}
    keys = dict.fromkeys(key for config in flat.values() for key in config)
    rows = []
    for key in keys:
        values = [config.get(key, MISSING) for config in flat.values()]
        if key not in _NOT_DIFFERENCES and len(set(values)) > 1:
            rows.append([f"<code>{escape(clean(key))}</code>", *(f"<code>{escape(clean(v))}</code>" for v in values)])
    heads = ["key", *(arm_name(comparison, arm) for arm in flat)]
    return table(heads, rows, numeric=(), raw_heads=True) if rows else ""


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Iterable[int], raw_heads: bool = False
) -> str:
    """A table inside a box that scrolls; cells are HTML, heads are text unless `raw_heads`."""
    right = set(numeric)
    head = "".join(
        f'<th scope="col"{_aligned(i, right)}>{text if raw_heads else escape(text)}</th>'
        for i, text in enumerate(heads)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{_aligned(i, right)}>{cell}</td>" for i, cell in enumerate(cells)) + "</tr>"
        for cells in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _aligned(column: int, right: set[int]) -> str:
    return ' class="num"' if column in right else ""


def _with_seeds(values: Sequence[float | None]) -> str:
    mean = _mean(values)
    if mean is None:
        return MISSING
    if len(values) == 1:
        return number(mean)
    return f"<b>{number(mean)}</b><small>{' · '.join(number(value) for value in values)}</small>"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _counted(states: Sequence[str]) -> str:
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    return ", ".join(state if len(states) == count == 1 else f"{count} {state}" for state, count in counts.items())


def _metric_head(name: str, spec: MetricSpec | None) -> str:
    code = f"<code>{escape(clean(name))}</code>"
    if spec is None:
        return code
    unit = f" [{escape(spec.unit)}]" if spec.unit else ""
    return f"{code}<small>{escape(spec.text)}{unit}</small>"


def _flattened(config: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(config, Mapping) and config:
        for key, value in config.items():
            yield from _flattened(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(config, ensure_ascii=False, default=str)
