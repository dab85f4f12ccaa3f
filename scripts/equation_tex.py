"""The plain-text equations of docstrings as TeX, for documents that render it.

Docstrings keep equations readable in a terminal: `A_t = delta_t + gamma gae_lambda A_{t+1}`. The grammar is small:
single letters and Greek names are symbols, `_x` with one or two characters or braces is a subscript, `sum_i`, `mean_i`
and a few functions are operators, a longer name is code, and everything else is words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "lambda", "mu", "pi", "rho", "sigma", "tau"}
_FUNCTIONS = {"min", "max", "exp", "log", "sum"}
_OPERATORS = {
    "clip",
    "softmax",
    "Var",
    "std",
    "mean",
    "floor",
    "round",
    "sign",
    "tanh",
    "sigmoid",
    "KL",
    "JSD",
    "log_softmax",
}
_ITALIC = {"lp", "lq", "sxx", "sxy", "syy"}
_RELATIONS = {
    "<=>": r"\iff", "<-": r"\leftarrow", "<=": r"\le", ">=": r"\ge", "!=": r"\ne", "~": r"\sim", "*": r"\cdot",
    "...": r"\dots", "mod": r"\bmod", "->": r"\to", "<<": r"\ll",
}  # fmt: skip
_TOKEN = re.compile(
    r"(?P<gap>\s{2,})|(?P<space>\s)"
    r"|(?P<power>\b\d+(?:\.\d+)?e-?\d+\b)|(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<quoted>\"[^\"]*\"|`[^`]*`)"
    r"|(?P<at>[A-Za-z]+@[A-Za-z](?:_[a-z])?)"
    r"|(?P<label>^[A-Za-z_ ]+:(?=\s))"
    r"|(?P<hyphened>(?:[A-Za-z]{2,}-)+[a-z]{2,}|-th\b|'s\b)"
    r"|(?P<name>[A-Za-z]+(?:_[A-Za-z0-9]+)*(?:_\{[^}]*\})?)"
    r"|(?P<relation><=>|<-|->|<=|>=|!=|\.\.\.|<<|[~*])"
    r"|(?P<mark>.)"
)
_Kind = Literal["atom", "word", "relation", "mark", "gap"]


@dataclass(frozen=True)
class _Piece:
    """A translated token and whether a space stood before it."""

    kind: _Kind
    tex: str
    spaced: bool


def to_tex(equation: str) -> str:
    """One line of plain-text equation as TeX without delimiters."""
    return _joined(_pieces(_braced(_braced(equation.strip(), "^", "^"), "sqrt", "√")))


def _pieces(line: str) -> list[_Piece]:
    found: list[_Piece] = []
    spaced, depth = False, 0
    for match in _TOKEN.finditer(line):
        kind, text = str(match.lastgroup), match.group()
        if kind in ("space", "gap"):
            spaced = True
            if kind == "gap" and found and found[-1].kind != "relation" and not _aligning(line, match.end()):
                found.append(_Piece("gap", r"\quad", False))
            continue
        if kind == "name" and _is_word(text, line[match.end() :], found):
            piece = _Piece("word", text, spaced)
        elif kind == "quoted":
            piece = _Piece("word", text.strip('"`').replace("_", r"\_"), spaced)
        elif kind in ("label", "hyphened"):
            piece = _Piece("word", text.replace("_", r"\_"), spaced)
        else:
            tex, depth = _translated(kind, text, depth, found)
            atom = kind in ("name", "number", "power", "at") or text in (")", "]")
            relation = kind == "relation" or text == "="
            piece = _Piece("atom" if atom else "relation" if relation else "mark", tex, spaced)
        found.append(piece)
        spaced = False
    return found


def _aligning(line: str, end: int) -> bool:
    """Whether a run of spaces only aligns the sign after it with other lines."""
    return line[end : end + 1] == "=" or line[end : end + 3] in ("<=>",) or line[end : end + 2] == "<-"


def _is_word(name: str, rest: str, before: list[_Piece]) -> bool:
    if name == "a":
        return bool(re.match(r" [a-z]{2,}", rest))
    base = name.split("_")[0]
    if len(base) == 1 or base in _GREEK or base in _ITALIC or name == "mod" or base.endswith(("bar", "hat")):
        return False
    if name in ("sum", "mean") and re.match(r" [a-z]{2,}", rest):
        return True
    if base in _FUNCTIONS | _OPERATORS and (rest[:1] in "( _{" or "_" in name):
        return rest.startswith(" of")
    return "_" not in name and not name.isupper() and name not in _FUNCTIONS | _OPERATORS


def _translated(kind: str, text: str, depth: int, before: list[_Piece]) -> tuple[str, int]:
    if kind == "power":
        digits, exponent = text.split("e")
        lead = "" if float(digits) == 1 else rf"{digits} \cdot "
        return f"{lead}10^{{{int(exponent)}}}", depth
    if kind == "at":
        name, count = text.split("@")
        return rf"\text{{{name}@}}{_symbol(count)}", depth
    if kind == "name":
        return _symbol(text), depth
    if kind == "relation":
        return _RELATIONS[text], depth
    if text == "{":  # a set, unless it belongs to a sub- or superscript
        script = bool(before) and before[-1].tex in ("^", "_", r"\sqrt")
        return ("{", depth + 1) if script else (r"\{", depth)
    if text == "}":
        return ("}", depth - 1) if depth else (r"\}", depth)
    return {"%": r"\%", "#": r"\#", "&": r"\&", "√": r"\sqrt"}.get(text, text), depth


def _symbol(name: str) -> str:
    """A name with its subscript."""
    if name in _RELATIONS:
        return _RELATIONS[name]
    base, _, script = name.partition("_")
    if script == "hat" or (base.endswith("hat") and len(base) == 4):
        return rf"\hat{{{_plain(base.removesuffix('hat') or base)}}}"
    if name in _OPERATORS:
        return rf"\operatorname{{{name.replace('_', ' ')}}}"
    if base.endswith("bar") and len(base) == 4:
        head = rf"\bar{{{base[0]}}}"
    elif len(base) == 1 or base in _GREEK | _FUNCTIONS | _OPERATORS | _ITALIC or base[0].isupper() or not script:
        head = _plain(base)
    elif len(script) <= 2 or script.startswith("{"):
        head = rf"\text{{{base}}}"
    else:
        return rf"\text{{{name}}}".replace("_", r"\_")
    if not script:
        return head
    if script.startswith("{"):
        return f"{head}_{{{to_tex(script[1:-1])}}}"
    if len(script) <= 2:
        return f"{head}_{{{script}}}"
    return f"{head}_{{\\text{{{script}}}}}".replace("_old_", "_old,")


def _plain(base: str) -> str:
    if base in _GREEK | _FUNCTIONS:
        return "\\" + base
    if base in _OPERATORS:
        return rf"\operatorname{{{base}}}"
    if base in _ITALIC:
        return rf"\mathit{{{base}}}"
    return base if len(base) == 1 else rf"\text{{{base}}}"


def _joined(pieces: list[_Piece]) -> str:
    """Words in runs of text with the spaces around them; a thin space where two factors stand side by side."""
    out, run = "", list[str]()
    previous: _Piece | None = None
    for piece in [*pieces, _Piece("gap", "", False)]:
        if piece.kind == "word":
            lead = " " if piece.spaced and previous is not None and (run or _reads_on(previous)) else ""
            run.append(lead + piece.tex)
        else:
            if run:
                trail = " " if piece.spaced and (piece.kind == "atom" or piece.tex in ("(", "|", r"\sqrt")) else ""
                out += rf"\text{{{''.join(run)}{trail}}}"
                run = []
            elif piece.spaced and previous is not None:
                factors = (
                    previous.kind == "atom" and (piece.kind == "atom" or piece.tex == "(") and piece.tex not in ")]"
                )
                out += r"\, " if factors and not previous.tex.startswith(r"\bmod") else " "
            out += f" {piece.tex} " if piece.kind == "gap" else piece.tex
        previous = piece
    return re.sub(r"\s+", " ", out).strip()


def _reads_on(piece: _Piece) -> bool:
    """Whether a word after this piece is read on from it and needs its space."""
    return piece.kind == "atom" or piece.tex in (",", "|")


def _braced(line: str, sign: str, written: str) -> str:
    """`sign(x)` as `written{x}`."""
    while (start := line.find(sign + "(")) >= 0:
        opened = start + len(sign)
        depth, end = 0, opened
        for end in range(opened, len(line)):
            depth += {"(": 1, ")": -1}.get(line[end], 0)
            if depth == 0:
                break
        line = f"{line[:start]}{written}{{{line[opened + 1 : end]}}}{line[end + 1 :]}"
    return line
