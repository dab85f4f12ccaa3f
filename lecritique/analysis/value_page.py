"""The page of `diagnose values`: one HTML file in the style of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import lecritique
from lecritique.analysis import page
from lecritique.analysis.figures import MUTED, arm_colour, frame, svg
from lecritique.analysis.tables import table
from lecritique.analysis.value_diagnosis import CRITIC, LEAVE_ONE_OUT
from lecritique.analysis.wording import MINUS, MISSING, clean, counted, number, shortened, signed

_KINDS = {"turn": "Turn", "correctness": "Reward", "length": "Length of the response"}
_WORDS = {
    "explained_variance": "explained variance",
    "mse": "mean squared error",
    "calibration_error": "calibration error (ECE)",
    "auc": "AUC",
    "brier": "Brier score",
    "within_bins": "within bins",
}
_LOWEST_EV = -0.5

Record = Mapping[str, Any]


def values_html(found: Record) -> str:
    """The whole page of a diagnosis."""
    arms = list(found["arms"])
    critics = {arm: record["critics"] for arm, record in found["arms"].items()}
    body = [
        page.opening(
            kicker=f"{found['recipe']} · values",
            title=headline(found),
            lede=_lede(found),
            cautions=found["cautions"],
        ),
        page.section("Fit", "Against the value target, over action tokens.", _fit_table(arms, critics)),
        page.section("Where the critic knows", "", page.figures(_fit_figures(arms, critics))),
        page.section(
            "Calibration", "Against the reward of the rollout, over action tokens.", _calibration(arms, critics)
        ),
        page.section("Pairs", "", _pairs(found)),
        page.section("By turn, reward and length", "", _slices_table(arms, critics)),
        page.section("How these numbers were made", "", f"<p>{page.text(_method(found))}</p>"),
        f"<footer>lecritique {escape(lecritique.__version__)}</footer>",
    ]
    return page.document(title=f"{found['recipe']} · values", body=body, tokens={"arms": []})


def headline(found: Record) -> str:
    """Which critic explains most, in one sentence."""
    known = [
        (record["critics"][CRITIC]["pooled"]["all"]["explained_variance"], arm)
        for arm, record in found["arms"].items()
        if CRITIC in record["critics"]
    ]
    known = [(entry, arm) for entry, arm in known if entry["estimate"] is not None]
    if not known:
        return "No critic was measured, or its targets never varied"
    best, arm = max(known, key=lambda pair: pair[0]["estimate"])
    return f"The critic of {shortened(arm, 40)} explains {number(best['estimate'])} of the variance of its targets"


def cell(entry: Record | None, *, sign: bool = False) -> str:
    """An estimate with its interval, as text."""
    if entry is None or entry["estimate"] is None:
        return MISSING
    shown = signed(entry["estimate"]) if sign else number(entry["estimate"])
    if entry["low"] is None or entry["high"] is None:
        return shown
    bounds = [signed(entry[end]) if sign else number(entry[end]) for end in ("low", "high")]
    return f"{shown} ({bounds[0]} to {bounds[1]})"


def _lede(found: Record) -> str:
    arms = found["arms"].values()
    tokens = sum(record["tokens"] for record in arms)
    rollouts = sum(record["rollouts"] for record in arms)
    return (
        f"{counted(tokens, 'action token')} of {counted(rollouts, 'rollout')} on "
        f"{counted(found['problems'], 'problem')}. "
        "Leave-one-out is the mean reward of the other rollouts of the group: what a critic has to beat."
    )


def _named(arm: str, critic: str) -> str:
    return shortened(arm, 40) if critic == CRITIC else f"{shortened(arm, 40)}: leave-one-out"


def _every(arms: Sequence[str], critics: Mapping[str, Record]) -> list[tuple[int, str, str, Record]]:
    return [
        (index, arm, critic, critics[arm][critic])
        for index, arm in enumerate(arms)
        for critic in (CRITIC, LEAVE_ONE_OUT)
        if critic in critics[arm]
    ]


def _fit_table(arms: Sequence[str], critics: Mapping[str, Record]) -> str:
    rows = []
    for _, arm, critic, record in _every(arms, critics):
        entry = record["pooled"]["all"]
        numbers = [cell(entry[name], sign=name == "bias") for name in ("explained_variance", "bias", "mse")]
        rows.append([_html(_named(arm, critic)), *numbers, f"{entry['tokens']:,}", f"{entry['problems']:,}"])
    heads = ["baseline", "explained variance", "bias", "mean squared error", "tokens", "problems"]
    return table(heads, rows, numeric=range(1, 6))


def _fit_figures(arms: Sequence[str], critics: Mapping[str, Record]) -> list[page.Figure]:
    drawn = [
        (index, critic, [record["position"][str(b)]["explained_variance"] for b in range(10)])
        for index, _, critic, record in _every(arms, critics)
    ]
    drawn = [entry for entry in drawn if any(e["estimate"] is not None for e in entry[2])]
    return [
        page.Figure(
            title="Explained variance by place in the response",
            svg=svg(lambda ax: _draw_positions(ax, drawn), "value-positions") if drawn else None,
            caption="Tenths of the response. Solid lines are critics, dotted ones the group's leave-one-out mean; "
            "brackets are 95% intervals over problems.",
            absent="No tenth of any response has targets that vary.",
        )
    ]


def _draw_positions(ax: Any, drawn: Sequence[tuple[int, str, Sequence[Record]]]) -> None:
    lowest = 0.0
    for index, critic, entries in drawn:
        known = [(b, e) for b, e in enumerate(entries) if e["estimate"] is not None]
        x, y = [(b + 0.5) / len(entries) for b, _ in known], [e["estimate"] for _, e in known]
        line = "-" if critic == CRITIC else ":"
        ax.plot(x, y, color=arm_colour(index), linewidth=2 if line == "-" else 1.3, linestyle=line, marker="o", ms=3)
        for place, (_, e) in zip(x, known, strict=True):
            if critic == CRITIC and e["low"] is not None:
                ax.plot([place, place], [e["low"], e["high"]], color=arm_colour(index), linewidth=1.1, alpha=0.6)
        lowest = min(lowest, *y)
    frame(ax, "explained variance")
    ax.axhline(0, color=MUTED, linewidth=0.8)
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["start", "25%", "50%", "75%", "end"])
    ax.set_ylim(max(lowest, _LOWEST_EV) - 0.05, 1.0)


def _calibration(arms: Sequence[str], critics: Mapping[str, Record]) -> str:
    known = [entry for entry in _every(arms, critics) if entry[3]["calibration"] is not None]
    names = ("brier", "reliability", "resolution", "uncertainty", "within_bins", "calibration_error", "auc")
    rows = [
        [_html(_named(arm, critic)), *(cell(record["calibration"][name]) for name in names)]
        for _, arm, critic, record in known
    ]
    figure = page.Figure(
        title="Reliability",
        svg=svg(lambda ax: _draw_reliability(ax, known), "value-reliability") if known else None,
        caption="Mean reward against mean prediction in ten bins of the prediction, larger where more tokens are. "
        "On the diagonal a prediction of 0.7 earns 0.7 on average.",
        absent="Values or rewards leave [0, 1]: they are no probabilities.",
    )
    heads = ["baseline", *(_WORDS.get(name, name) for name in names)]
    shown = table(heads, rows, numeric=range(1, len(heads))) if rows else ""
    return page.figures([figure]) + shown


def _draw_reliability(ax: Any, known: Sequence[tuple[int, str, str, Record]]) -> None:
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8)
    for index, _, critic, record in known:
        bins = [b for b in record["reliability"] if b["tokens"]]
        total = sum(b["tokens"] for b in bins)
        x, y = [b["predicted"] for b in bins], [b["observed"] for b in bins]
        line = "-" if critic == CRITIC else ":"
        ax.plot(x, y, color=arm_colour(index), linewidth=1.4, linestyle=line)
        sizes = [8 + 90 * b["tokens"] / total for b in bins]
        ax.scatter(x, y, s=sizes, color=arm_colour(index), alpha=0.8, linewidths=0)
    frame(ax, "mean reward")
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlabel("mean prediction")


def _pairs(found: Record) -> str:
    rows = []
    for arm, record in found["arms"].items():
        against = record["critic_minus_leave_one_out"]
        if against is not None:
            label = f"{shortened(arm, 40)} {MINUS} its leave-one-out"
            rows.append(_pair_row(label, against["pooled"]["all"], record["problems"]))
    for pair in found["paired"]:
        label = f"{shortened(pair['a'], 30)} {MINUS} {shortened(pair['b'], 30)}"
        rows.append(_pair_row(label, pair["differences"], pair["problems"]))
    heads = ["difference of", "explained variance", "mean squared error", "calibration error (ECE)", "AUC", "problems"]
    return table(heads, rows, numeric=range(1, 6)) if rows else '<p class="empty">Nothing can be paired.</p>'


def _pair_row(label: str, entry: Record, problems: int) -> list[str]:
    names = ("explained_variance", "mse", "calibration_error", "auc")
    return [_html(label), *(cell(entry.get(name), sign=True) for name in names), f"{problems:,}"]


def _slices_table(arms: Sequence[str], critics: Mapping[str, Record]) -> str:
    rows = []
    for kind, title in _KINDS.items():
        for _, arm, critic, record in _every(arms, critics):
            for label, entry in record[kind].items():
                numbers = [cell(entry[name], sign=name == "bias") for name in ("explained_variance", "bias", "mse")]
                rows.append([f"{title}: {escape(label)}", _html(_named(arm, critic)), *numbers, f"{entry['tokens']:,}"])
    heads = ["tokens of", "baseline", "explained variance", "bias", "mean squared error", "tokens"]
    return page.folded("Every subset", table(heads, rows, numeric=range(2, 6)))


def _method(found: Record) -> str:
    method = found["method"]
    low, high = method["length_bounds_tokens"]
    return (
        f"Steps: {method['steps']}. Brackets are 95% intervals of a {method['interval']}, {method['replicates']:,} "
        "replicates; two rows are one problem when task and prompt are the same, whatever the arm or seed. Explained "
        "variance is 1 - Var(target - value) / Var(target), undefined where the target does not vary, as within "
        f"correct rollouts. A rollout is correct from a reward of {method['correct_from']:g} on. Responses are short "
        f"up to {low:.0f} action tokens and long above {high:.0f}. Tokens of one rollout share its outcome, so only "
        "problems are resampled. Values are those that credited the step, before the critic trained on it."
    )


def _html(raw: str) -> str:
    return escape(clean(raw))
