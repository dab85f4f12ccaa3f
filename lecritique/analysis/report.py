"""The report of a run or a comparison: one HTML file without network, one picture, and every figure by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lecritique
from lecritique.analysis import page
from lecritique.analysis.evaluation_figures import ablation_table, described_method
from lecritique.analysis.exported_figures import export_figures
from lecritique.analysis.headline import headline, ranked_arms
from lecritique.analysis.pretraining_figures import (
    is_pretraining,
    load_pretraining,
    pretraining_html,
    pretraining_plots,
)
from lecritique.analysis.read import Comparison, Run, load_comparison
from lecritique.analysis.report_figures import ReportFigures, Section, exported_plots, read_or_note, report_figures
from lecritique.analysis.roles import roles_section
from lecritique.analysis.saved_rollouts import RolloutTable
from lecritique.analysis.summary import comparison_summary
from lecritique.analysis.tables import (
    arm_name,
    config_table,
    endpoint_table,
    how_arms_were_tested,
    metric_table,
    paired_table,
    spending_table,
)
from lecritique.analysis.tokens import token_view
from lecritique.analysis.wording import TIMES, counted, number, signed

REPORT_NAME = "report.html"


def write_report(
    directory: str | Path,
    out: str | Path | None = None,
    *,
    reference: str | None = None,
    evaluation_folders: Sequence[Path] = (),
) -> Path:
    """Write the page of a run, a comparison or a folder of `pretrain-value`, and return its path.

    Args:
        directory: finished or not.
        out: the HTML file to write; `report.html` inside `directory` by default.
        reference: the arm that differences are against; the first one by default.
        evaluation_folders: of `lecritique eval`, each of one of the runs, for the ablation table.

    Raises:
        ConfigurationError: there is no such reference arm.
        DataError: the directory is none of these, or a config, status, metrics, comparison or evaluation file is
            damaged. A damaged file of saved rollouts is left out and named on the page.
    """
    if is_pretraining(Path(directory)):
        html = pretraining_html(load_pretraining(Path(directory)))
    else:
        html = report_html(load_comparison(directory), reference=reference, evaluation_folders=evaluation_folders)
    target = Path(out) if out is not None else Path(directory) / REPORT_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(html, encoding="utf-8")
    return target


def write_picture(directory: str | Path, png: str | Path) -> Path:
    """Write a compact PNG of a run or a comparison and return its path."""
    from lecritique.analysis.picture import picture

    target = Path(png)
    target.parent.mkdir(parents=True, exist_ok=True)
    picture(load_comparison(directory), target)
    return target


def write_figures(
    directory: str | Path,
    out: str | Path,
    *,
    reference: str | None = None,
    evaluation_folders: Sequence[Path] = (),
) -> list[Path]:
    """Write every figure of the report as PNG and CSV into the directory `out`; see `export_figures`.

    Args:
        directory: as in `write_report`.
        out: new, empty, or of an earlier export.
        reference: as in `write_report`.
        evaluation_folders: as in `write_report`.

    Raises:
        ConfigurationError: `out` holds something else, or there is no such reference arm.
        DataError: as in `write_report`.
    """
    if is_pretraining(Path(directory)):
        plots, source = pretraining_plots(load_pretraining(Path(directory))), Path(directory).resolve().name
    else:
        comparison = load_comparison(directory)
        found = report_figures(comparison, reference=reference, evaluation_folders=evaluation_folders)
        plots, source = exported_plots(comparison, found), comparison.recipe
    return export_figures(plots, Path(out), source=source)


def report_html(
    comparison: Comparison, *, reference: str | None = None, evaluation_folders: Sequence[Path] = ()
) -> str:
    """The whole page."""
    figures = report_figures(comparison, reference=reference, evaluation_folders=evaluation_folders)
    summary = comparison_summary(comparison)
    damaged = list(figures.notes)
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
        _figure_section(figures.reward),
        _figure_section(figures.critic),
        page.section(
            "Token by token",
            "What the policy wrote, coloured by what the critic thought of it. Grey text was given to the policy "
            "(prompt or environment); coloured tokens are its own. Point at a token, or tap it, for its numbers.",
            page.token_section(tokens),
        ),
        *(_figure_section(section) for section in figures.later),
        roles_section(comparison),
        _numbers_section(comparison, summary, figures),
        _method_section(comparison, summary),
    ]
    return page.document(title=f"{comparison.recipe} · lecritique", body=body, tokens=tokens)


def _figure_section(section: Section) -> str:
    if not section.plots:
        return page.section(section.title, section.empty, "")
    drawn = page.figures([plot.on_page() for plot in section.plots], small=section.small)
    return page.section(section.title, section.intro, drawn)


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


def _numbers_section(comparison: Comparison, summary: dict[str, Any], figures: ReportFigures) -> str:
    paired, spending = paired_table(comparison, summary), spending_table(comparison, summary)
    ablation = ablation_table(comparison, figures.ablation)
    explained = f'<p class="intro">{page.text(described_method(figures.ablation))}</p>'
    content = (
        endpoint_table(comparison, summary)
        + (f"<h3>What it cost</h3>{spending}" if spending else "")
        + (f"<h3>Ablation table</h3>{explained}{ablation}" if ablation else "")
        + (_folded_pairs(comparison, paired) if paired else "")
        + page.folded("Every metric at the end", metric_table(comparison))
        + page.folded("What the arms' configurations differ in", config_table(comparison))
    )
    return page.section("Numbers", "Means over seeds, with each seed below in the order of the comparison.", content)


def _folded_pairs(comparison: Comparison, paired: str) -> str:
    """Open where it is short: the pairs of many arms would push everything else away."""
    if len(comparison.arms) <= 4:
        return f"<h3>Paired differences</h3>{paired}"
    return page.folded("Paired differences of every two arms", paired)


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
    paragraphs = f"<p>{page.text(said + base)}</p><p>{page.text(how_arms_were_tested(summary))}</p>"
    return page.section("How these numbers were made", "", paragraphs) + footer


def _newest_tables(comparison: Comparison, damaged: list[str]) -> dict[tuple[str, int], RolloutTable]:
    found = {}
    for key, run in comparison.runs.items():
        table = _newest(run, damaged)
        if table is not None:
            found[key] = table
    return found


def _newest(run: Run, damaged: list[str]) -> RolloutTable | None:
    for path in reversed(run.rollout_files):
        table = read_or_note(path, damaged)
        if table is not None and len(table):
            return table
    return None


def _bounds(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}" if math.isfinite(low) and math.isfinite(high) else ""
