"""`lecritique plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from lecritique.cli.describe import placed_roles
from lecritique.cli.output import console
from lecritique.cli.train import Overrides, RecipeArgument
from lecritique.config.cluster import Cluster, cluster_of
from lecritique.config.explain import nearest
from lecritique.config.load import Recipe, compose, load_recipe, parse_override
from lecritique.core.errors import ConfigurationError

if TYPE_CHECKING:
    from lecritique.planning.plans import Planner, SynchronousPlan
    from lecritique.planning.roofline import Efficiency

_STEPS, _SKIPPED = 60, 20
_NEVER_IDLE = 0.01


def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    arm: Annotated[str | None, typer.Option(help="Preset or arm; by default what the recipe says.")] = None,
    gpus: Annotated[
        str | None, typer.Option(help="Number and kind, such as 8xH200; by default the recipe's nodes.")
    ] = None,
    group_sizes: Annotated[
        str | None, typer.Option(help="Group sizes to compare, separated by commas; by default half, own, double.")
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            help="Another assumption, such as response_tokens=3000 or train=0.4; give it several times for several."
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=_SKIPPED + 1, help="Steps to simulate; the first 20 do not count.")
    ] = _STEPS,
) -> None:
    """Say before a run what it needs and how long it takes: memory, step times, staleness, idle time. Nothing is run.

    Times are a model's: shares of each GPU's peak and lengths of rollouts are assumptions, printed with the result.

    Examples: `lecritique plan reasoning-gym --arm pvf`, `lecritique plan codeio --gpus 16xH100 --assume
    response_tokens=2000`.
    """
    source = load_recipe(recipe)
    cluster, efficiency = _assumptions(source, assume or [])
    planner = _planner(source, arm, overrides or [], cluster, efficiency, gpus)
    if planner.shape.partial_layers:
        layers = ", ".join(planner.shape.partial_layers)
        console.print(f"Model: it has layers of {layers}, which this version refuses to run.", soft_wrap=True)
    for line in placed_roles(planner.config, planner.shape, planner.placement):
        console.print(line, soft_wrap=True)
    console.print(
        f"Assumed: prompts of {cluster.prompt_tokens} tokens, responses of {planner.response_tokens} (deviation "
        f"{cluster.spread:g} of the mean), {_told(asdict(efficiency))}.",
        soft_wrap=True,
    )
    if planner.config.runtime.loop == "synchronous":
        planned = planner.synchronous()
        console.print(_phases(planned, cluster))
        console.print(
            f"{planned.tokens_per_second:,.0f} tok/s; while rollouts are played, engines are idle "
            f"{planned.rollout_idle:.0%} of the time, waiting for the longest.",
            soft_wrap=True,
        )
        return
    sizes = _group_sizes(group_sizes, planner.config.rollout.group_size)
    table, notes = _asynchronous_table(source, arm, overrides or [], cluster, efficiency, gpus, sizes, steps)
    console.print(table)
    console.print(
        "step: seconds; tok/s: of trained rollouts; age: in policy versions, mean / oldest; lost: groups a step that "
        "became too old; then the idle time of inference, policy trainer, value trainer and evaluator.",
        soft_wrap=True,
    )
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)


def _planner(
    source: Recipe,
    arm: str | None,
    overrides: Sequence[str],
    cluster: Cluster,
    efficiency: Efficiency,
    gpus: str | None,
) -> Planner:
    from lecritique.planning.facts import resolved_without_loading
    from lecritique.planning.placement import parsed_gpus, placement_of, scaled_to
    from lecritique.planning.plans import Planner
    from lecritique.planning.shapes import shape_of

    config = compose(source, arm=arm, overrides=overrides)
    shape = shape_of(config.model.name)
    resolved = resolved_without_loading(config, shape, device="cuda")
    placement = placement_of(resolved, cluster) if gpus is None else scaled_to(*parsed_gpus(gpus), resolved, cluster)
    return Planner(config=resolved, shape=shape, cluster=cluster, placement=placement, efficiency=efficiency)


def _asynchronous_table(
    source: Recipe,
    arm: str | None,
    overrides: Sequence[str],
    cluster: Cluster,
    efficiency: Efficiency,
    gpus: str | None,
    sizes: Sequence[int],
    steps: int,
) -> tuple[Table, list[str]]:
    from lecritique.config.resolve import uses_critic

    table, notes = Table(), []
    for heading in ("evaluator", "K", "step s", "tok/s", "age", "lost", "inf", "pol", "val", "eval"):
        table.add_column(heading, justify="left" if heading == "evaluator" else "right", no_wrap=True)
    for placement in ("dedicated", "colocated"):
        for size in sizes:
            own = [*overrides, f"rollout.group_size={size}", f"runtime.placement={placement}"]
            try:
                planner = _planner(source, arm, own, cluster, efficiency, gpus)
                found = planner.asynchronous(steps=steps, skip=_SKIPPED)
            except ConfigurationError as error:
                notes.append(f"K {size}, {placement}: {error}")
                continue
            if found.idle.get("value trainer", 1.0) < _NEVER_IDLE:
                notes.append(f"K {size}, {placement}: the value trainer is never idle; its updates fall behind.")
            name = placement if uses_critic(planner.config) else "none"
            table.add_row(
                name,
                str(size),
                f"{found.step_seconds:.1f}",
                f"{found.tokens_per_second:,.0f}",
                f"{found.staleness:.2f} / {found.oldest}",
                f"{found.stale_groups:.2f}",
                *(
                    _share(found.idle.get(role))
                    for role in ("inference", "policy trainer", "value trainer", "evaluator")
                ),
            )
        if not uses_critic(compose(source, arm=arm, overrides=overrides)):
            break  # nothing to place
    return table, notes


def _phases(planned: SynchronousPlan, cluster: Cluster) -> Table:
    """Seconds of each phase of a synchronous step, beside what the recipe's paper printed."""
    published = dict(cluster.published_seconds)
    table = Table()
    table.add_column("phase")
    for heading in ("planned s", "published s", "ratio") if published else ("planned s",):
        table.add_column(heading, justify="right")
    total = published.pop("total", None)
    rows: list[tuple[str, float | None, float | None]] = [
        (phase, seconds, published.pop(phase, None)) for phase, seconds in planned.seconds.items()
    ]
    rows += [(phase, None, seconds) for phase, seconds in published.items()]
    for phase, seconds, printed in [*rows, ("step", planned.step_seconds, total)]:
        cells = ["-" if seconds is None else f"{seconds:.1f}"]
        if cluster.published_seconds:
            ratio = None if seconds is None or not printed else seconds / printed
            cells += ["-" if printed is None else f"{printed:.1f}", "-" if ratio is None else f"{ratio:.2f}"]
        table.add_row(phase, *cells, end_section=phase == "step")
    return table


def _assumptions(source: Recipe, texts: Sequence[str]) -> tuple[Cluster, Efficiency]:
    """The recipe's table `[cluster]` and the roofline's shares, with what is assumed instead.

    Raises:
        ConfigurationError: neither knows the key, or the value is unfit.
    """
    from lecritique.planning.roofline import Efficiency

    cluster = (source.cluster or Cluster()).model_dump()
    shares: dict[str, Any] = asdict(Efficiency())
    for text in texts:
        keys, value = parse_override(text)
        key = ".".join(keys)
        if key in shares:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < float("inf"):
                raise ConfigurationError(f"--assume {key}: got {value!r}, expected a number above 0.")
            shares[key] = float(value)
        elif key in cluster:
            cluster[key] = value
        else:
            known = [*shares, *cluster]
            raise ConfigurationError(f"--assume {text}: unknown.{nearest(key, known)} Known: {', '.join(known)}.")
    return cluster_of(cluster), Efficiency(**shares)


def _group_sizes(text: str | None, own: int) -> list[int]:
    if text is None:
        return sorted({max(1, own // 2), own, own * 2})
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise ConfigurationError(f"--group-sizes: got {text!r}, expected numbers of at least 1, separated by commas.")
    return sizes


def _told(shares: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in shares.items())


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
