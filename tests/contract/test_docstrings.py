"""Every public equation says what it computes, from what shapes, when it refuses, and where it comes from."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from types import FunctionType, ModuleType

import pytest

import lecritique.conformance
import lecritique.credit
import lecritique.numerics

# Plumbing, not equations.
EXEMPT = {"lecritique.numerics.precision"}
# Annotations of arguments that have a shape.
SHAPED = ("Tensor", "ArrayLike", "NDArray", "Array")
SHAPE = re.compile(r"\[[^\]]*\]|one number|any shape|[Oo]ne (?:per|of|list)|scalar")


def public_functions(package: ModuleType) -> list[FunctionType]:
    found = []
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        for name, member in vars(module).items():
            is_own = inspect.isfunction(member) and member.__module__ == info.name
            if is_own and not name.startswith("_") and info.name not in EXEMPT:
                found.append(member)
    return found


EQUATIONS = public_functions(lecritique.numerics)
OTHERS = public_functions(lecritique.credit) + public_functions(lecritique.conformance)


def sections(function: FunctionType) -> dict[str, str]:
    """Text of a docstring by section; `equations` is what stands before the first one."""
    parts = re.split(r"^(Args|Returns|Raises|Source): ?", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return {"equations": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def missing(function: FunctionType) -> list[str]:
    """What a docstring of an equation lacks."""
    found = sections(function)
    lacks = [f"section {name}" for name in ("Args", "Raises", "Source") if not found.get(name, "").strip()]
    if not re.search(r"^    .*(=|<-|:  |~)", found["equations"], re.MULTILINE):
        lacks.append("an indented equation")
    for name, parameter in inspect.signature(function).parameters.items():
        described = re.search(rf"^\s+{name}: (\S.*(?:\n      .*)*)", found.get("Args", ""), re.MULTILINE)
        if not described:
            lacks.append(f"argument {name}")
        elif str(parameter.annotation).startswith(SHAPED) and not SHAPE.search(described[1]):
            lacks.append(f"the shape of {name}")
    return lacks


def test_functions_are_found() -> None:
    assert len(EQUATIONS) >= 45
    assert {"gae", "cluster_bootstrap", "continuation_brier"} <= {f.__name__ for f in EQUATIONS}


@pytest.mark.parametrize("function", EQUATIONS, ids=lambda f: f.__name__)
def test_an_equation_is_fully_described(function: FunctionType) -> None:
    assert missing(function) == []


@pytest.mark.parametrize("function", OTHERS, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_other_public_functions_have_a_docstring(function: FunctionType) -> None:
    assert (inspect.getdoc(function) or "").strip()


def test_what_is_missing_is_named() -> None:
    def bare(values_T: list[float]) -> None:
        """Say nothing."""

    bare.__annotations__["values_T"] = "Tensor"
    assert missing(bare) == [
        "section Args", "section Raises", "section Source", "an indented equation", "argument values_T",
    ]  # fmt: skip

    def shapeless(values_T: list[float]) -> None:
        """Say something.

            a = b

        Args:
            values_T: some values.

        Raises:
            Nothing.

        Source: ours.
        """

    shapeless.__annotations__["values_T"] = "Tensor"
    assert missing(shapeless) == ["the shape of values_T"]
