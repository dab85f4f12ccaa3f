"""`lecritique plan`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lecritique.cli.describe import placed_roles
from lecritique.cli.output import console, print_table
from lecritique.cli.plan_tables import (
    SimulatedRun,
    asynchronous_table,
    cpu_table,
    planned_record,
    synchronous_table,
)
from lecritique.cli.train import Overrides, RecipeArgument
from lecritique.config.cluster import Cluster, cluster_of
from lecritique.config.explain import nearest
from lecritique.config.load import Recipe, compose, load_recipe, parse_override
from lecritique.core.errors import ConfigurationError

if TYPE_CHECKING:
    from lecritique.planning.plans import Planner
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
    measure: Annotated[
        bool, typer.Option("--measure", help="Time this machine, and plan one process on one thread of its CPU.")
    ] = False,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Say before a run what it needs and how long it takes: memory, step times, staleness, idle time. Nothing is run.

    Times are a model's: shares of each GPU's peak and lengths of rollouts are assumptions, printed with the result.
    With `--measure` the machine's constants are measured, and the lengths of rollouts alone are assumed; prompts are
    the recipe's where its model is on this machine.

    Examples: `lecritique plan reasoning-gym --arm pvf`, `lecritique plan codeio --gpus 16xH100 --assume
    response_tokens=2000`, `lecritique plan demo --measure --assume response_tokens=16`.
    """
    source, words = load_recipe(recipe), overrides or []
    cluster, efficiency = _assumptions(source, assume or [])
    if measure:
        if gpus is not None or group_sizes is not None:
            raise ConfigurationError(
                "--measure plans one process on this CPU, it takes no --gpus and no --group-sizes."
            )
        _plan_cpu(source, arm, words, cluster, as_json=as_json)
        return
    planner = _planner(source, arm, words, cluster, efficiency, gpus)
    if planner.config.runtime.loop == "synchronous":
        _plan_synchronous(planner, as_json=as_json)
        return
    runs, notes = [], []
    for size in _group_sizes(group_sizes, planner.config.rollout.group_size):
        found, said = _simulated(source, arm, words, cluster, efficiency, gpus, size, steps)
        runs += found
        notes += said
    if as_json:
        _print_record(planned_record(planner, runs=runs, notes=notes))
        return
    _print_head(planner)
    print_table(asynchronous_table(runs))
    console.print(
        "step: seconds; tok/s: of trained rollouts; age: in policy versions, mean / oldest; lost: groups a step that "
        "became too old; then the idle time of inference, policy trainer, value trainer and evaluator.",
        soft_wrap=True,
    )
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)


def _plan_cpu(source: Recipe, arm: str | None, overrides: Sequence[str], cluster: Cluster, *, as_json: bool) -> None:
    """One process on one thread of this machine, by constants that are measured now."""
    from lecritique.planning.cpu import CpuPlanner
    from lecritique.planning.facts import resolved_without_loading
    from lecritique.planning.shapes import is_here, shape_of
    from lecritique.runtime.build import load_base
    from lecritique.runtime.measuring import mean_prompt_tokens, measured_constants

    config = compose(source, arm=arm, overrides=overrides)
    shape = shape_of(config.model.name)
    resolved = resolved_without_loading(config, shape, device="cpu")
    if "prompt_tokens" not in cluster.model_fields_set and is_here(config.model.name):
        cluster = cluster.model_copy(update={"prompt_tokens": mean_prompt_tokens(load_base(config))})
    # Refused before anything is timed.
    CpuPlanner.require(resolved, cluster)
    planner = CpuPlanner(config=resolved, shape=shape, cluster=cluster, constants=measured_constants())
    seconds = planner.seconds()
    tokens = planner.response_tokens * resolved.rollout.batch_size
    if as_json:
        _print_record(
            {
                "model": shape.name,
                "constants": asdict(planner.constants),
                "assumed": cluster.model_dump(mode="json"),
                "cpu_seconds": seconds,
                "step_cpu_seconds": sum(seconds.values()),
            }
        )
        return
    console.print(f"Measured, one thread: {_told(asdict(planner.constants))}.", soft_wrap=True)
    console.print(
        f"Lengths: prompts of {cluster.prompt_tokens} tokens; assumed: responses of {planner.response_tokens:g} "
        f"(deviation {cluster.spread:g} of the mean).",
        soft_wrap=True,
    )
    print_table(cpu_table(seconds))
    console.print(
        f"{tokens / sum(seconds.values()):,.0f} tok/s on one thread. An asynchronous run does the same work, on as "
        "many cores as there are; its critic may make fewer updates.",
        soft_wrap=True,
    )


def _plan_synchronous(planner: Planner, *, as_json: bool) -> None:
    planned = planner.synchronous()
    if as_json:
        _print_record(planned_record(planner, synchronous=planned))
        return
    _print_head(planner)
    print_table(synchronous_table(planned, planner.cluster))
    console.print(
        f"{planned.tokens_per_second:,.0f} tok/s; while rollouts are played, engines are idle "
        f"{planned.rollout_idle:.0%} of the time, waiting for the longest.",
        soft_wrap=True,
    )


def _print_head(planner: Planner) -> None:
    """Model, placement, memory and what is assumed."""
    cluster = planner.cluster
    if planner.shape.partial_layers:
        layers = ", ".join(planner.shape.partial_layers)
        console.print(f"Model: it has layers of {layers}, which this version refuses to run.", soft_wrap=True)
    for line in placed_roles(planner.config, planner.shape, planner.placement):
        console.print(line, soft_wrap=True)
    console.print(
        f"Assumed: prompts of {cluster.prompt_tokens} tokens, responses of {planner.response_tokens} (deviation "
        f"{cluster.spread:g} of the mean), {_told(asdict(planner.efficiency))}.",
        soft_wrap=True,
    )


def _print_record(record: dict[str, Any]) -> None:
    print(json.dumps(record, indent=2, allow_nan=False))


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


def _simulated(
    source: Recipe,
    arm: str | None,
    overrides: Sequence[str],
    cluster: Cluster,
    efficiency: Efficiency,
    gpus: str | None,
    size: int,
    steps: int,
) -> tuple[list[SimulatedRun], list[str]]:
    """Runs with groups of one size, in both placements where there is a critic to place; what stands in their way."""
    from lecritique.config.resolve import uses_critic

    runs, notes = [], []
    has_critic = uses_critic(compose(source, arm=arm, overrides=overrides))
    for placement in ("dedicated", "colocated") if has_critic else ("dedicated",):
        own = [*overrides, f"rollout.group_size={size}", f"runtime.placement={placement}"]
        try:
            planner = _planner(source, arm, own, cluster, efficiency, gpus)
            found = planner.asynchronous(steps=steps, skip=_SKIPPED)
        except ConfigurationError as error:
            notes.append(f"K {size}, {placement}: {error}")
            continue
        if found.idle.get("value trainer", 1.0) < _NEVER_IDLE:
            notes.append(f"K {size}, {placement}: the value trainer is never idle; its updates fall behind.")
        runs.append(SimulatedRun(evaluator=placement if has_critic else "none", group_size=size, outcome=found))
    return runs, notes


def _assumptions(source: Recipe, texts: Sequence[str]) -> tuple[Cluster, Efficiency]:
    """The recipe's table `[cluster]` and the roofline's shares, with what is assumed instead.

    Raises:
        ConfigurationError: neither knows the key, or the value is unfit.
    """
    from lecritique.planning.roofline import Efficiency

    cluster = (source.cluster or Cluster()).model_dump(exclude_unset=True)
    shares: dict[str, Any] = asdict(Efficiency())
    for text in texts:
        keys, value = parse_override(text)
        key = ".".join(keys)
        if key in shares:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < float("inf"):
                raise ConfigurationError(f"--assume {key}: got {value!r}, expected a number above 0.")
            shares[key] = float(value)
        elif key in Cluster.model_fields:
            cluster[key] = value
        else:
            known = [*shares, *Cluster.model_fields]
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


def _told(values: dict[str, Any]) -> str:
    """Names and numbers, those of a part in brackets."""
    return ", ".join(
        f"{name} ({_told(value)})" if isinstance(value, dict) else f"{name} {value:.4g}"
        for name, value in values.items()
    )
