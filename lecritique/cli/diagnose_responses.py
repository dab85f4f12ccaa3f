"""`lecritique diagnose profiles` and `lecritique diagnose continuations`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from lecritique.cli.output import console, number, print_table
from lecritique.cli.train import Overrides
from lecritique.config.teachers import TeacherContent
from lecritique.core.errors import ConfigurationError

if TYPE_CHECKING:
    from lecritique.analysis.response_study import FrozenPolicy, StudyWishes
    from lecritique.runtime.pretraining import Point

Target = Annotated[str, typer.Argument(metavar="RECIPE|RUN", help="A recipe, a run or a comparison.")]
Out = Annotated[Path, typer.Option(help="Folder of the study; the same call again goes on with it.")]
Arm = Annotated[str | None, typer.Option(help="Preset or arm that says how critics are trained.")]
Critics = Annotated[
    str | None,
    typer.Option(
        help="Critics by what they are told, separated by commas: clean, answer, solution, both, siblings, rubric, "
        "env, leave_one_out; by default those that the task allows, rubric and env apart."
    ),
]
Given = Annotated[
    list[str] | None,
    typer.Option("--critic", metavar="NAME=PATH", help="Use this run's or `pretrain-value`'s critic; may be repeated."),
]
CriticProblems = Annotated[
    int, typer.Option(min=1, help="Problems that critics without a path are fitted on; nothing is measured on them.")
]
FitEpochs = Annotated[int, typer.Option(min=0, help="How often their responses are gone through.")]
FitSeconds = Annotated[float | None, typer.Option(min=0, help="Stop fitting each critic after so long.")]
HeldOut = Annotated[
    float,
    typer.Option(min=0.001, max=0.999, help="Share of problems that critics are not fitted on; as in pretrain-value."),
]
Replicates = Annotated[int, typer.Option(min=2, help="Of the bootstrap over problems.")]

SETTINGS = "study.json"


def profiles(
    target: Target,
    overrides: Overrides = None,
    out: Out = ...,  # type: ignore[assignment]
    arm: Arm = None,
    critics: Critics = None,
    critic: Given = None,
    problems: Annotated[int, typer.Option(min=2, help="Problems whose responses are looked at.")] = 128,
    teacher: Annotated[
        str | None,
        typer.Option(help="What the teacher is told: both, solution, answer or none; by default the most there is."),
    ] = None,
    critic_problems: CriticProblems = 256,
    fit_epochs: FitEpochs = 4,
    fit_seconds: FitSeconds = None,
    held_out: HeldOut = 0.2,
    replicates: Replicates = 2000,
) -> None:
    """Where in a response does privileged information help a critic, and where does a teacher disagree?

    On fixed responses of a policy that stays as it is, the critics' squared errors against the clean one's and
    KL(student, teacher), in tenths of the response, with bootstrap intervals over problems.

    Example: `lecritique diagnose profiles demo --out runs/profiles`.
    """
    from lecritique.analysis.response_profiles import ProfileWishes, study_profiles, teacher_content
    from lecritique.analysis.study_page import profiles_html

    wishes = _wishes(critics, critic, critic_problems, fit_epochs, fit_seconds, held_out)
    frozen, names = _opened(target, overrides, arm, wishes)
    own = ProfileWishes(problems=problems, teacher=_teacher(teacher), replicates=replicates)
    settings = {"study": "profiles", "problems": problems, "teacher": teacher_content(frozen, own.teacher)}

    def study() -> dict[str, Any]:
        return study_profiles(
            frozen,
            names,
            wishes,
            own,
            out,
            on_part=lambda done, parts: _show_part("responses", done, parts),
            on_point=_show_point,
        )

    found = _kept(frozen, wishes, names, {**settings, "replicates": replicates}, out, study)
    _print_profiles(found)
    _write(found, profiles_html(found), out / "profiles.html")


def continuations(
    target: Target,
    overrides: Overrides = None,
    out: Out = ...,  # type: ignore[assignment]
    arm: Arm = None,
    critics: Critics = None,
    critic: Given = None,
    problems: Annotated[
        int, typer.Option(min=4, help="Half of them to fit the tertiles of length, half to evaluate.")
    ] = 256,
    continuations: Annotated[int, typer.Option(min=1, help="Of each prefix.")] = 8,
    fractions: Annotated[str, typer.Option(help="Prefixes as shares of the response, ascending.")] = "0.2,0.5,0.8",
    critic_problems: CriticProblems = 256,
    fit_epochs: FitEpochs = 4,
    fit_seconds: FitSeconds = None,
    held_out: HeldOut = 0.2,
    replicates: Replicates = 2000,
) -> None:
    """Do critics know what will come of a prefix? Compares them with continuations of a policy that stays as it is.

    Brier score with its parts, explained variance and calibration error against what continuations earn, by prefix and
    by length, and the contrast C of late against early gains, with bootstrap intervals over problems.

    Example: `lecritique diagnose continuations demo --out runs/continuations`.
    """
    from lecritique.analysis.continuations import ContinuationWishes, study_continuations
    from lecritique.analysis.study_page import continuations_html

    wishes = _wishes(critics, critic, critic_problems, fit_epochs, fit_seconds, held_out)
    shares = _fractions(fractions)
    frozen, names = _opened(target, overrides, arm, wishes)
    own = ContinuationWishes(problems=problems, continuations=continuations, fractions=shares, replicates=replicates)
    settings = {
        "study": "continuations",
        "problems": problems,
        "continuations": continuations,
        "fractions": list(shares),
        "replicates": replicates,
    }

    def study() -> dict[str, Any]:
        return study_continuations(frozen, names, wishes, own, out, on_part=_show_part, on_point=_show_point)

    found = _kept(frozen, wishes, names, settings, out, study)
    _print_continuations(found)
    _write(found, continuations_html(found), out / "continuations.html")


def _opened(target: str, overrides: list[str] | None, arm: str | None, wishes: Any) -> tuple[Any, tuple[str, ...]]:
    from lecritique.analysis.response_study import chosen_critics, open_policy

    frozen = open_policy(target, overrides or [], arm=arm)
    return frozen, chosen_critics(frozen, wishes)


def _kept(
    frozen: FrozenPolicy,
    wishes: StudyWishes,
    names: tuple[str, ...],
    settings: dict[str, Any],
    out: Path,
    study: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """What the study finds, in a folder that belongs to its settings."""
    from lecritique.analysis.response_study import study_settings
    from lecritique.runs.settings import hold_folder

    lock = hold_folder(out, SETTINGS, study_settings(frozen, wishes, names, settings))
    try:
        return study()
    finally:
        if lock is not None:
            lock.close()


def _write(found: dict[str, Any], html: str, target: Path) -> None:
    from lecritique.cli.diagnose import write_results

    write_results(found, html, target)


def _wishes(
    critics: str | None,
    given: list[str] | None,
    critic_problems: int,
    epochs: int,
    seconds: float | None,
    held_out: float,
) -> StudyWishes:
    from lecritique.analysis.response_study import StudyWishes

    return StudyWishes(
        critics=None if critics is None else tuple(word.strip() for word in critics.split(",") if word.strip()),
        given=_given(given or []),
        critic_problems=critic_problems,
        epochs=epochs,
        most_seconds=math.inf if seconds is None else seconds,
        held_out=held_out,
    )


def _given(pairs: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in pairs:
        name, equals, path = text.partition("=")
        if not (equals and name.strip() and path.strip()):
            raise ConfigurationError(f"--critic: expected NAME=PATH, got '{text}'.")
        if name == "leave_one_out" or name in found:
            raise ConfigurationError(f"--critic: '{name}' cannot be given" + (" twice." if name in found else "."))
        found[name.strip()] = Path(path.strip())
    return found


def _fractions(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or list(found) != sorted(set(found)) or not all(0 <= f < 1 for f in found):
        raise ConfigurationError(f"--fractions: expected ascending numbers from 0 on and below 1, got '{text}'.")
    return found


def _teacher(text: str | None) -> TeacherContent | None:
    match text:
        case None | "none" | "answer" | "solution" | "both":
            return text
    raise ConfigurationError(f"--teacher: expected both, solution, answer or none, got '{text}'.")


def _show_part(what: str, done: int, parts: int) -> None:
    if done == parts or done % max(1, parts // 10) == 0:
        console.print(f"{what}: part {done}/{parts}", soft_wrap=True)


def _show_point(name: str, point: Point) -> None:
    console.print(
        f"critic {name}  update {point.update}  EV {number(point.explained_variance)}  loss {number(point.loss)}  "
        f"fitting {point.seconds:.1f} s",
        soft_wrap=True,
    )


def _print_profiles(found: dict[str, Any]) -> None:
    from lecritique.cli.diagnose import bracketed

    _print_head(found, f"{found['responses']} responses to {found['problems']} problems")
    bins = found["method"]["bins"]
    columns = dict(found["signals"])
    if found["divergence"] is not None:
        columns["teacher KL"] = found["divergence"]
    shown = Table(
        title="squared error of clean less that of the critic; KL(student, teacher)", box=None, pad_edge=False
    )
    for head in ("place", *(name.replace("_", "-") for name in columns)):
        shown.add_column(head, justify="left" if head == "place" else "right")
    for b in range(bins):
        shown.add_row(f"{b / bins:g}", *(number(of["profile"][b]["estimate"]) for of in columns.values()))
    shown.add_section()
    shown.add_row("whole", *(bracketed(of["mean"]) for of in columns.values()))
    print_table(shown)


def _print_continuations(found: dict[str, Any]) -> None:
    from lecritique.cli.diagnose import bracketed

    _print_head(found, f"{found['items']} prefixes of {found['problems']} problems, {found['continuations']} each")
    shown = Table(title="against continuations; in brackets the 95% interval over problems", box=None, pad_edge=False)
    for head in ("critic", "Brier", "squared error", "EV", "ECE", "gain in Brier", "C"):
        shown.add_column(head, justify="left" if head == "critic" else "right")
    for name, of in found["critics"].items():
        entry, gain, contrast = of["all"]["all"], found["gains"].get(name), found["contrasts"].get(name)
        shown.add_row(
            name.replace("_", "-"),
            number(entry["brier"]["estimate"]),
            number(entry["squared_error"]["estimate"]),
            bracketed(entry["explained_variance"]),
            number(entry["calibration_error"]["estimate"]),
            "-" if gain is None else bracketed(gain["all"]["all"]["brier"]),
            "-" if contrast is None else bracketed(contrast["all"]),
        )
    print_table(shown)


def _print_head(found: dict[str, Any], what: str) -> None:
    for caution in found["cautions"]:
        console.print(caution, soft_wrap=True)
    console.print(f"{found['origin']}: {what}", soft_wrap=True)
