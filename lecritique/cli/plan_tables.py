"""What `lecritique plan` shows: its tables, and the same as a record for other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lecritique.config.cluster import Cluster

if TYPE_CHECKING:
    from lecritique.planning.plans import Planner, SynchronousPlan
    from lecritique.planning.simulation import Outcome

_ROLES = ("inference", "policy trainer", "value trainer", "evaluator")


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """One row of the asynchronous table; `evaluator` is dedicated, colocated or none."""

    evaluator: str
    group_size: int
    outcome: Outcome


def asynchronous_table(runs: Sequence[SimulatedRun]) -> Table:
    """A row for each placement and group size, dedicated ones first."""
    table = Table()
    for heading in ("evaluator", "K", "step s", "tok/s", "age", "lost", "inf", "pol", "val", "eval"):
        table.add_column(heading, justify="left" if heading == "evaluator" else "right", no_wrap=True)
    for run in sorted(runs, key=lambda run: run.evaluator != "dedicated"):
        found = run.outcome
        table.add_row(
            run.evaluator,
            str(run.group_size),
            f"{found.step_seconds:.1f}",
            f"{found.tokens_per_second:,.0f}",
            f"{found.staleness:.2f} / {found.oldest}",
            f"{found.stale_groups:.2f}",
            *(_share(found.idle.get(role)) for role in _ROLES),
        )
    return table


def synchronous_table(planned: SynchronousPlan, cluster: Cluster) -> Table:
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


def cpu_table(seconds: Mapping[str, float]) -> Table:
    """CPU seconds of each phase."""
    table = Table()
    table.add_column("phase")
    table.add_column("planned CPU s", justify="right")
    for phase, taken in [*seconds.items(), ("step", sum(seconds.values()))]:
        table.add_row(phase, f"{taken:.3f}")
    return table


def planned_record(
    planner: Planner,
    *,
    synchronous: SynchronousPlan | None = None,
    runs: Sequence[SimulatedRun] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """All of a plan, ready for JSON; bytes, seconds, tokens/s, shares from 0 to 1."""
    from lecritique.planning.placement import memory_on_gpus

    placed = planner.placement
    held = memory_on_gpus(planner.config, planner.shape, placed)
    record: dict[str, Any] = {
        "model": planner.shape.name,
        "parameters": planner.shape.parameters,
        "gpu": placed.gpu.name,
        "gpus": {"total": placed.total, "shared": placed.shared, **placed.gpus},
        "memory_of_one_gpu": [{**asdict(role), "fits": role.fits(placed.gpu)} for role in held],
        "assumed": {
            **planner.cluster.model_dump(mode="json"),
            "response_tokens": planner.response_tokens,
            **asdict(planner.efficiency),
        },
        "notes": list(notes),
    }
    if synchronous is not None:
        record["synchronous"] = {**asdict(synchronous), "step_seconds": synchronous.step_seconds}
    else:
        record["asynchronous"] = [
            {"evaluator": run.evaluator, "group_size": run.group_size, **asdict(run.outcome)} for run in runs
        ]
    return record


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
