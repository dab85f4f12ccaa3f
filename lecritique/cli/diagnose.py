"""`lecritique diagnose`: does the critic deserve its place?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from lecritique.cli.diagnose_responses import continuations, profiles
from lecritique.cli.output import console, number, print_table
from lecritique.cli.train import Overrides
from lecritique.core.errors import EXIT_CONFIGURATION, ConfigurationError

_CHANGED = ("own response", "own reward", "later feedback", "values")

diagnose = typer.Typer(
    no_args_is_help=True,
    help="See whether a critic deserves its place: how its values fit, whether what it is told leaks the future, "
    "how much gradient variance each baseline leaves, and where in a response it knows more than a clean one.",
)
diagnose.command("profiles")(profiles)
diagnose.command("continuations")(continuations)


@diagnose.command("values")
def values(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a comparison; it may still be running.")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write, JSON beside it; by default RUN/values.html.")
    ] = None,
    correct_from: Annotated[float, typer.Option(help="Rewards from here on count as correct.")] = 1.0,
    every_step: Annotated[
        bool, typer.Option("--every-step", help="Read every saved step, not those of the last third alone.")
    ] = False,
) -> None:
    """How well saved values fit: EV by place, turn, reward and length, calibration, AUC, against leave-one-out.

    Reads the rollouts that a run saved, trains and samples nothing. Intervals are bootstrap intervals over problems.
    """
    if not directory.is_dir():
        raise ConfigurationError(f"there is no directory '{directory}'.")
    from lecritique.analysis.value_diagnosis import Settings, diagnose_values
    from lecritique.analysis.value_page import values_html

    found = diagnose_values(directory, Settings(correct_from=correct_from, every_step=every_step))
    _print_values(found)
    write_results(found, values_html(found), out or directory / "values.html")


@diagnose.command("audit")
def audit(
    target: Annotated[str, typer.Argument(metavar="RECIPE|RUN", help="A recipe, a run or a comparison.")],
    overrides: Overrides = None,
    arm: Annotated[str, typer.Option(help="Of a recipe: the arm whose critic is audited.")] = "pvf",
    problems: Annotated[int, typer.Option(min=8, help="Rows that the statistical test is made over.")] = 64,
    warmup_batches: Annotated[
        int, typer.Option(min=0, help="Of a recipe: rollout batches that the critic is trained on first.")
    ] = 10,
    out: Annotated[Path | None, typer.Option(help="Also write what was found as JSON.")] = None,
) -> None:
    """Does what the critic is told leak the rollout's own future? Exits with 2 when something was found.

    Plays rollouts, changes the own response, reward and feedback of each, and builds what critics read again: nothing
    may change. Then tests over problems that the baseline leaves the mean policy gradient as it is.
    """
    from lecritique.analysis.audit import audit as run_audit
    from lecritique.analysis.study_subject import open_subject
    from lecritique.runs.directory import write_json

    subject = open_subject(target, overrides or [], arm=arm, critics=[arm], warmup_batches=warmup_batches)
    try:
        found = run_audit(subject, problems=problems)
    finally:
        subject.parts.engine.close()
    _print_audit(found)
    if out is not None:
        _write(lambda: write_json(out, found), out)
    if found["flagged"]:
        raise typer.Exit(EXIT_CONFIGURATION)


def _print_audit(found: dict[str, Any]) -> None:
    console.print(f"{found['origin']}: {found['rollouts']} rollouts on {found['problems']} problems", soft_wrap=True)
    shown = Table(title="changed contexts or values / rollouts checked", box=None, pad_edge=False)
    for head in ("what is told", *_CHANGED):
        shown.add_column(head)
    rows = {f"context {kind}": record for kind, record in found["contexts"].items()}
    for name, critic in found["critics"].items():
        rows |= {f"{name}: its context": critic["contexts"], f"{name}: its values": critic["values"]}
    for label, record in rows.items():
        shown.add_row(label, *(_changed(record, what) for what in _CHANGED))
    print_table(shown)
    for name, critic in found["critics"].items():
        test = critic["gradients"]
        console.print(
            f"{name}: mean gradient with and without the baseline, p = {number(test['p_value'], 4)} over "
            f"{test['problems']} problems (flagged below {found['level']}). A difference of norm "
            f"{number(test['detectable_norm'])} would be found in {found['power']:.0%} of audits; a rollout's gradient "
            f"has {number(test['trajectory_gradient_norm'])}, the policy gradient "
            f"{number(test['policy_gradient_norm'])}. "
            f"The outcome itself as baseline gives p = {number(test['outcome_control_p_value'], 4)}.",
            soft_wrap=True,
        )
    console.print("FLAGGED: something depends on the rollout's own future." if found["flagged"] else "No leak found.")


def _changed(record: dict[str, Any], what: str) -> str:
    checked = record["checked"].get(what, 0)
    return f"{record['changed'][what]} / {checked}" if checked else "-"


def _write(write: Callable[[], object], target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise ConfigurationError(f"'{target}' cannot be written: {error}.") from error
    console.print(f"json: {target}", soft_wrap=True)


@diagnose.command("gradients")
def gradients(
    target: Annotated[str, typer.Argument(metavar="RECIPE|RUN", help="A recipe, a run or a comparison.")],
    overrides: Overrides = None,
    problems: Annotated[int, typer.Option(min=2, help="Rows, one group of rollouts each.")] = 64,
    warmup_batches: Annotated[
        int, typer.Option(min=0, help="Of a recipe: rollout batches that the critics are trained on first.")
    ] = 20,
    out: Annotated[
        Path | None,
        typer.Option(help="Also write a page and its JSON: PATH.html and PATH.json, whatever PATH ends in."),
    ] = None,
) -> None:
    """How much gradient variance does each baseline leave, on the same trajectories?

    Trace of the covariance of a trajectory's policy gradient relative to no baseline and between every two baselines,
    with bootstrap intervals over problems that all of them share. A recipe gives the base policy and critics of the
    arms `value` and `pvf`; a run or a comparison its own.
    """
    from lecritique.analysis.gradient_page import gradients_html
    from lecritique.analysis.gradient_study import study_gradients
    from lecritique.analysis.study_subject import CRITICS, open_subject

    subject = open_subject(target, overrides or [], arm=None, critics=CRITICS, warmup_batches=warmup_batches)
    try:
        found = study_gradients(subject, problems=problems)
    finally:
        subject.parts.engine.close()
    _print_gradients(found)
    if out is not None:
        write_results(found, gradients_html(found), out.with_suffix(".html"))


def _print_gradients(found: dict[str, Any]) -> None:
    error = found["relative_error_of_a_norm"]
    how = "exact" if not error else f"a sketch of {found['numbers_kept']:,} numbers, {error:.1%} off a squared norm"
    console.print(
        f"{found['origin']}: {found['rollouts']} rollouts on {found['problems']} problems, "
        f"{found['parameters']:,} parameters, {how}",
        soft_wrap=True,
    )
    _print_variances(found)
    norms = found["score_norms"]
    counts = norms["trajectories"]
    console.print(
        f"mean |score|^2 of {counts['high']} high returns {number(norms['high']['estimate'], 0)}, of {counts['low']} "
        f"low ones {number(norms['low']['estimate'], 0)}; the best constant baseline "
        f"{bracketed(norms['optimal_constant'])} leaves {bracketed(norms['size_at_optimum'])} of none, the mean return "
        f"{number(norms['mean_return']['estimate'])} leaves {bracketed(norms['size_at_mean'])}",
        soft_wrap=True,
    )
    tether = found["tether"]
    if tether is not None:
        console.print(
            f"rho of {tether['critic']}: {bracketed(tether['rho'])}, weighted by score norms "
            f"{bracketed(tether['score_norm_optimum'])}, on {tether['tokens']} tokens",
            soft_wrap=True,
        )


def _print_variances(found: dict[str, Any]) -> None:
    from lecritique.analysis.gradient_page import WHY_CENTRED
    from lecritique.analysis.variance_ratios import KINDS, of_critics, shown_name

    shown = Table(title="variance of the policy gradient; in brackets the 95% interval over problems", box=None)
    for head in ("baseline", "trace", "of none", "mean of a group, of none"):
        shown.add_column(head, justify="left" if head == "baseline" else "right")
    for name, entry in found["estimators"].items():
        ratios = [bracketed(entry[kind]["ratio"]) for kind in KINDS]
        shown.add_row(shown_name(name), number(entry["trajectory"]["trace"]), *ratios)
    print_table(shown)
    console.print(WHY_CENTRED, soft_wrap=True)
    paired = Table(title="variance under one over that under another, on the same resamples", box=None)
    for head in ("baselines", "ratio", "mean of a group"):
        paired.add_column(head, justify="left" if head == "baselines" else "right")
    for pair in of_critics(found["contrasts"], found["critics"]):
        label = f"{shown_name(pair['a'])} / {shown_name(pair['b'])}"
        paired.add_row(label, *(bracketed(pair[kind]) for kind in KINDS))
    if found["critics"]:
        print_table(paired)


def write_results(found: dict[str, Any], html: str, target: Path) -> None:
    """Write a page and the JSON that it was made from beside it, and say where they are.

    Raises:
        ConfigurationError: they cannot be written.
    """
    from lecritique.runs.directory import write_json

    record = target.with_suffix(".json")
    if record == target:
        raise ConfigurationError(f"--out names the page, its JSON goes beside it: '{target}' cannot end in .json.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(html, encoding="utf-8")
        write_json(record, found)
    except OSError as error:
        raise ConfigurationError(f"the page or its JSON cannot be written: {error}.") from error
    console.print(f"page: {target}\njson: {record}", soft_wrap=True)


def _print_values(found: dict[str, Any]) -> None:
    for caution in found["cautions"]:
        console.print(caution, soft_wrap=True)
    shown = Table(title="values against targets; in brackets the 95% interval over problems", box=None, pad_edge=False)
    for head in ("arm", "baseline", "EV", "bias", "MSE", "Brier", "ECE", "AUC"):
        shown.add_column(head, justify="left" if head in ("arm", "baseline") else "right")
    for arm, record in found["arms"].items():
        for critic, entry in record["critics"].items():
            fit, calibration = entry["pooled"]["all"], entry["calibration"] or {}
            cells = [fit["bias"], fit["mse"]]
            cells += [calibration.get(name) for name in ("brier", "calibration_error", "auc")]
            numbers = [number(None if each is None else each["estimate"]) for each in cells]
            shown.add_row(arm, critic.replace("_", "-"), bracketed(fit["explained_variance"]), *numbers)
    print_table(shown)
    for arm, record in found["arms"].items():
        if record["critic_minus_leave_one_out"] is not None:
            gap = record["critic_minus_leave_one_out"]["pooled"]["all"]["explained_variance"]
            console.print(f"{arm}: EV above leave-one-out by {bracketed(gap)}", soft_wrap=True)
    for pair in found["paired"]:
        gap = bracketed(pair["differences"]["explained_variance"])
        console.print(f"EV of {pair['a']} - {pair['b']}: {gap} on {pair['problems']} shared problems", soft_wrap=True)


def bracketed(entry: dict[str, Any] | None) -> str:
    """An estimate with its interval."""
    if entry is None or entry["estimate"] is None:
        return "-"
    if entry["low"] is None or entry["high"] is None:
        return number(entry["estimate"])
    return f"{number(entry['estimate'])} [{number(entry['low'], 2)}, {number(entry['high'], 2)}]"
