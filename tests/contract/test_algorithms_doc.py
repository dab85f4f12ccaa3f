"""docs/algorithms.md is what the docstrings say, and what it renders is well formed."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from matplotlib.mathtext import MathTextParser

import lecritique.credit
import lecritique.numerics
from scripts.equation_tex import to_tex
from scripts.paper_names import PAPER_NAMES
from scripts.write_algorithms import DOCUMENT, document, entry, modules, public_functions

# Written differently in matplotlib's subset of TeX.
SUBSET = {r"\\iff": r"\\Leftrightarrow", r"\\text\b": r"\\mathrm", r"\\bmod": "mod", r"\\l?dots": r"\\ldots"}
SUBSET |= {r"\\le\b": r"\\leq", r"\\ge\b": r"\\geq", r"\\ne\b": r"\\neq", r"\\quad": r"\\ "}
EQUATIONS = [
    (f"{f.__name__}-{i}", line)
    for module in modules(lecritique.numerics)
    for f in public_functions(module)
    for i, line in enumerate(entry(f).equations)
]


def test_the_file_is_in_step_with_the_docstrings() -> None:
    assert DOCUMENT.read_text() == document(), "run python -m scripts.write_algorithms"


def test_every_public_function_of_numerics_and_credit_is_there() -> None:
    text = DOCUMENT.read_text()
    found = [
        f for package in (lecritique.numerics, lecritique.credit) for m in modules(package) for f in public_functions(m)
    ]
    assert len(found) >= 60
    assert [f.__name__ for f in found if f"#### `{f.__name__}`\n" not in text] == []


@pytest.mark.parametrize(("name", "line"), EQUATIONS, ids=[name for name, _ in EQUATIONS])
def test_every_equation_is_well_formed_tex(name: str, line: str) -> None:
    tex = to_tex(line)
    bare = re.sub(r"\\[{}]", "", tex)
    assert bare.count("{") == bare.count("}")
    for written, subset in SUBSET.items():
        tex = re.sub(written, subset, tex)
    MathTextParser("path").parse(f"${tex}$")


def test_links_lead_to_files_and_fences_are_closed() -> None:
    text = DOCUMENT.read_text()
    links = re.findall(r"\]\((\.\./[^)]+)\)", text)
    assert len(links) >= 15
    assert [link for link in links if not (DOCUMENT.parent / link).is_file()] == []
    assert text.count("```math") * 2 == text.count("```")


@pytest.mark.parametrize("row", PAPER_NAMES, ids=lambda row: row.paper)
def test_names_of_the_papers_table_exist(row) -> None:
    for name in row.names:
        path, _, parameter = name.removesuffix(")").partition("(")
        module, attribute = path.rsplit(".", 1)
        member = getattr(importlib.import_module(f"lecritique.{module}"), attribute)
        if parameter:
            assert parameter in inspect.signature(member).parameters, name


@pytest.mark.parametrize(
    ("plain", "tex"),
    [
        ("A_t = delta_t + gamma gae_lambda A_{t+1}", r"A_{t} = \delta_{t} + \gamma\, \text{gae\_lambda}\, A_{t+1}"),
        ("rho_hat = S_xy / (S_xx + 1e-6)", r"\hat{\rho} = S_{xy} / (S_{xx} + 10^{-6})"),
        ("lambda = retained^(1 / length)", r"\lambda =\text{retained}^{1 /\text{length}}"),
        ("ECE = sum_b (n_b / n) |ybar_b - pbar_b|", r"\text{ECE} = \sum_{b}\, (n_{b} / n) |\bar{y}_{b} - \bar{p}_{b}|"),
        ("r_t = reward if t is the last, else 0", r"r_{t} =\text{reward if }t\text{ is the last},\text{ else }0"),
        ("rho <- d rho", r"\rho \leftarrow d\, \rho"),
        ("dropped  <=>  A <= 0", r"\text{dropped}\iff A \le 0"),
        ("d ~ uniform{0, ..., C - 1}", r"d \sim\text{uniform}\{0, \dots, C - 1\}"),
        ("x = sqrt(W) + 2.5e-3", r"x = \sqrt{W} + 2.5 \cdot 10^{-3}"),
    ],
)
def test_translation(plain: str, tex: str) -> None:
    assert to_tex(plain) == tex


def test_a_docstring_that_changes_is_noticed() -> None:
    def changed() -> None:
        """One line.

            a = b

        Prose with V_{t+1} and `V_t`.

        Args:
            x: [N].

        Source: nowhere.
        """

    found = entry(changed)
    assert found.blocks == (("prose", "One line."), ("equation", "a = b"), ("prose", "Prose with V_{t+1} and `V_t`."))
    assert found.source == "nowhere."
