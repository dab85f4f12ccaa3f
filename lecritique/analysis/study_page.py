"""The pages of `diagnose profiles` and `diagnose continuations`: one HTML file each, in the style of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import lecritique
from lecritique.analysis import page
from lecritique.analysis.continuation_statistics import CLEAN
from lecritique.analysis.figures import MUTED, arm_colour, frame, svg
from lecritique.analysis.tables import ARM_COLOUR_COUNT, table
from lecritique.analysis.value_page import cell
from lecritique.analysis.wording import clean, counted, number, shortened

Record = Mapping[str, Any]

_PLACES = ([0, 0.25, 0.5, 0.75, 1], ["start", "25%", "50%", "75%", "end"])


def profiles_html(found: Record) -> str:
    """The whole page of fixed-response profiles."""
    names = list(found["signals"])
    body = [
        page.opening(
            kicker=f"{found['task']} · profiles",
            title=profiles_headline(found),
            lede=f"{counted(found['responses'], 'response')} to {counted(found['problems'], 'problem')} by "
            f"{found['origin']}, mean return {number(found['mean_return'])}. Every critic read the same ones.",
            cautions=found["cautions"],
        ),
        page.legend([_name(name, index + 1) for index, name in enumerate(names)]),
        page.section(
            "Where in a response",
            "Tenths of the response: tokens averaged within one, then responses of a problem, problems equal.",
            page.figures([_signal_figure(found, names), _teacher_figure(found)]),
        ),
        page.section("Pairs of critics", "Over the whole response.", _profile_pairs(found)),
        page.section("Every tenth", "", _tenths(found, names)),
        page.section("How these numbers were made", "", f"<p>{page.text(_profile_method(found))}</p>"),
        _footer(),
    ]
    return page.document(title=f"{found['task']} · profiles", body=body, tokens={"arms": []})


def profiles_headline(found: Record) -> str:
    """Which critic is nearer to the return than the clean one, in one sentence."""
    known = [(of["mean"], name) for name, of in found["signals"].items() if of["mean"]["estimate"] is not None]
    above = [(mean, name) for mean, name in known if mean["low"] is not None and mean["low"] > 0]
    if above:
        best, name = max(above, key=lambda pair: pair[0]["estimate"])
        return f"The critic '{shortened(name, 30)}' has a squared error smaller by {number(best['estimate'])}"
    return "No critic is nearer to the return than the clean one beyond chance"


def _signal_figure(found: Record, names: Sequence[str]) -> page.Figure:
    def draw(ax: Any) -> None:
        for index, name in enumerate(names):
            _line(ax, found["signals"][name]["profile"], arm_colour(index + 1), dashed=name == "leave_one_out")
        ax.axhline(0, color=MUTED, linewidth=0.8)
        frame(ax, "squared error of the clean critic less that of the other")
        _place_axis(ax)

    drawn = any(_known(found["signals"][name]["profile"]) for name in names)
    return page.Figure(
        title="Critic signal",
        svg=svg(draw, "profile-signal") if drawn else None,
        caption="Above zero the critic is nearer to the return than the clean one. Brackets are 95% intervals over "
        "problems; the dashed line is the mean reward of the other responses.",
        absent="There is no critic beside the clean one.",
    )


def _teacher_figure(found: Record) -> page.Figure:
    divergence = found["divergence"]

    def draw(ax: Any) -> None:
        _line(ax, divergence["profile"], arm_colour(0))
        frame(ax, "KL(student, teacher), nats a token")
        _place_axis(ax)
        ax.set_ylim(bottom=0)

    told = {"both": "solution and answer", "solution": "the solution", "answer": "the answer"}
    return page.Figure(
        title="Teacher signal",
        svg=None if divergence is None else svg(draw, "profile-teacher"),
        caption=f"The policy against itself when it is told {told.get(found['teacher'], 'nothing')}: how far the two "
        "next-token distributions are apart.",
        absent="No teacher was asked for, or the task has no reference to tell it.",
    )


def _profile_pairs(found: Record) -> str:
    rows = [
        [
            f"{_html(pair['a'])} over {_html(pair['b'])}",
            cell(pair, sign=True),
        ]
        for pair in found["pairs"]
    ]
    shown = table(["critic", "squared error less by"], rows, numeric=[1]) if rows else ""
    if found["divergence"] is not None:
        shown += f"<p>Mean KL(student, teacher): {cell(found['divergence']['mean'])} nats a token.</p>"
    return shown


def _tenths(found: Record, names: Sequence[str]) -> str:
    columns = {name: found["signals"][name]["profile"] for name in names}
    if found["divergence"] is not None:
        columns["teacher KL"] = found["divergence"]["profile"]
    bins = found["method"]["bins"]
    rows = [
        [
            f"{b / bins:g} to {(b + 1) / bins:g}",
            *(cell(of[b], sign=name in names) for name, of in columns.items()),
            f"{max((of[b]['problems'] for of in columns.values()), default=0):,}",
        ]
        for b in range(bins)
    ]
    heads = ["place", *columns, "problems"]
    return page.folded("Numbers", table(heads, rows, numeric=range(1, len(heads))))


def _profile_method(found: Record) -> str:
    counts = found["counts"]
    left_out = counts["over_length"] + counts["without_tokens"]
    return (
        f"{_origins(found['critics'])} The critic signal at a token is (v_clean - R)^2 - (v - R)^2, R the return of "
        "the response. A token i of T stands at (i + 1/2) / T; places are those of the whole response. "
        f"Left out for all critics alike: {counted(left_out, 'response')} too long for one reader or empty, "
        f"{counted(counts['groups_left_out'], 'group')} that one of them could not read, "
        f"{counts['failed']} that failed. {_intervals(found)}"
    )


def continuations_html(found: Record) -> str:
    """The whole page of a continuation study."""
    critics, fractions = list(found["critics"]), [f"{f:g}" for f in found["fractions"]]
    others = list(found["gains"])
    body = [
        page.opening(
            kicker=f"{found['task']} · continuations",
            title=continuations_headline(found),
            lede=f"{found['items']:,} beginnings of responses to {counted(found['problems'], 'problem')}, "
            f"{counted(found['continuations'], 'continuation')} each by {found['origin']}.",
            cautions=found["cautions"],
        ),
        page.legend([_name(name, index) for index, name in enumerate(critics)]),
        page.section(
            "What critics say of prefixes", "Against the mean outcome of the continuations.", _fit(found, critics)
        ),
        page.section(
            "From where it helps",
            "",
            page.figures([_gain_figure(found, others, fractions), _ev_figure(found, critics, fractions)]),
        ),
        page.section("Against the clean critic", "Positive is better than clean.", _gains(found, others)),
        page.section(
            "The contrast C",
            "Gain in Brier score at the later two prefixes less that at the first.",
            _contrasts(found),
        ),
        page.section("By prefix and length", "", _subsets(found, critics)),
        page.section("How these numbers were made", "", f"<p>{page.text(_continuation_method(found))}</p>"),
        _footer(),
    ]
    return page.document(title=f"{found['task']} · continuations", body=body, tokens={"arms": []})


def continuations_headline(found: Record) -> str:
    """Which critic beats the clean one at predicting continuations, in one sentence."""
    known = [(of["all"]["all"]["brier"], name) for name, of in found["gains"].items()]
    above = [(gain, name) for gain, name in known if gain["low"] is not None and gain["low"] > 0]
    if above:
        best, name = max(above, key=lambda pair: pair[0]["estimate"])
        return f"The critic '{shortened(name, 30)}' lowers the Brier score by {number(best['estimate'])}"
    return "No critic predicts continuations better than the clean one beyond chance"


def _fit(found: Record, critics: Sequence[str]) -> str:
    names = ("brier", "squared_error", "explained_variance", "calibration_error")
    rows = [
        [_name(name, index), *(cell(_all(found, name)[key]) for key in names)] for index, name in enumerate(critics)
    ]
    heads = ["critic", "Brier score", "squared error", "explained variance", "ECE"]
    noise = cell(_all(found, critics[0])["noise"])
    told = f"<p>The Brier score is the squared error and the noise of the outcomes, {noise} for every critic.</p>"
    return table(heads, rows, numeric=range(1, len(heads))) + told


def _gain_figure(found: Record, others: Sequence[str], fractions: Sequence[str]) -> page.Figure:
    def draw(ax: Any) -> None:
        for index, name in enumerate(others):
            entries = [found["gains"][name]["fractions"][f]["brier"] for f in fractions]
            _points(ax, found["fractions"], entries, arm_colour(index + 1), shift=index - (len(others) - 1) / 2)
        ax.axhline(0, color=MUTED, linewidth=0.8)
        frame(ax, "Brier score of the clean critic less that of the other")
        _fraction_axis(ax, found["fractions"])

    return page.Figure(
        title="Gain over the clean critic, D",
        svg=svg(draw, "continuations-gain") if others else None,
        caption="At each prefix; bars are 95% intervals over problems, the same draws for every critic.",
        absent="There is no critic beside the clean one.",
    )


def _ev_figure(found: Record, critics: Sequence[str], fractions: Sequence[str]) -> page.Figure:
    def draw(ax: Any) -> None:
        for index, name in enumerate(critics):
            entries = [found["critics"][name]["fractions"][f]["explained_variance"] for f in fractions]
            _points(ax, found["fractions"], entries, arm_colour(index), shift=index - (len(critics) - 1) / 2)
        ax.axhline(0, color=MUTED, linewidth=0.8)
        frame(ax, "explained variance")
        _fraction_axis(ax, found["fractions"])
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, -1.0), high)

    drawn = any(
        found["critics"][name]["fractions"][f]["explained_variance"]["estimate"] is not None
        for name in critics
        for f in fractions
    )
    return page.Figure(
        title="Explained variance at each prefix",
        svg=svg(draw, "continuations-ev") if drawn else None,
        caption="Of the mean outcome of the continuations of a prefix, problems equal.",
        absent="The outcomes of no prefix vary.",
    )


def _gains(found: Record, others: Sequence[str]) -> str:
    names = ("brier", "explained_variance", "calibration_error")
    rows = [
        [_name(name, index + 1), *(cell(found["gains"][name]["all"]["all"][key], sign=True) for key in names)]
        for index, name in enumerate(others)
    ]
    heads = ["critic", "Brier score", "explained variance", "ECE"]
    return table(heads, rows, numeric=range(1, 4)) if rows else '<p class="empty">Nothing can be paired.</p>'


def _contrasts(found: Record) -> str:
    rows = [
        [_html(name), *(f"{cell(of[s], sign=True)}<small>{of[s]['problems']} problems</small>" for s in of)]
        for name, of in found["contrasts"].items()
        if of is not None
    ]
    heads = ["critic", "all", "short responses", "middle", "long"]
    return table(heads, rows, numeric=range(1, 5)) if rows else '<p class="empty">C needs three prefixes.</p>'


def _subsets(found: Record, critics: Sequence[str]) -> str:
    rows = []
    for kind, title in (("fractions", "prefix"), ("lengths", "length")):
        for label in found["critics"][critics[0]][kind]:
            for name in critics:
                entry = found["critics"][name][kind][label]
                numbers = [cell(entry[key]) for key in ("brier", "explained_variance", "calibration_error")]
                gain = "" if name == CLEAN else cell(found["gains"][name][kind][label]["brier"], sign=True)
                rows.append([f"{title} {escape(label)}", _html(name), *numbers, gain, f"{entry['items']:,}"])
    heads = ["items of", "critic", "Brier score", "explained variance", "ECE", "gain in Brier", "items"]
    return page.folded("Every subset", table(heads, rows, numeric=range(2, 7)))


def _continuation_method(found: Record) -> str:
    counts, method = found["counts"], found["method"]
    low, high = method["length_bounds_tokens"]
    outcomes = ", ".join(f"{number(mean)} at {f}" for f, mean in found["mean_outcome"].items())
    left_out = counts["over_length"]
    return (
        f"{_origins(found['origins'])} The label of a continuation is the verifier's of the whole response, truncated "
        f"ones included ({counts['truncated']}). Mean outcome: {outcomes}. Brier = (p - ybar)^2 + mean_k (y_k - "
        "ybar)^2, the second term the same for every critic. Problems count equally in means and in explained "
        "variance; ECE has ten equal-width bins. Predictions outside [0, 1] count as its ends in ECE alone. Responses "
        f"are short up to {low:.1f} action tokens and long above {high:.1f}, tertiles of "
        f"{method['bounds_fitted_on']} other problems. "
        f"Left out for all critics alike: {counted(left_out, 'item')} too long, {counts['failed']} with a continuation "
        f"that failed, {counted(counts['groups_left_out'], 'problem')} that one of them could not read. "
        f"{_intervals(found)}"
    )


def _intervals(found: Record) -> str:
    method = found["method"]
    return f"Brackets are 95% intervals of a {method['interval']}, {method['replicates']:,} replicates."


def _origins(origins: Mapping[str, str]) -> str:
    return "Critics: " + ", ".join(f"{name} {origin}" for name, origin in origins.items()) + "."


def _all(found: Record, critic: str) -> Record:
    entry: Record = found["critics"][critic]["all"]["all"]
    return entry


def _known(profile: Sequence[Record]) -> list[tuple[int, Record]]:
    return [(b, entry) for b, entry in enumerate(profile) if entry["estimate"] is not None]


def _line(ax: Any, profile: Sequence[Record], colour: str, *, dashed: bool = False) -> None:
    known = _known(profile)
    x, y = [(b + 0.5) / len(profile) for b, _ in known], [entry["estimate"] for _, entry in known]
    ax.plot(x, y, color=colour, linewidth=1.4 if dashed else 2, linestyle="--" if dashed else "-", marker="o", ms=3)
    _bars(ax, x, [entry for _, entry in known], colour)


def _points(ax: Any, places: Sequence[float], entries: Sequence[Record], colour: str, *, shift: float) -> None:
    known = [(place + 0.012 * shift, entry) for place, entry in zip(places, entries, strict=True)]
    known = [(place, entry) for place, entry in known if entry["estimate"] is not None]
    x, y = [place for place, _ in known], [entry["estimate"] for _, entry in known]
    ax.plot(x, y, color=colour, linewidth=1.6, marker="o", ms=4)
    _bars(ax, x, [entry for _, entry in known], colour)


def _bars(ax: Any, x: Sequence[float], entries: Sequence[Record], colour: str) -> None:
    for place, entry in zip(x, entries, strict=True):
        if entry["low"] is not None:
            ax.plot([place, place], [entry["low"], entry["high"]], color=colour, linewidth=1.1, alpha=0.6)


def _place_axis(ax: Any) -> None:
    ax.set_xlim(0, 1)
    ax.set_xticks(*_PLACES)
    ax.set_xlabel("place in the response")


def _fraction_axis(ax: Any, fractions: Sequence[float]) -> None:
    ax.set_xlim(0, 1)
    ax.set_xticks(list(fractions), [f"{f:g}" for f in fractions])
    ax.set_xlabel("prefix, share of the response")


def _name(name: str, index: int) -> str:
    """A critic's name behind a dot of its colour, as HTML."""
    dot = f"--c:var(--arm-{index % ARM_COLOUR_COUNT})"
    return f'<span class="arm"><i style="{dot}"></i><span>{_html(name)}</span></span>'


def _html(name: str) -> str:
    return escape(clean(shortened(name.replace("_", "-"), 40)))


def _footer() -> str:
    return f"<footer>lecritique {escape(lecritique.__version__)}</footer>"
