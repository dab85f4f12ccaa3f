"""`lecritique pretrain-value`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from lecritique.cli.output import console, number, print_table
from lecritique.cli.train import Overrides, RecipeArgument
from lecritique.config.load import compose, load_recipe

if TYPE_CHECKING:
    from lecritique.runtime.pretraining import Point


def pretrain_value(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder of the critics; the same call again resumes it.")] = ...,  # type: ignore[assignment]
    policies: Annotated[
        str | None,
        typer.Option(help="Runs, checkpoints or models, separated by commas; by default the recipe's model."),
    ] = None,
    rollouts: Annotated[Path | None, typer.Option(help="Use the saved rollouts of this run instead.")] = None,
    arm: Annotated[str | None, typer.Option(help="Preset or arm that says how its critic is trained.")] = None,
    variants: Annotated[str, typer.Option(help="Which critics, separated by commas.")] = "clean,privileged",
    epochs: Annotated[int, typer.Option(min=0, help="How often the responses are gone through.")] = 2,
    rollouts_per_prompt: Annotated[int, typer.Option(min=1, help="Responses of each policy to each problem.")] = 8,
    rows: Annotated[int, typer.Option(min=0, help="Problems to fit on at most; 0 is all.")] = 0,
    held_out_rows: Annotated[int, typer.Option(min=0, help="Problems to measure on at most; 0 is all.")] = 0,
    held_out: Annotated[
        float, typer.Option(min=0.001, max=0.999, help="Share of problems held out, where the recipe keeps none.")
    ] = 0.2,
    measurements: Annotated[int, typer.Option(min=1, help="Points of the curve beside the first.")] = 8,
    balance: Annotated[bool, typer.Option(help="Repeat wrong responses where they are fewer than right ones.")] = True,
    max_seconds: Annotated[float | None, typer.Option(min=0, help="Stop fitting each critic after so long.")] = None,
) -> None:
    """Fit critics to the returns of fixed responses, before any training; held-out problems say how good they are.

    A run starts from one with `critic.init=OUT/privileged` or `critic.init=OUT/clean`.

    Example: `lecritique pretrain-value demo --out runs/critics --rows 400 --epochs 2`.
    """
    config = compose(load_recipe(recipe), arm=arm, overrides=overrides or [])
    from lecritique.runs.settings import hold_folder
    from lecritique.runtime.pretraining_plan import SETTINGS, SUMMARY, PretrainWishes, plan_pretraining
    from lecritique.runtime.threads import choose_threads

    wishes = PretrainWishes(
        policies=_words(policies),
        rollouts=rollouts,
        variants=_words(variants),
        epochs=epochs,
        size=rollouts_per_prompt,
        rows=rows,
        held_out_rows=held_out_rows,
        held_out=held_out,
        measurements=measurements,
        balance=balance,
        most_seconds=math.inf if max_seconds is None else max_seconds,
    )
    plan = plan_pretraining(config, wishes)
    choose_threads(plan.base.language.model.num_parameters())
    lock = hold_folder(out, SETTINGS, plan.settings)
    try:
        if (out / SUMMARY).is_file():
            console.print(f"'{out}' is complete; nothing is left to do.", soft_wrap=True)
            _show(json.loads((out / SUMMARY).read_text(encoding="utf-8")), out)
        else:
            _run(plan, out)
    finally:
        if lock is not None:
            lock.close()


def _run(plan: Any, out: Path) -> None:
    from lecritique.analysis.pretraining import pretraining_summary
    from lecritique.runs.directory import write_json
    from lecritique.runtime.pretraining_plan import SUMMARY, fit_variants, responses_of

    responses = responses_of(plan, out / "collection", on_part=_show_part)
    right = responses.counts["right_fraction"]
    console.print(
        f"{responses.counts['rollouts']} responses, {responses.counts['failed']} failed, "
        f"{responses.counts['truncated']} truncated; right: {number(right['train'])} of those to fit on, "
        f"{number(right['held_out'])} of those held out.",
        soft_wrap=True,
    )
    fitted = fit_variants(plan, responses, out, on_point=_show_point)
    summary = pretraining_summary(fitted, plan.settings, responses.counts)
    write_json(out / SUMMARY, summary)
    _show(summary, out)


def _show(summary: dict[str, Any], out: Path) -> None:
    print_table(summary_table(summary))
    gain = summary.get("privileged_minus_clean")
    if gain is not None:
        console.print(
            f"privileged minus clean: {number(gain['estimate'])} [{number(gain['low'])}, {number(gain['high'])}] over "
            f"{gain['problems']} held-out problems",
            soft_wrap=True,
        )
    for variant in summary["variants"]:
        console.print(f"critic.init={out / variant}", soft_wrap=True)


def summary_table(summary: dict[str, Any]) -> Table:
    """How EV and loss on the held-out problems developed, a column for each variant."""
    variants = summary["variants"]
    table = Table()
    table.add_column("update", justify="right")
    for variant in variants:
        for heading in (f"EV {variant}", f"loss {variant}"):
            table.add_column(heading, justify="right")
    by_update = {
        variant: {point["update"]: point for point in figures["curve"]} for variant, figures in variants.items()
    }
    for update in sorted({update for points in by_update.values() for update in points}):
        cells = []
        for points in by_update.values():
            point = points.get(update, {})
            cells += [number(point.get("explained_variance")), number(point.get("loss"))]
        table.add_row(str(update), *cells)
    ends = []
    for figures in variants.values():
        ev = figures["explained_variance"]
        ends += [f"{number(ev['low'])} to {number(ev['high'])}", f"{figures['seconds']:.0f} s"]
    table.add_section()
    table.add_row("95%", *ends)
    return table


def _show_part(done: int, parts: int) -> None:
    if done == parts or done % max(1, parts // 10) == 0:
        console.print(f"responses: part {done}/{parts}", soft_wrap=True)


def _show_point(variant: str, point: Point) -> None:
    console.print(
        f"{variant}  update {point.update}  EV {number(point.explained_variance)}  loss {number(point.loss)}  "
        f"fitting {point.seconds:.1f} s",
        soft_wrap=True,
    )


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
