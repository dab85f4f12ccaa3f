"""`lecritique train`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lecritique.cli.output import console, number
from lecritique.config.load import compose, load_recipe
from lecritique.config.presets import PRESETS
from lecritique.core.errors import ConfigurationError

if TYPE_CHECKING:
    from lecritique.runs.directory import RunDirectory
    from lecritique.runtime.build import Base, Parts

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A shipped recipe (such as demo) or a path to a TOML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Overrides in TOML syntax, such as rollout.batch_size=64."),
]

_PRESET_LINES = "\n".join(f"- `{name}`: {preset.text}" for name, preset in PRESETS.items())


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="A shipped recipe (such as demo) or a TOML file; none with --resume."),
    ] = None,
    overrides: Overrides = None,
    arm: Annotated[
        str | None, typer.Option(help="Preset or arm of the recipe; by default what the recipe says.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory, new or empty; by default runs/RECIPE-ARM-TIME.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this directory from its newest checkpoint.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and batch arithmetic, train nothing.")
    ] = False,
) -> None:
    """Train one arm of a recipe.

    Examples: `lecritique train demo --arm pvf`, `lecritique train demo estimator.type=tether run.steps=50 --dry-run`
    and, for a run that was interrupted or should go on for longer, `lecritique train --resume RUN run.steps=200`.
    """
    if resume is not None:
        # Without a recipe the first word is an override too.
        _train_resumed(resume, [word for word in (recipe, *(overrides or [])) if word], arm, out, dry_run)
        return
    if recipe is None:
        raise ConfigurationError("missing argument 'RECIPE'; see lecritique train --help.")
    config = compose(load_recipe(recipe), arm=arm, overrides=overrides or [])
    # torch is loaded only once the configuration is known to be sound.
    from lecritique.runs.directory import RunDirectory
    from lecritique.runtime.build import build, load_base

    base = load_base(config)
    if _described(base, dry_run):
        return
    with closing(
        RunDirectory.create(out or _default_out(recipe, base.config.preset or "custom"), base.config)
    ) as directory:
        _run(build(base), directory, first=0)


def _train_resumed(path: Path, words: Sequence[str], arm: str | None, out: Path | None, dry_run: bool) -> None:
    for word in words:
        if "=" not in word:
            raise ConfigurationError(
                f"--resume goes on with the run's own configuration, it takes no RECIPE: {word!r}."
            )
    for option, value in (("--arm", arm), ("--out", out)):
        if value is not None:
            raise ConfigurationError(
                f"{option} cannot be given with --resume: the run goes on as what it is, in '{path}'."
            )
    from lecritique.runtime.resuming import resume

    found = resume(path, words)
    with closing(found.directory):
        for note in found.notes:
            console.print(note, soft_wrap=True)
        if not _described(found.base, dry_run):
            _run(found.begin(), found.directory, first=found.first)


def _described(base: Base, dry_run: bool) -> bool:
    """Say what a person should know before the start; True when that was all that is wanted."""
    from lecritique.cli.describe import print_plan
    from lecritique.runtime.threads import choose_threads

    note = choose_threads(base.language.model.num_parameters())
    if base.data.counts.note:
        console.print(base.data.counts.note, soft_wrap=True)
    if dry_run:
        print_plan(base)
    elif note:
        console.print(note, soft_wrap=True)
    return dry_run


def _run(parts: Parts, directory: RunDirectory, *, first: int) -> None:
    """Train, and say how it went."""
    from lecritique.analysis.read import load_run
    from lecritique.analysis.summary import run_summary
    from lecritique.cli.progress import TrainProgress
    from lecritique.runs.directory import write_json
    from lecritique.runtime.training import train as run_steps

    config = parts.config
    if config.critic.init and not first:
        console.print(f"Critic from '{config.critic.init}'; its optimizer starts afresh.", soft_wrap=True)
    with TrainProgress(config.preset or "custom", config.run.steps, done=first) as progress:
        run_steps(parts, directory, first=first, on_step=progress.step, warn=_warn)
    summary = run_summary(load_run(directory.path))
    write_json(directory.path / "summary.json", summary)
    console.print(
        f"reward {number(summary['reward_last'])}  EV {number(summary['explained_variance_last'])}  "
        f"rho {number(summary['rho_last'])}  (last third or last 50 steps)\nrun: {directory.path}\n"
        f"report: lecritique report {directory.path}",
        soft_wrap=True,
    )


def _warn(message: str) -> None:
    console.print(f"warning: {message}", soft_wrap=True)


def _default_out(recipe: str, arm: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{Path(recipe).stem}-{arm}-{stamp}"
