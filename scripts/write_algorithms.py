"""Writes docs/algorithms.md from the docstrings of numerics and credit.

python -m scripts.write_algorithms            writes the file
python -m scripts.write_algorithms --check    exits 1 if the file is out of step
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import lecritique.credit
import lecritique.numerics
from scripts.equation_tex import to_tex
from scripts.paper_names import PAPER_NAMES

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "algorithms.md"

# Rooms of numerics in reading order; what is not named here follows in alphabetical order.
_ORDER = (
    "gae", "baselines", "tether", "evpo", "adaptive_lambda", "whitening", "fusion", "policy_losses", "ppo_losses",
    "distillation", "value_losses", "explained_variance", "alignment", "statistics",
)  # fmt: skip
_PLUMBING = {"lecritique.numerics.precision"}
_GREEK = "alpha|beta|gamma|delta|lambda|rho|sigma|tau|theta"
_SYMBOL = re.compile(
    rf"(?<![\w.])(?:(?:[A-Za-z]|{_GREEK})_(?:\{{[^}}]+\}}|\w{{1,2}}\b)|(?:{_GREEK})(?:_hat)?\b(?![_-])|[A-Za-z](?=\^))"
    r"(?:\^(?:\w+|\([^)]*\)))?"
)

_HEAD = """# Algorithms

Written by `python -m scripts.write_algorithms` from the docstrings of `lecritique/numerics` and `lecritique/credit`;
change them, not this file. A test holds the two in step.

*Conventions.* Token $t$ is chosen in the state before it, and $V_t$ is the value of that state. $t+1$ is the next
*action token* (one that the policy sampled) of the same episode: prompt, tool and environment tokens are no step.
The value after the last action token is 0 unless a caller bootstraps. $R$ is the return of a rollout, $G$ a value
target, $B$ a leave-one-out baseline, $\\mathit{lp}$ and $\\mathit{lq}$ are log-probs of trainer and sampler in nats.
LC is arXiv:2608.16739, VP arXiv:2610.20516; other sources are named where they are used.
"""


@dataclass(frozen=True)
class Entry:
    """One public function or class: what its docstring says before its arguments, and its source."""

    name: str
    blocks: tuple[tuple[str, str], ...]
    source: str
    line: int

    @property
    def equations(self) -> list[str]:
        """Plain-text equations, line by line."""
        return [line for kind, text in self.blocks if kind == "equation" for line in text.splitlines()]


def modules(package: ModuleType) -> list[ModuleType]:
    """Modules of a package in reading order."""
    found = [info.name for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".") if not info.ispkg]

    def place(name: str) -> tuple[int, str]:
        room = name.split(".")[2]
        return (_ORDER.index(room) if room in _ORDER else len(_ORDER), name)

    return [importlib.import_module(name) for name in sorted(found, key=place) if name not in _PLUMBING]


def public_functions(module: ModuleType) -> list[Callable[..., Any]]:
    """Functions that a module defines for others, in the order of its text."""
    own = [
        member
        for member in vars(module).values()
        if inspect.isfunction(member) and member.__module__ == module.__name__
    ]
    return sorted((f for f in own if not f.__name__.startswith("_")), key=lambda f: f.__code__.co_firstlineno)


def public_classes(module: ModuleType) -> list[type]:
    """Classes that a module defines for others and describes, in the order of its text."""
    own = [
        member for member in vars(module).values() if inspect.isclass(member) and member.__module__ == module.__name__
    ]
    described = [member for member in own if not member.__name__.startswith("_") and member.__doc__]
    return sorted(described, key=lambda member: inspect.getsourcelines(member)[1])


def entry(member: Callable[..., Any] | type) -> Entry:
    """What the docstring of a function or class says."""
    text = inspect.getdoc(member) or ""
    before = re.split(r"^(?:Args|Returns|Raises):\s*$|^Source: ", text, maxsplit=1, flags=re.MULTILINE)[0]
    source = re.search(r"^Source: (.+?)\s*\Z", text, re.MULTILINE | re.DOTALL)
    line = inspect.getsourcelines(member)[1]
    return Entry(member.__name__, blocks_of(before), " ".join(source[1].split()) if source else "", line)


def blocks_of(text: str) -> tuple[tuple[str, str], ...]:
    """Paragraphs as ("prose", text) on one line and ("equation", lines) where all lines are indented."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if block.strip() and all(line.startswith("    ") for line in lines):
            blocks.append(("equation", "\n".join(line[4:] for line in lines)))
        elif block.strip():
            blocks.append(("prose", " ".join(line.strip() for line in lines)))
    return tuple(blocks)


def document() -> str:
    """The whole file."""
    parts = [_HEAD, _names_table(), "## The equations\n"]
    for module in modules(lecritique.numerics):
        parts.append(_section(module, [entry(f) for f in public_functions(module)]))
    parts.append("## Where equations meet state\n")
    for module in modules(lecritique.credit):
        members = [*public_classes(module), *public_functions(module)]
        parts.append(_section(module, [entry(member) for member in members]))
    return "\n".join(part for part in parts if part)


def _section(module: ModuleType, entries: list[Entry]) -> str:
    if not entries:
        return ""
    path = f"{module.__name__.replace('.', '/')}.py"
    title = ".".join(module.__name__.split(".")[1:])
    about = _block_lines(blocks_of(inspect.getdoc(module) or ""))
    lines = [f"### `{title}`\n", *about, f"[{path}](../{path})\n"]
    for found in entries:
        lines += [f"#### `{found.name}`\n", *_entry_lines(found)]
    return "\n".join(lines)


def _entry_lines(found: Entry) -> Iterator[str]:
    yield from _block_lines(found.blocks)
    if found.source:
        yield f"*Source:* {found.source}\n"


def _block_lines(blocks: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for kind, text in blocks:
        yield f"{_maths(text)}\n" if kind == "equation" else f"{_inline_maths(text)}\n"


def _maths(text: str) -> str:
    lines = [to_tex(line) for line in text.splitlines()]
    if len(lines) == 1:
        return f"```math\n{lines[0]}\n```"
    rows = " \\\\\n".join(_with_alignment(line) for line in lines)
    return f"```math\n\\begin{{aligned}}\n{rows}\n\\end{{aligned}}\n```"


def _inline_maths(prose: str) -> str:
    """Symbols of running text between dollars; what stands in backticks is code and stays."""
    parts = re.split(r"(`[^`]*`)", prose)
    return "".join(p if p.startswith("`") else _SYMBOL.sub(_dollars, p.replace("*", r"\*")) for p in parts)


def _dollars(match: re.Match[str]) -> str:
    return f"${to_tex(match.group())}$"


def _with_alignment(line: str) -> str:
    """A mark before the first relation outside braces, where the lines are aligned."""
    depth = 0
    for place, character in enumerate(line):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0 and (character == "=" or line.startswith((r"\iff", r"\leftarrow"), place)):
            return f"{line[:place]}&{line[place:]}"
    return f"&{line}"


def _names_table() -> str:
    rows = [
        f"| {row.paper} | {row.meaning} | {', '.join(f'`{name}`' for name in row.names)} | {row.source} |"
        for row in PAPER_NAMES
    ]
    return "\n".join(
        [
            "## From the papers' and the method sheet's notation to names\n",
            "| paper | what it is | here | source |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> int:
    """Write or check the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if the file is out of step")
    text = document()
    if parser.parse_args().check:
        in_step = DOCUMENT.exists() and DOCUMENT.read_text() == text
        print("in step" if in_step else f"{DOCUMENT.relative_to(ROOT)} is out of step with the docstrings")
        return 0 if in_step else 1
    DOCUMENT.write_text(text)
    print(f"{DOCUMENT.relative_to(ROOT)}: {text.count('####')} entries")
    return 0


if __name__ == "__main__":
    sys.exit(main())
