"""`lecritique train`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from lecritique.cli.output import console, number
from lecritique.config.load import compose, load_recipe
from lecritique.config.presets import PRESETS

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A shipped recipe (such as demo) or a path to a TOML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Overrides in TOML syntax, such as rollout.batch_size=64."),
]

_PRESET_LINES = "\n".join(f"- `{name}`: {preset.text}" for name, preset in PRESETS.items())


def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    arm: Annotated[
        str | None, typer.Option(help="Preset or arm of the recipe; by default what the recipe says.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory, new or empty; by default runs/RECIPE-ARM-TIME.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and batch arithmetic, train nothing.")
    ] = False,
) -> None:
    """Train one arm of a recipe.

    Examples: `lecritique train demo --arm pvf` and
    `lecritique train demo estimator.type=tether run.steps=50 --dry-run`.
    """
    config = compose(load_recipe(recipe), arm=arm, overrides=overrides or [])
    # torch is loaded only once the configuration is known to be sound.
    from lecritique.cli.describe import print_plan
    from lecritique.runtime.build import build, load_base
    from lecritique.runtime.threads import choose_threads

    base = load_base(config)
    note = choose_threads(base.language.model.num_parameters())
    if dry_run:
        print_plan(base)
        return
    if note:
        console.print(note, soft_wrap=True)
    from lecritique.analysis.read import load_run
    from lecritique.analysis.summary import run_summary
    from lecritique.cli.progress import TrainProgress
    from lecritique.runs.directory import RunDirectory, write_json
    from lecritique.runtime.synchronous import train as run_steps

    directory = RunDirectory.create(out or _default_out(recipe, base.config.preset or "custom"), base.config)
    parts = build(base)
    with TrainProgress(base.config.preset or "custom", base.config.run.steps) as progress:
        run_steps(parts, directory, on_step=progress.step)
    summary = run_summary(load_run(directory.path))
    write_json(directory.path / "summary.json", summary)
    console.print(
        f"reward {number(summary['reward_last'])}  EV {number(summary['explained_variance_last'])}  "
        f"rho {number(summary['rho_last'])}  (last third or last 50 steps)\nrun: {directory.path}\n"
        f"report: lecritique report {directory.path}",
        soft_wrap=True,
    )


def _default_out(recipe: str, arm: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{Path(recipe).stem}-{arm}-{stamp}"
