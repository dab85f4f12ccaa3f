"""How the roles of an asynchronous run shared its time: a timeline, utilisation, staleness of what was trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from lecritique.analysis import page
from lecritique.analysis.figures import MUTED, Plot, Row, arm_colour, frame
from lecritique.analysis.history import Record, spans, surviving_outcomes
from lecritique.analysis.read import Comparison, Run
from lecritique.analysis.wording import counted, number

ROLES = ("rollout engine", "value evaluator", "policy trainer", "value trainer", "orchestrator")
# The timeline shows the end of a run: so many steps, so many seconds at most.
_STEPS_SHOWN = 12
_SECONDS_SHOWN = 30.0
_SPANS_SHOWN = 1500
_UTILISATION = ("rollout", "evaluator", "policy", "critic", "orchestrator")


class Drawn(TypedDict):
    """How a figure is drawn, None where nothing was recorded, and its numbers."""

    draw: Callable[[Any], None] | None
    rows: Sequence[Row]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Shown:
    """The run whose roles are drawn, and what it recorded of them."""

    run: Run
    spans: Sequence[Record]
    outcomes: Sequence[Record]


def roles_section(comparison: Comparison) -> str:
    """The section of the newest asynchronous run; empty when no run was one."""
    shown = _shown(comparison)
    if shown is None:
        return ""
    ended = Counter(str(outcome["outcome"]) for outcome in shown.outcomes)
    said = ", ".join(f"{count:,} {name}" for name, count in ended.most_common())
    waited = float(np.nansum(shown.run.series("seconds_waiting_values")))
    total = float(np.nansum(shown.run.series("seconds")))
    wait = f" The policy waited {number(waited)} of {number(total)} seconds for values." if total else ""
    return page.section(
        "Roles",
        f"How rollouts, scoring and training shared the time of {shown.run.arm}, seed {shown.run.seed}: "
        f"{counted(sum(ended.values()), 'group')}, {said}.{wait}",
        page.figures([plot.on_page() for plot in _plots(shown)]),
    )


def roles_plots(comparison: Comparison) -> list[Plot]:
    """The figures of the newest asynchronous run; empty when no run was one."""
    shown = _shown(comparison)
    return [] if shown is None else _plots(shown)


def _plots(shown: _Shown) -> list[Plot]:
    return [
        Plot(
            name="roles-timeline",
            title="Who worked when",
            caption=f"The last {_STEPS_SHOWN} steps, at most {_SECONDS_SHOWN:g} seconds. Gaps of the policy "
            "trainer are time in which nothing was ready for it.",
            absent="No piece of work was recorded.",
            size=(6.4, 2.4),
            **_timeline(shown),
        ),
        Plot(
            name="roles-utilisation",
            title="Share of time at work",
            caption="Mean over the steps. Threads of one process share its cores, so the shares need not leave "
            "room for more.",
            absent="No utilisation was recorded.",
            size=(6.4, 2.4),
            **_utilisation(shown.run),
        ),
        Plot(
            name="roles-staleness",
            title="Staleness of what was trained on",
            caption="Policy versions between a group's oldest token and its update.",
            absent="No group was trained on.",
            **_staleness(shown),
        ),
    ]


def _shown(comparison: Comparison) -> _Shown | None:
    runs = [run for run in comparison.runs.values() if run.config.get("runtime", {}).get("loop") == "asynchronous"]
    if not runs:
        return None
    newest = max(runs, key=lambda run: str(run.status.get("updated") or ""))
    return _Shown(run=newest, spans=spans(newest.path), outcomes=surviving_outcomes(newest.path))


def _timeline(shown: _Shown) -> Drawn:
    recorded = shown.spans
    if not recorded:
        return {"draw": None, "rows": ()}
    resume = recorded[-1]["resume"]
    last_step = max(span["step"] for span in recorded if span["resume"] == resume)
    end = max(span["end"] for span in recorded if span["resume"] == resume)
    late = [
        span
        for span in recorded
        if span["resume"] == resume
        and span["step"] > last_step - _STEPS_SHOWN
        and span["end"] > end - _SECONDS_SHOWN
        and span["role"] in ROLES
    ][-_SPANS_SHOWN:]
    if not late:
        return {"draw": None, "rows": ()}
    start = max(end - _SECONDS_SHOWN, min(span["start"] for span in late))
    bars = {
        role: [
            (max(span["start"], start) - start, span["end"] - max(span["start"], start))
            for span in late
            if span["role"] == role
        ]
        for role in ROLES
    }

    def draw(ax: Any) -> None:
        for index, role in enumerate(ROLES):
            ax.broken_barh(bars[role], (-index - 0.3, 0.6), facecolors=arm_colour(index), linewidth=0)
        frame(ax, "", grid="x")
        ax.set_yticks([-index for index in range(len(ROLES))], ROLES)
        ax.set_xlim(0, end - start)
        ax.set_xlabel("seconds")

    # A line a piece of work: its start, and its length as y.
    rows = [_row(shown.run, role, x=begun, y=lasted) for role in ROLES for begun, lasted in bars[role]]
    return {"draw": draw, "rows": rows}


def _utilisation(run: Run) -> Drawn:
    series = [run.series(f"utilisation_{name}") for name in _UTILISATION]
    means = [float(np.nanmean(column)) if np.isfinite(column).any() else np.nan for column in series]
    if not np.isfinite(means).any():
        return {"draw": None, "rows": ()}

    def draw(ax: Any) -> None:
        for index, mean in enumerate(means):
            if np.isfinite(mean):
                ax.barh(-index, mean, height=0.6, color=arm_colour(index), linewidth=0)
                ax.annotate(
                    f"{mean:.0%}", (mean, -index), xytext=(5, 0), textcoords="offset points", va="center", size=9
                )
        frame(ax, "", grid="x")
        ax.set_yticks([-index for index in range(len(ROLES))], ROLES)
        ax.set_xlim(0, 1.15 * max(1.0, np.nanmax(means)))

    return {"draw": draw, "rows": [_row(run, role, x="", y=mean) for role, mean in zip(ROLES, means, strict=True)]}


def _staleness(shown: _Shown) -> Drawn:
    ages = Counter(
        int(o["staleness"]) for o in shown.outcomes if o["outcome"] == "trained" and o["staleness"] is not None
    )
    if not ages:
        return {"draw": None, "rows": ()}

    def draw(ax: Any) -> None:
        ax.bar(list(ages), list(ages.values()), width=0.7, color=arm_colour(0), linewidth=0)
        frame(ax, "groups")
        ax.set_xticks(range(max(ages) + 1))
        ax.set_xlim(-0.6, max(ages) + 0.6)
        ax.set_xlabel("policy versions")
        ax.axhline(0, color=MUTED, linewidth=0.8)

    return {"draw": draw, "rows": [_row(shown.run, "groups", x=age, y=count) for age, count in sorted(ages.items())]}


def _row(run: Run, series: str, *, x: float | str, y: float) -> Row:
    return Row(arm=run.arm, seed=run.seed, series=series, x=x, y=y)
