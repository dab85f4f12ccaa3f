"""Every public equation says what it computes, from what, when it refuses, and where it comes from."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from types import FunctionType

import pytest

import lecritique.numerics

# Plumbing, not equations.
EXEMPT = {"lecritique.numerics.precision"}


def public_functions() -> list[FunctionType]:
    found = []
    for info in pkgutil.iter_modules(lecritique.numerics.__path__, "lecritique.numerics."):
        module = importlib.import_module(info.name)
        for name, member in vars(module).items():
            is_own = inspect.isfunction(member) and member.__module__ == info.name
            if is_own and not name.startswith("_") and info.name not in EXEMPT:
                found.append(member)
    return found


def test_functions_are_found() -> None:
    assert len(public_functions()) >= 25


@pytest.mark.parametrize("function", public_functions(), ids=lambda f: f.__name__)
def test_docstring_is_complete(function: FunctionType) -> None:
    text = inspect.getdoc(function) or ""
    equations = text.split("Args:")[0]
    assert re.search(r"^    .*(=|<-|:  )", equations, re.MULTILINE), "no indented equation"
    for section in ("Args:", "Raises:", "Source: "):
        assert section in text, f"no '{section}'"
    arguments = text.split("Args:")[1].split("Raises:")[0]
    for name in inspect.signature(function).parameters:
        assert re.search(rf"^\s+{name}: \S", arguments, re.MULTILINE), f"argument {name} is not described"
