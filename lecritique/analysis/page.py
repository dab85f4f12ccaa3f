"""The HTML of the report: one self-contained page. Everything that comes from data is escaped here or in tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from lecritique.analysis.wording import clean


@dataclass(frozen=True, kw_only=True)
class Figure:
    """An SVG with its caption, or the sentence that says why there is none."""

    title: str
    svg: str | None
    caption: str
    absent: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """A key number with its label and a short remark; `arm` is an arm's name already as HTML, or empty."""

    label: str
    value: str
    remark: str
    arm: str = ""


def document(*, title: str, body: Sequence[str], tokens: dict[str, Any]) -> str:
    """The whole page around the sections `body`."""
    css, drawing, script = map(asset, ("page.css", "tokens.js", "page.js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{css}</style></head>\n<body><main>"
        + "\n".join(part for part in body if part)
        + f'</main>\n<script type="application/json" id="token-data">{embedded(tokens)}</script>'
        f"<script>{drawing}{script}</script></body></html>\n"
    )


def asset(name: str) -> str:
    """A style sheet or script of this room."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def text(raw: str) -> str:
    """Text of data as HTML."""
    return escape(clean(raw))


def embedded(record: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever strings it holds."""
    plain = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def opening(*, kicker: str, title: str, lede: str, cautions: Sequence[str]) -> str:
    """The head of the page: the finding first."""
    notes = "".join(f"<li>{text(caution)}</li>" for caution in cautions)
    block = f'<ul class="cautions">{notes}</ul>' if notes else ""
    return (
        f'<header><p class="kicker">{text(kicker)}</p><h1>{text(title)}</h1>'
        f'<p class="lede">{text(lede)}</p>{block}</header>'
    )


def cards(entries: Sequence[Card]) -> str:
    """The key numbers."""
    inner = "".join(
        f'<div class="card"><p class="label">{text(c.label)}</p><p class="value">{text(c.value)}</p>'
        f'<p class="remark">{c.arm}{text(c.remark)}</p></div>'
        for c in entries
    )
    return f'<section class="cards" aria-label="Key numbers">{inner}</section>' if inner else ""


def legend(names: Sequence[str]) -> str:
    """The strip of arms that stays in sight; names are HTML."""
    return f'<nav class="legend" aria-label="Arms">{"".join(names)}</nav>'


def section(title: str, intro: str, content: str) -> str:
    """A titled section; `content` is HTML."""
    lead = f'<p class="intro">{text(intro)}</p>' if intro else ""
    return f"<section><h2>{text(title)}</h2>{lead}{content}</section>"


def figures(entries: Sequence[Figure], *, small: bool = False) -> str:
    """Figures side by side where there is room, one under the other where there is not; `small` ones in threes."""
    kind = "figures small" if small else "figures"
    return f'<div class="{kind}">{"".join(_figure(entry) for entry in entries)}</div>'


def folded(title: str, content: str) -> str:
    """Content that opens on demand; nothing when there is none."""
    return f"<details><summary>{text(title)}</summary>{content}</details>" if content else ""


def token_section(tokens: dict[str, Any]) -> str:
    """The token view's frame; the page's script fills it from the embedded record."""
    if not tokens["arms"]:
        return '<p class="empty">No rollouts have been saved yet.</p>'
    return (
        '<div id="tokens" class="panel"><noscript>The token view needs JavaScript.</noscript>'
        '<div class="controls">'
        '<label>arm <select id="token-arm"></select></label>'
        '<div class="choice" id="token-sample" role="group" aria-label="Sample"></div>'
        '<div class="choice" id="token-colour" role="group" aria-label="Colour by"></div></div>'
        '<dl id="token-facts"></dl><div id="token-trace"></div><div id="token-scale"></div>'
        '<div id="token-text"></div><div id="token-tip" role="tooltip" hidden></div></div>'
    )


def _figure(entry: Figure) -> str:
    if entry.svg is None:
        return f'<figure class="none"><h3>{text(entry.title)}</h3><p class="empty">{text(entry.absent)}</p></figure>'
    svg = entry.svg.replace("<svg", f'<svg role="img" aria-label="{text(entry.title)}"', 1)
    return f"<figure><h3>{text(entry.title)}</h3>{svg}<figcaption>{text(entry.caption)}</figcaption></figure>"
