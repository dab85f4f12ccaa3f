"""The report of a run or a comparison: one HTML file without network, and one picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lecritique
from lecritique.analysis import page
from lecritique.analysis.headline import headline, ranked_arms
from lecritique.analysis.positions import POSITION_COLUMNS, value_fit_by_position
from lecritique.analysis.read import Comparison, Run, load_comparison
from lecritique.analysis.saved_rollouts import RolloutTable, read_rollouts
from lecritique.analysis.summary import comparison_summary
from lecritique.analysis.tables import arm_name, config_table, endpoint_table, metric_table, paired_table
from lecritique.analysis.tokens import token_view
from lecritique.analysis.wording import TIMES, counted, number, signed
from lecritique.core.errors import DataError
from lecritique.core.metrics import ValueFit

REPORT_NAME = "report.html"


def write_report(directory: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a run or a comparison and return its path.

    Args:
        directory: a run directory or a comparison, finished or not.
        out: the HTML file to write; `report.html` inside `directory` by default.

    Raises:
        DataError: the directory is neither, or a config, status, metrics or comparison file is damaged. A
            damaged file of saved rollouts is left out and named on the page.
    """
    comparison = load_comparison(directory)
    target = Path(out) if out is not None else Path(directory) / REPORT_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report_html(comparison), encoding="utf-8")
    return target


def write_picture(directory: str | Path, png: str | Path) -> Path:
    """Write a compact PNG of a run or a comparison and return its path."""
    from lecritique.analysis.figures import picture

    target = Path(png)
    target.parent.mkdir(parents=True, exist_ok=True)
    picture(load_comparison(directory), target)
    return target


def report_html(comparison: Comparison) -> str:
    """The whole page."""
    from lecritique.analysis.roles import roles_section

    summary = comparison_summary(comparison)
    damaged: list[str] = []
    fits = {arm: value_fit_by_position(_late_tables(comparison, arm, damaged)) for arm in comparison.arms}
    critics = ranked_arms(comparison, "explained_variance")
    first = critics[0][0] if critics else None
    tokens = token_view(comparison, _newest_tables(comparison, damaged), first)
    found = headline(comparison)
    kind = "run" if comparison.single else "comparison"
    body = [
        page.opening(
            kicker=f"{comparison.recipe} · {kind}",
            title=found.title,
            lede=found.text,
            cautions=(*found.cautions, *dict.fromkeys(damaged)),
        ),
        page.cards(_cards(comparison)),
        page.legend([arm_name(comparison, arm) for arm in comparison.arms]) if len(comparison.arms) > 1 else "",
        _reward_section(comparison),
        _critic_section(comparison, fits),
        page.section(
            "Token by token",
            "What the policy wrote, coloured by what the critic thought of it. Grey text was given to the policy "
            "(prompt or environment); coloured tokens are its own. Point at a token, or tap it, for its numbers.",
            page.token_section(tokens),
        ),
        roles_section(comparison),
        _numbers_section(comparison, summary),
        _method_section(comparison, summary),
    ]
    return page.document(title=f"{comparison.recipe} · lecritique", body=body, tokens=tokens)


def _cards(comparison: Comparison) -> list[page.Card]:
    found = []
    rewards, explained = ranked_arms(comparison, "reward"), ranked_arms(comparison, "explained_variance")
    if rewards:
        arm, end = rewards[0]
        found.append(
            page.Card(
                label="reward" if len(rewards) == 1 else "highest reward",
                value=f"{end.estimate:.3f}",
                remark=_bounds(end.low, end.high),
                arm=arm_name(comparison, arm),
            )
        )
        if comparison.base_reward is not None:
            gain = signed(end.estimate - comparison.base_reward)
            before = f"from {comparison.base_reward:.3f} before training"
            found.append(page.Card(label="gain over the start", value=gain, remark=before))
    if explained:
        arm, end = explained[0]
        found.append(
            page.Card(
                label="explained variance" if len(explained) == 1 else "best explained variance",
                value=number(end.estimate),
                remark=_bounds(end.low, end.high),
                arm=arm_name(comparison, arm),
            )
        )
    finished = sum(run.finished for run in comparison.runs.values())
    planned = len(comparison.arms) * len(comparison.seeds)
    longest = max((len(run.steps) for run in comparison.runs.values()), default=0)
    shape = f"{counted(len(comparison.arms), 'arm')} {TIMES} {counted(len(comparison.seeds), 'seed')}, {longest} steps"
    found.append(page.Card(label="runs finished", value=f"{finished} of {planned}", remark=shape))
    return found


def _reward_section(comparison: Comparison) -> str:
    from lecritique.analysis.figures import curve_figure, endpoint_figure, smoothing_width

    base = comparison.base_reward
    width = smoothing_width(comparison)
    seeds = (
        "The heavy line is the mean over seeds, thin lines are single seeds, the band spans them."
        if len(comparison.seeds) > 1
        else "One seed: there is no band, because nothing shows how far another seed would differ."
    )
    average = "" if width == 1 else f" Curves are centred averages over {width} steps."
    line = " The dashed line is the policy before training." if base is not None else ""
    return page.section(
        "Reward",
        "",
        page.figures(
            [
                page.Figure(
                    title="Reward while training",
                    svg=curve_figure(comparison, "reward", "mean reward of the batch", base=base),
                    caption=seeds + average + line,
                    absent="No step has recorded a reward yet.",
                ),
                page.Figure(
                    title="Reward at the end",
                    svg=endpoint_figure(comparison, "reward", "mean reward of the last steps", base=base),
                    caption="Bars start at zero. The bracket is a 95% interval, each dot one seed, the dashed line "
                    "the policy before training."
                    if base is not None
                    else "Bars start at zero. The bracket is a 95% interval, each dot one seed.",
                    absent="No run has an endpoint yet.",
                ),
            ]
        ),
    )


def _critic_section(comparison: Comparison, fits: dict[str, tuple[ValueFit, ...]]) -> str:
    from lecritique.analysis.figures import curve_figure, endpoint_figure, position_figure

    rho = curve_figure(comparison, "rho", "rho")
    curve = curve_figure(comparison, "explained_variance", "explained variance")
    positions = position_figure(comparison, fits)
    if rho is None and curve is None and positions is None:
        return page.section("Critic", "There is no critic here, or nothing it predicted has been recorded yet.", "")
    entries = [
        page.Figure(
            title="How well the critic predicts returns",
            svg=curve,
            caption="Explained variance before the critic trained on the batch: 1 is perfect, 0 no better than a "
            f"constant, below 0 worse than one. What falls below {number(-0.5, 1)} runs off the lower edge.",
            absent="No arm has recorded an explained variance: there is no critic, or its targets never varied.",
        ),
        page.Figure(
            title="Explained variance at the end",
            svg=endpoint_figure(comparison, "explained_variance", "explained variance of the last steps"),
            caption="The mean of the steps' explained variances. The bracket is a 95% interval, each dot one seed.",
            absent="No run has an explained variance at its end.",
        ),
        page.Figure(
            title="Where in the response the critic knows",
            svg=positions,
            caption="Explained variance in tenths of the response, pooled over the saved rollouts of the last third "
            "of training. A line that climbs is a critic that sees the outcome coming.",
            absent="No saved rollout of the last third carries values whose targets vary.",
        ),
    ]
    if rho is not None:
        entries.append(
            page.Figure(
                title="How far Tether trusts the critic",
                svg=rho,
                caption="rho weighs the critic against the group's own mean: at 0 the critic is ignored, at 1 it is "
                "the baseline.",
                absent="",
            )
        )
    return page.section("Critic", "", page.figures(entries))


def _numbers_section(comparison: Comparison, summary: dict[str, Any]) -> str:
    paired = paired_table(comparison, summary)
    content = (
        endpoint_table(comparison, summary)
        + (f"<h3>Paired differences</h3>{paired}" if paired else "")
        + page.folded("Every metric at the end", metric_table(comparison))
        + page.folded("What the arms' configurations differ in", config_table(comparison))
    )
    return page.section("Numbers", "Means over seeds, with each seed below in the order of the comparison.", content)


def _method_section(comparison: Comparison, summary: dict[str, Any]) -> str:
    method = summary["method"]
    windows = " or ".join(str(n) for n in method["window_steps"])
    here = f"; here {windows} steps" if windows else ""
    blocks = " or ".join(str(n) for n in method["block_steps"]) or "several"
    said = (
        f"An endpoint is the mean over the last 50 steps, or over the last third of a run of fewer than 150, "
        f"unsmoothed{here}. Intervals are 95% percentile intervals of a {method['name']}: "
        f"{method['replicates']:,} replicates draw seeds with replacement and, inside each, circular blocks of "
        f"{blocks} steps; arms that share a seed share the draw. They hold what varies between these seeds and "
        "steps, nothing else. No significance is claimed from fewer than three seeds, and few seeds make such "
        "intervals too narrow: where nothing differs, about 24% of those from three seeds leave out zero, 16% from "
        "five, 9% from ten, instead of 5%."
    )
    base = (
        f" The reward before training is that of {comparison.base_rollouts:,} rollouts of the untrained policy."
        if comparison.base_rollouts
        else ""
    )
    updated = max((str(run.status.get("updated") or "") for run in comparison.runs.values()), default="")
    written = f"lecritique {lecritique.__version__}" + (f" · runs last updated {updated}" if updated else "")
    footer = f"<footer>{page.text(written)}</footer>"
    return page.section("How these numbers were made", "", f"<p>{page.text(said + base)}</p>") + footer


def _late_tables(comparison: Comparison, arm: str, damaged: list[str]) -> Iterator[RolloutTable]:
    for run in comparison.runs_of(arm):
        for path in run.late_rollout_files() if run is not None else ():
            table = _read_or_note(path, damaged, POSITION_COLUMNS)
            if table is not None:
                yield table


def _newest_tables(comparison: Comparison, damaged: list[str]) -> dict[tuple[str, int], RolloutTable]:
    found = {}
    for key, run in comparison.runs.items():
        table = _newest(run, damaged)
        if table is not None:
            found[key] = table
    return found


def _newest(run: Run, damaged: list[str]) -> RolloutTable | None:
    for path in reversed(run.rollout_files):
        table = _read_or_note(path, damaged)
        if table is not None and len(table):
            return table
    return None


def _read_or_note(path: Path, damaged: list[str], columns: Sequence[str] | None = None) -> RolloutTable | None:
    try:
        return read_rollouts(path, columns)
    except DataError as error:
        damaged.append(f"Left out: {error}.")
        return None


def _bounds(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}" if math.isfinite(low) and math.isfinite(high) else ""
