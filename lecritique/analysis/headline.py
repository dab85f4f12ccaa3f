"""What a comparison shows, in plain words that claim no more than the intervals do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lecritique.analysis.bootstrap import FEWEST_SEEDS, Interval
from lecritique.analysis.read import Comparison
from lecritique.analysis.summary import arm_endpoint, paired_endpoint


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
    if len(comparison.arms) == 1:
        return Headline(
            title=f"{best} reached a reward of {found.estimate:.3f}",
            text=" ".join([_gain(comparison, found), _critic(comparison)]).strip(),
            cautions=cautions,
        )
    if len(ranked) == 1:
        return Headline(
            title=f"So far only {best} has a reward: {found.estimate:.3f}",
            text=" ".join([_gain(comparison, found), _critic(comparison)]).strip(),
            cautions=cautions,
        )
    second = ranked[1][0]
    lead = paired_endpoint(comparison, "reward", best, second)
    settled = lead.excludes_zero and lead.low > 0
    title = (
        f"{best} reached the highest reward: {found.estimate:.3f}"
        if settled
        else f"{best} is ahead with a reward of {found.estimate:.3f}, but the lead is not settled"
    )
    parts = [_lead(best, second, lead, settled), _gain(comparison, found), _critic(comparison)]
    return Headline(title=title, text=" ".join(part for part in parts if part), cautions=cautions)


def ranked_arms(comparison: Comparison, metric: str) -> list[tuple[str, Interval]]:
    """Arms that have an endpoint of `metric`, the largest mean first."""
    found = [(arm, arm_endpoint(comparison, metric, arm)) for arm in comparison.arms]
    known = [(arm, interval) for arm, interval in found if math.isfinite(interval.estimate)]
    return sorted(known, key=lambda pair: -pair[1].estimate)


def signed(value: float) -> str:
    """Three decimals with a sign, a true minus."""
    return f"{value:+.3f}".replace("-", "−")


def _lead(best: str, second: str, lead: Interval, settled: bool) -> str:
    if lead.seeds == 0:
        return f"It has no seed in common with {second}, the next, so the two cannot be paired."
    side = "above" if lead.estimate >= 0 else "below"
    where = f"Over {_seeds(lead.seeds)} they share, it is {abs(lead.estimate):.3f} {side} {second}, the next"
    if not (math.isfinite(lead.low) and math.isfinite(lead.high)):
        return f"{where}; there is too little to resample for an interval."
    where += f" (95% interval {signed(lead.low)} to {signed(lead.high)})"
    if settled:
        return f"{where}, an interval that leaves out zero."
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
    if len(ranked) == 1:
        return f"The critic of {best} explains {_share(found.estimate)} of the variance of returns at the end."
    worst, least = ranked[-1]
    return (
        f"The critic that predicts returns best is that of {best}: at the end it explains {_share(found.estimate)} "
        f"of their variance, that of {worst} {_share(least.estimate)}."
    )


def _cautions(comparison: Comparison) -> tuple[str, ...]:
    found = []
    planned = len(comparison.arms) * len(comparison.seeds)
    missing = planned - len(comparison.runs)
    if missing:
        found.append(f"{missing} of {planned} runs have not started.")
    for state in ("running", "interrupted", "failed", "diverged", "unknown"):
        names = [f"{arm} seed {seed}" for (arm, seed), run in comparison.runs.items() if run.state == state]
        if names:
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            label = "without a status file" if state == "unknown" else state
            found.append(f"{len(names)} of {planned} runs {'is' if len(names) == 1 else 'are'} {label}: {shown}.")
    lengths = {len(run.steps) for run in comparison.runs.values()}
    if len(lengths) > 1:
        found.append(
            f"Runs differ in length ({min(lengths)} to {max(lengths)} steps), so their endpoints are of different steps."
        )
    return tuple(found)


def _seeds(count: int) -> str:
    return "the one seed" if count == 1 else f"the {count} seeds"


def _share(explained: float) -> str:
    return f"{100 * explained:.0f}%".replace("-", "−")
