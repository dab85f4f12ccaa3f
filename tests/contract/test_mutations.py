"""The planted faults still fit the text that they are planted in; running them is `scripts/mutation_check.py`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.mutation_check import ROOT, mutated, suite_of
from scripts.mutations import MUTATIONS, Mutation

FILES = sorted({mutation.file for mutation in MUTATIONS})


def equations() -> list[str]:
    """Modules of numerics and credit that hold functions."""
    found = []
    for room in ("numerics", "credit"):
        for path in sorted((ROOT / "lecritique" / room).rglob("*.py")):
            if any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(path.read_text()))):
                found.append(str(path.relative_to(ROOT)))
    return found


def test_there_are_many_and_every_module_has_some() -> None:
    assert len(MUTATIONS) >= 60
    assert len({(m.file, m.old, m.new) for m in MUTATIONS}) == len(MUTATIONS)
    # The schedules are held by integration tests, which are too slow to run once a fault.
    assert set(equations()) - set(FILES) <= {"lecritique/credit/schedules.py"}


@pytest.mark.parametrize("file", FILES)
def test_each_applies_once_and_stays_python(file: str) -> None:
    texts = [ast.dump(ast.parse(mutated(m))) for m in MUTATIONS if m.file == file]
    original = ast.dump(ast.parse((ROOT / file).read_text()))
    assert original not in texts
    assert suite_of(file), "no test imports it"


def test_a_mutation_that_no_longer_fits_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("a = 1\nb = 1\n")
    assert mutated(Mutation("module.py", "a = 1", "a = 2"), tmp_path) == "a = 2\nb = 1\n"
    with pytest.raises(ValueError, match="holds this text 0 times"):
        mutated(Mutation("module.py", "c = 1", "c = 2"), tmp_path)
    with pytest.raises(ValueError, match="holds this text 2 times"):
        mutated(Mutation("module.py", "= 1", "= 2"), tmp_path)
    with pytest.raises(SyntaxError):
        mutated(Mutation("module.py", "a = 1", "a = = 1"), tmp_path)
