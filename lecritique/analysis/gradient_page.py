"""The page of `diagnose gradients`: one HTML file in the style of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import lecritique
from lecritique.analysis import page
from lecritique.analysis.figures import INK, MUTED, PANEL, SIZE, Axes, bars_height, frame, svg, tick_text
from lecritique.analysis.tables import table
from lecritique.analysis.value_page import cell
from lecritique.analysis.variance_ratios import KINDS, NONE, NONE_CENTRED, of_critics, shown_name
from lecritique.analysis.wording import clean, counted, number, shortened

Record = Mapping[str, Any]

WHY_CENTRED = (
    "With rewards of 0 and 1 and no baseline a failure has no gradient; 'none, rewards centred' takes the middle of "
    "the task's reward range from every reward, so that the choice of their zero decides nothing."
)
_TITLES = {"trajectory": "Of one rollout", "group": "Of the mean over a group"}
_CAPTIONS = {
    "trajectory": "What a batch of independent rollouts averages over.",
    "group": "What an update averages over: baselines tie the members of a group together.",
}
# Ratios beyond this factor of 1 run off the picture.
_FARTHEST = 1e4


def gradients_html(found: Record) -> str:
    """The whole page of a gradient study."""
    body = [
        page.opening(
            kicker="gradients",
            title=headline(found),
            lede=f"{counted(found['rollouts'], 'rollout')} on {counted(found['problems'], 'problem')}, the same for "
            f"every baseline. {found['origin']}.",
            cautions=[],
        ),
        page.section(
            "Variance of the policy gradient",
            f"Trace of the covariance, relative to no baseline. {WHY_CENTRED}",
            page.figures([_figure(found, kind) for kind in KINDS]) + _estimators_table(found),
        ),
        page.section(
            "Pairs",
            "Variance under the first over that under the second, both from the same resamples of problems: what a "
            "hard problem adds to both cancels. Below 1 the first has less.",
            _pairs_table(of_critics(found["contrasts"], found["critics"]))
            + page.folded("Every pair", _pairs_table(found["contrasts"])),
        ),
        page.section("Why a baseline can cost variance", "", _score_norms(found)),
        page.section("How these numbers were made", "", f"<p>{page.text(_method(found))}</p>"),
        f"<footer>lecritique {escape(lecritique.__version__)}</footer>",
    ]
    return page.document(title="Variance of the policy gradient", body=body, tokens={"arms": []})


def headline(found: Record) -> str:
    """Which baseline has the least variance, and whether that is settled, in one sentence.

    No baseline is left out: what it has depends on where the rewards have their zero.
    """
    known = [
        (of["trajectory"]["ratio"]["estimate"], name)
        for name, of in found["estimators"].items()
        if name not in (NONE, NONE_CENTRED) and of["trajectory"]["ratio"]["estimate"] is not None
    ]
    if len(known) < 2:
        return "Rewards did not vary: there is no gradient to compare"
    (_, least), (_, second) = sorted(known)[:2]
    pair = next(p["trajectory"] for p in found["contrasts"] if {p["a"], p["b"]} == {least, second})
    settled = pair["low"] is not None and (pair["high"] < 1 or pair["low"] > 1)
    end = "" if settled else f", but its lead over {_shown(second)} is not settled"
    return f"Of the baselines {_shown(least)} leaves the least variance in the gradient{end}"


def _figure(found: Record, kind: str) -> page.Figure:
    entries = [(name, of[kind]["ratio"]) for name, of in found["estimators"].items()]
    known = [(name, ratio) for name, ratio in entries if _drawable(ratio["estimate"])]
    size = (SIZE[0], bars_height(len(known)))
    return page.Figure(
        title=_TITLES[kind],
        svg=svg(lambda ax: _draw(ax, known), f"gradients-{kind}", size, tight=True) if len(known) > 1 else None,
        caption=f"{_CAPTIONS[kind]} Relative to no baseline, on a scale of factors; lines are 95% intervals over "
        "problems.",
        absent="Rewards did not vary: there is nothing to compare with.",
    )


def _draw(ax: Axes, entries: Sequence[tuple[str, Record]]) -> None:
    """A point and its interval for each estimator, the name over it."""
    left, ends = ax.get_yaxis_transform(), [1.0]
    for place, (name, ratio) in enumerate(entries):
        y = -place
        # On the panel's colour: the line of no baseline may run behind it.
        behind = {"facecolor": PANEL, "linewidth": 0, "pad": 0.8}
        ax.text(0.0, y + 0.2, _shown(name), transform=left, ha="left", va="bottom", size=9, bbox=behind)
        ax.plot(ratio["estimate"], y, "o", color=INK, markersize=6, zorder=3)
        ends.append(ratio["estimate"])
        if _drawable(ratio["low"]) and _drawable(ratio["high"]):
            ax.plot([ratio["low"], ratio["high"]], [y, y], color=INK, linewidth=1.4, solid_capstyle="butt")
            ends += [ratio["low"], ratio["high"]]
        ax.annotate(number(ratio["estimate"], 2), (ends[-1], y), xytext=(7, 0), textcoords="offset points",
                    va="center", size=9)  # fmt: skip
    frame(ax, "variance, of no baseline", grid="x")
    ax.set_xscale("log")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_ylim(-len(entries) + 0.5, 0.75)
    low, high = min(ends) / 1.15, max(ends) * 1.15
    ax.set_xlim(low, high * (high / low) ** 0.14)
    ticks = [t for p in range(-4, 5) for t in (10.0**p, 2 * 10.0**p, 5 * 10.0**p) if low <= t <= high]
    ax.set_xticks(ticks, [tick_text(tick) for tick in ticks])
    ax.minorticks_off()
    ax.axvline(1, color=MUTED, linewidth=0.9)


def _drawable(value: float | None) -> bool:
    return value is not None and 1 / _FARTHEST < value < _FARTHEST


def _estimators_table(found: Record) -> str:
    rows = [
        [escape(_shown(name)), number(of["trajectory"]["trace"]), *(cell(of[kind]["ratio"]) for kind in KINDS)]
        for name, of in found["estimators"].items()
    ]
    return table(["baseline", "trace", f"of {NONE}", f"mean of a group, of {NONE}"], rows, numeric=range(1, 4))


def _pairs_table(pairs: Sequence[Record]) -> str:
    rows = [
        [f"{escape(_shown(pair['a']))} over {escape(_shown(pair['b']))}", *(cell(pair[kind]) for kind in KINDS)]
        for pair in pairs
    ]
    heads = ["variance of", "of one rollout", "of the mean over a group"]
    return table(heads, rows, numeric=range(1, 3)) if rows else '<p class="empty">There is no critic.</p>'


def _score_norms(found: Record) -> str:
    norms = found["score_norms"]
    counts, optimum = norms["trajectories"], norms["optimal_constant"]
    said = (
        f"A rollout's gradient is (R - b) s with s the sum of its tokens' scores. The mean of |s|^2 is "
        f"{cell(norms['high'])} after {counts['high']:,} high returns and {cell(norms['low'])} after "
        f"{counts['low']:,} low ones: where failures have the larger scores, a baseline brings them in. The best "
        f"constant is {cell(optimum)}; it leaves {cell(norms['size_at_optimum'])} of no baseline, the mean return "
        f"{cell(norms['mean_return'])} leaves {cell(norms['size_at_mean'])}."
    )
    tether = found["tether"]
    if tether is not None:
        said += (
            f" Tether's rho for {_shown(tether['critic'])} is {cell(tether['rho'])}; with tokens weighted by their "
            f"squared score it would be {cell(tether['score_norm_optimum'])}, on {tether['tokens']:,} tokens."
        )
    return f"<p>{page.text(said)}</p>"


def _method(found: Record) -> str:
    error = found["relative_error_of_a_norm"]
    how = (
        f"a random projection to {found['numbers_kept']:,} numbers, whose squared norms are off by {error:.1%} (one "
        "standard error)"
        if error
        else "exact"
    )
    return (
        f"Gradients of {found['parameters']:,} parameters, {how}. The trace is E|g|^2 - |E g|^2, the second term from "
        f"pairs of different problems. Intervals are 95% percentile intervals of {found['replicates']:,} resamples of "
        "problems; all estimators and all pairs share the resamples. Tether's coefficient is fitted on the other half "
        "of the problems. The group mean's advantages are leave-one-out's times 1 - 1/K, K the size of the group: its "
        "variance is (1 - 1/K)^2 of that one's, and its expected gradient is smaller too."
    )


def _shown(name: str) -> str:
    return clean(shortened(shown_name(name), 40))
