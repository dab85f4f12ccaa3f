"""`lecritique train`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lecritique.actors.seats import cluster_settings, require_runtime
from lecritique.cli.output import console, number
from lecritique.config.load import compose, load_recipe
from lecritique.config.presets import PRESETS
from lecritique.config.unread import unread
from lecritique.core.errors import ConfigurationError

if TYPE_CHECKING:
    from lecritique.actors.cluster import Cluster
    from lecritique.runs.directory import RunDirectory
    from lecritique.runtime.actor_roles import ActorRoles
    from lecritique.runtime.build import Base, Parts
    from lecritique.runtime.training_group import TrainingGroup

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
        bool,
        typer.Option("--dry-run", help="Print configuration, batch arithmetic, memory and placement; train nothing."),
    ] = False,
) -> None:
    """Train one arm of a recipe.

    Examples: `lecritique train demo --arm pvf`, `lecritique train demo estimator.type=tether run.steps=50 --dry-run`
    and, for a run that was interrupted or should go on for longer, `lecritique train --resume RUN run.steps=200`.
    """
    from lecritique.runtime.parent import end_with_parent

    end_with_parent()
    if resume is not None:
        # Without a recipe the first word is an override too.
        _train_resumed(resume, [word for word in (recipe, *(overrides or [])) if word], arm, out, dry_run)
        return
    if recipe is None:
        raise ConfigurationError("missing argument 'RECIPE'; see lecritique train --help.")
    source = load_recipe(recipe)
    config = compose(source, arm=arm, overrides=overrides or [])
    # torch is loaded only once the configuration is known to be sound.
    if dry_run:
        from lecritique.cli.describe import print_dry_run

        print_dry_run(source, config)
        return
    from lecritique.runs.directory import RunDirectory
    from lecritique.runtime.build import build, load_base
    from lecritique.runtime.engines import require_engine

    require_engine(config)
    require_runtime(config)
    base = load_base(config)
    _prepare(base)
    place = out or _default_out(recipe, base.config.preset or "custom")
    with (
        _group(base) as group,
        _cluster(base) as cluster,
        closing(RunDirectory.create(place, base.config)) as directory,
        _actors(base, cluster, directory) as actors,
    ):
        _run(base, build(base, group, actors), directory, first=0)


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
        if dry_run:
            from lecritique.cli.describe import print_base

            print_base(found.base)
        else:
            _prepare(found.base)
            require_runtime(found.base.config)
            with (
                _group(found.base) as group,
                _cluster(found.base) as cluster,
                _actors(found.base, cluster, found.directory) as actors,
            ):
                _run(found.base, found.begin(group, actors), found.directory, first=found.first)


def _prepare(base: Base) -> None:
    """Choose the number of threads, and say what a person should know before the start."""
    from lecritique.runtime.threads import choose_threads

    note = choose_threads(base.language.model.num_parameters())
    for line in (base.data.counts.note, note, *unread(base.config)):
        if line:
            console.print(line, soft_wrap=True)


@contextmanager
def _group(base: Base) -> Iterator[TrainingGroup | None]:
    """The processes that train, None when this one trains alone, which loads nothing of what several need."""
    if base.config.runtime.ranks == 1:
        yield None
        return
    from lecritique.runtime.training_group import training_group

    console.print(f"Starting {base.config.runtime.ranks - 1} more training processes.", soft_wrap=True)
    with training_group(base.config) as group:
        yield group


@contextmanager
def _cluster(base: Base) -> Iterator[Cluster | None]:
    """The cluster for actors, with room for all of them; None where all roles are in this process."""
    if base.config.runtime.type == "local":
        yield None
        return
    from lecritique.actors.ray_cluster import ray_cluster

    settings = cluster_settings(base.config)
    console.print(f"Placing {len(settings.seats)} actors on Ray, address {settings.address}.", soft_wrap=True)
    with ray_cluster(settings) as cluster:
        yield cluster


@contextmanager
def _actors(base: Base, cluster: Cluster | None, directory: RunDirectory) -> Iterator[ActorRoles | None]:
    """The roles that live in actors of the cluster."""
    if cluster is None:
        yield None
        return
    from lecritique.runtime.actor_roles import ActorRoles

    length = base.language.context_length
    with closing(ActorRoles(base.config, cluster, directory, context_length=length)) as actors:
        yield actors


def _run(base: Base, parts: Parts, directory: RunDirectory, *, first: int) -> None:
    """Train, and say how it went."""
    from lecritique.analysis.read import load_run
    from lecritique.analysis.summary import run_summary
    from lecritique.cli.progress import TrainProgress
    from lecritique.runs.directory import write_json
    from lecritique.runtime.spending import limits_of
    from lecritique.runtime.training import train as run_steps

    config = parts.config
    if config.critic.init and not first:
        console.print(f"Critic from '{config.critic.init}'; its optimizer starts afresh.", soft_wrap=True)
    limits = limits_of(config.run.budget)
    with TrainProgress(config.preset or "custom", config.run.steps, done=first, limits=limits) as progress:
        if parts.actors is None:
            run_steps(parts, directory, first=first, on_step=progress.step, warn=_warn)
        else:
            from lecritique.runtime.restoring import train_on_actors

            train_on_actors(base, parts, directory, first=first, on_step=progress.step, warn=_warn)
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
