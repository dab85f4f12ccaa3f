"""What a comparison shows, in plain words that claim no more than the intervals do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lecritique.analysis.arm_tests import budget_of
from lecritique.analysis.bootstrap import FEWEST_SEEDS, Interval, chance_exclusion
from lecritique.analysis.read import Comparison, Run
from lecritique.analysis.summary import arm_endpoint, paired_endpoint
from lecritique.analysis.wording import percent, shortened, signed

_NAME = 44
_FEW_SEEDS = 10
_STATES = {
    "running": "still running",
    "interrupted": "interrupted",
    "failed": "failed",
    "diverged": "diverged",
    "unknown": "without a status",
}


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One sentence, the paragraph under it, and what a reader must know before believing either."""

    title: str
    text: str
    cautions: tuple[str, ...]


def headline(comparison: Comparison) -> Headline:
    """Which arm has the highest endpoint reward, by how much, and whether that is settled."""
    cautions = _cautions(comparison)
    ranked = ranked_arms(comparison, "reward")
    if not ranked:
        return Headline(title="Nothing has been measured yet", text="No run has recorded a reward.", cautions=cautions)
    best, found = ranked[0]
    name = shortened(best, _NAME)
    so_far = "" if all(run.finished for run in comparison.runs.values()) else " so far"
    if len(comparison.arms) == 1:
        return Headline(
            title=f"{name} reached a reward of {found.estimate:.3f}{so_far}",
            text=" ".join([_gain(comparison, found), _critic(comparison)]).strip(),
            cautions=cautions,
        )
    if len(ranked) == 1:
        return Headline(
            title=f"So far only {name} has a reward: {found.estimate:.3f}",
            text=" ".join([_gain(comparison, found), _critic(comparison)]).strip(),
            cautions=cautions,
        )
    second = ranked[1][0]
    lead = paired_endpoint(comparison, "reward", best, second)
    settled = lead.excludes_zero and lead.low > 0
    title = (
        f"{name} reached the highest reward{so_far}: {found.estimate:.3f}"
        if settled
        else f"{name} is ahead with a reward of {found.estimate:.3f}, but the lead is not settled"
    )
    parts = [_lead(shortened(second, _NAME), lead, settled), _gain(comparison, found), _critic(comparison)]
    return Headline(title=title, text=" ".join(part for part in parts if part), cautions=cautions)


def ranked_arms(comparison: Comparison, metric: str) -> list[tuple[str, Interval]]:
    """Arms that have an endpoint of `metric`, the largest mean first."""
    found = [(arm, arm_endpoint(comparison, metric, arm)) for arm in comparison.arms]
    known = [(arm, interval) for arm, interval in found if math.isfinite(interval.estimate)]
    return sorted(known, key=lambda pair: -pair[1].estimate)


def _lead(second: str, lead: Interval, settled: bool) -> str:
    if lead.seeds == 0:
        return f"It has no seed in common with {second}, the next, so the two cannot be paired."
    side = "above" if lead.estimate >= 0 else "below"
    where = f"Over {_seeds(lead.seeds)} they share, it is {abs(lead.estimate):.3f} {side} {second}, the next"
    if not (math.isfinite(lead.low) and math.isfinite(lead.high)):
        return f"{where}; there is too little to resample for an interval."
    where += f" (95% interval {signed(lead.low)} to {signed(lead.high)})"
    if settled:
        chance = percent(chance_exclusion(lead.seeds) or 0.0)
        few = f" (where nothing differs, about {chance} of intervals from so few seeds do that too)"
        return f"{where}, an interval that leaves out zero{few if lead.seeds <= _FEW_SEEDS else ''}."
    if lead.seeds < FEWEST_SEEDS:
        return f"{where}. No significance is claimed from fewer than three seeds."
    return f"{where}, an interval that holds zero: the order of the two may be chance."


def _gain(comparison: Comparison, found: Interval) -> str:
    base = comparison.base_reward
    if base is None:
        return ""
    return f"Before training the policy scored {base:.3f}: a change of {signed(found.estimate - base)}."


def _critic(comparison: Comparison) -> str:
    ranked = ranked_arms(comparison, "explained_variance")
    if not ranked:
        return "No critic was measured."
    best, found = ranked[0]
    first = shortened(best, _NAME)
    if len(ranked) == 1:
        return f"The critic of {first} explains {percent(found.estimate)} of the variance of returns at the end."
    worst, least = ranked[-1]
    return (
        f"The critic that predicts returns best is that of {first}: at the end it explains {percent(found.estimate)} "
        f"of their variance, that of {shortened(worst, _NAME)} {percent(least.estimate)}."
    )


def _seeds(count: int) -> str:
    return "the one seed" if count == 1 else f"the {count} seeds"


def _cautions(comparison: Comparison) -> tuple[str, ...]:
    found = []
    planned = len(comparison.arms) * len(comparison.seeds)
    missing = planned - len(comparison.runs)
    if missing:
        found.append(f"{missing} of {planned} runs not started.")
    states = dict.fromkeys((*_STATES, *(run.state for run in comparison.runs.values())))
    for state in states:
        runs = [run for run in comparison.runs.values() if run.state == state]
        if runs and state != "finished":
            shown = "; ".join(_progress(run) for run in runs[:6])
            more = f"; and {len(runs) - 6} more" if len(runs) > 6 else ""
            count = "Run" if planned == 1 else f"{len(runs)} of {planned} runs"
            found.append(f"{count} {_STATES.get(state, state)}: {shown}{more}.")
    lengths = {len(run.steps) for run in comparison.runs.values()}
    if len(lengths) > 1 and budget_of(comparison) is None:
        steps = f"{min(lengths)} to {max(lengths)} steps"
        found.append(f"Runs differ in length ({steps}), so their endpoints are not of the same steps.")
    return tuple(found)


def _progress(run: Run) -> str:
    planned = f" of {run.planned_steps}" if run.planned_steps is not None else ""
    message = run.status.get("message")
    said = f", {shortened(str(message), 160)}" if message else ""
    return f"{shortened(run.arm, _NAME)} seed {run.seed} ({len(run.steps)}{planned} steps{said})"
