"""Which figures a report has, in which sections: the page and the export draw the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lecritique.analysis.critic_figures import critic_plots
from lecritique.analysis.dynamics_figures import Dynamics, policy_dynamics, teacher_dynamics
from lecritique.analysis.evaluation_figures import Ablation, ablation, ablation_plot, set_plots
from lecritique.analysis.evaluation_records import evaluations
from lecritique.analysis.figures import Plot
from lecritique.analysis.positions import POSITION_COLUMNS, value_fit_by_place
from lecritique.analysis.read import Comparison
from lecritique.analysis.reward_figures import budget_plots, reward_plots
from lecritique.analysis.roles import roles_plots
from lecritique.analysis.saved_rollouts import RolloutTable, read_rollouts
from lecritique.analysis.wording import number
from lecritique.config.explain import nearest
from lecritique.core.errors import ConfigurationError, DataError


@dataclass(frozen=True, kw_only=True)
class Section:
    """Figures under one title; `small` ones stand three in a row. `empty` is said where there are none."""

    title: str
    intro: str
    plots: Sequence[Plot]
    small: bool = False
    empty: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportFigures:
    """All figures of a report, its ablation table, and notes about files that were left out."""

    reward: Section
    critic: Section
    later: Sequence[Section]
    ablation: Ablation
    notes: Sequence[str] = field(default=())

    @property
    def plots(self) -> list[Plot]:
        """Those that the data allows, in the order of the page."""
        sections = (self.reward, self.critic, *self.later)
        return [plot for section in sections for plot in section.plots if plot.draw is not None]


def report_figures(
    comparison: Comparison, *, reference: str | None = None, evaluation_folders: Sequence[Path] = ()
) -> ReportFigures:
    """Every figure that the data of a run or comparison allows.

    Args:
        comparison: what was read.
        reference: the arm that differences are against, the first one by default.
        evaluation_folders: of `lecritique eval`, each of one of the runs.

    Raises:
        ConfigurationError: there is no arm of that name.
        DataError: a folder that is no evaluation of one of the runs.
    """
    reference = reference_arm(comparison, reference)
    damaged: list[str] = []
    folders = evaluations(comparison, evaluation_folders)
    fits = {arm: value_fit_by_place(_late_tables(comparison, arm, damaged)) for arm in comparison.arms}
    training, teacher = policy_dynamics(comparison, damaged), teacher_dynamics(comparison)
    later = [
        Section(
            title="Reward by what it cost",
            intro="The same rewards over other axes. Lines are means over seeds at the same place, as far as every "
            "seed came.",
            plots=budget_plots(comparison),
            small=True,
        ),
        Section(
            title="Evaluation sets",
            intro="Score of each set at the steps that evaluate.",
            plots=set_plots(comparison),
            small=True,
        ),
        _dynamics_section("Training dynamics", "What VP plots of training, and what else tells how it went.", training),
        _dynamics_section("Teacher", "How much the self-teacher says and changes.", teacher),
    ]
    found = ablation(comparison, reference, folders)
    return ReportFigures(
        reward=Section(title="Reward", intro="", plots=reward_plots(comparison, reference)),
        critic=Section(
            title="Critic",
            intro="",
            plots=critic_plots(comparison, fits),
            empty="There is no critic here, or nothing it predicted has been recorded yet.",
        ),
        later=[section for section in later if section.plots or section.empty],
        ablation=found,
        notes=tuple(dict.fromkeys((*damaged, *found.notes))),
    )


def exported_plots(comparison: Comparison, found: ReportFigures) -> list[Plot]:
    """What an export holds: all figures, those of the roles, and the ablation table as a CSV."""
    table = ablation_plot(comparison, found.ablation)
    roles = [plot for plot in roles_plots(comparison) if plot.draw is not None]
    return [*found.plots, *roles, *([table] if table.rows else [])]


def reference_arm(comparison: Comparison, wanted: str | None) -> str:
    """The arm that differences are against.

    Raises:
        ConfigurationError: there is no arm of that name.
    """
    if wanted is None:
        return comparison.arms[0]
    if wanted not in comparison.arms:
        raise ConfigurationError(
            f"--reference: there is no arm '{wanted}'.{nearest(wanted, comparison.arms)} Known: "
            f"{', '.join(comparison.arms)}."
        )
    return wanted


def read_or_note(path: Path, damaged: list[str], columns: Sequence[str] | None = None) -> RolloutTable | None:
    """A file of saved rollouts; None, with a note of it, where it is damaged."""
    try:
        return read_rollouts(path, columns)
    except DataError as error:
        damaged.append(f"Left out: {error}.")
        return None


def _dynamics_section(title: str, intro: str, found: Dynamics) -> Section:
    still = ", ".join(f"{name} ({number(value)})" for name, value in found.still)
    return Section(
        title=title,
        intro=intro + (f" Never moved, so not drawn: {still}." if still else ""),
        plots=found.plots,
        small=True,
        empty=f"Never moved, so not drawn: {still}." if still and not found.plots else "",
    )


def _late_tables(comparison: Comparison, arm: str, damaged: list[str]) -> Iterator[RolloutTable]:
    for run in comparison.runs_of(arm):
        for path in run.late_rollout_files() if run is not None else ():
            table = read_or_note(path, damaged, POSITION_COLUMNS)
            if table is not None:
                yield table
