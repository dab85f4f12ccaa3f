"""Plants the faults of `mutations.py` one at a time and shows that the suite catches each.

    python -m scripts.mutation_check                    all of them
    python -m scripts.mutation_check --only gae         those of files whose path contains a text
    python -m scripts.mutation_check --slice 2/5        every fifth, from the second on
    python -m scripts.mutation_check --verify           only that each old text stands in its file exactly once

The working tree is never touched: package and tests are copied to a temporary folder, and what runs is the copy. Only
tests that import the mutated module run, stopping at the first failure. Exits 1 if a mutation survives that is not
explained, or if the suite fails without one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scripts.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]
_TESTS = ("tests/unit/numerics", "tests/unit/statistics", "tests/unit/credit", "tests/oracles", "tests/property",
          "tests/contract/test_conformance.py", "tests/statistical", "tests/unit/conformance")  # fmt: skip
_LIMIT_SECONDS = 180.0
_CAUGHT = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """Parse, run, print a line per mutation and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a path")
    parser.add_argument("--slice", default="1/1", help="i/n: every n-th mutation from the i-th on")
    parser.add_argument("--verify", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    first, every = (int(part) for part in arguments.slice.split("/"))
    chosen = [m for m in MUTATIONS if arguments.only in m.file][first - 1 :: every]
    for mutation in MUTATIONS if arguments.verify else chosen:
        mutated(mutation)
    print(f"{len(MUTATIONS)} mutations in {len({m.file for m in MUTATIONS})} files, {len(chosen)} chosen")
    return 0 if arguments.verify else run(chosen)


def mutated(mutation: Mutation, root: Path = ROOT) -> str:
    """The text of the mutated file below `root`.

    Raises:
        ValueError: the old text does not stand in the file exactly once, or the result is not Python.
    """
    text = (root / mutation.file).read_text()
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.file} holds this text {count} times, expected once: {mutation.old!r}")
    changed = text.replace(mutation.old, mutation.new)
    compile(changed, mutation.file, "exec")
    return changed


def suite_of(file: str, root: Path = ROOT) -> list[str]:
    """Test files below `root` that import a module, those named after it first."""
    module = file.removesuffix(".py").replace("/", ".")
    parent, _, name = module.rpartition(".")
    # precision.py has no tests of its own: whatever imports the equations tests it.
    wanted = (
        [r"lecritique\.numerics\.\w+"]
        if name == "precision"
        else [re.escape(module), rf"{re.escape(parent)} import [^\n]*\b{name}\b"]
    )
    pattern = re.compile("|".join(f"(?:{text})" for text in wanted))
    found = []
    for place in _TESTS:
        path = root / place
        for test in sorted(path.glob("test_*.py")) if path.is_dir() else [path]:
            if pattern.search(test.read_text()) or imports_a_helper(test, pattern):
                found.append(str(test.relative_to(root)))
    room = file.split("/")[1]
    unit = f"tests/unit/{room}"
    return sorted(found, key=lambda test: (name not in test, unit not in test, "tests/unit" not in test, test))


def imports_a_helper(test: Path, pattern: re.Pattern[str]) -> bool:
    """Whether a helper beside the test, which it imports, imports the module."""
    text = test.read_text()
    helpers = [path for path in test.parent.glob("*.py") if not path.name.startswith("test_")]
    return any(re.search(rf"\b{path.stem}\b", text) and pattern.search(path.read_text()) for path in helpers)


def run(chosen: Sequence[Mutation]) -> int:
    """Check the chosen mutations; the exit code."""
    _load_heavy_modules()
    counts: Counter[str] = Counter()
    unexplained = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-check-") as folder:
        copy = Path(folder)
        skipped = shutil.ignore_patterns("__pycache__", ".hypothesis", "integration")
        for name in ("lecritique", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=skipped)
        shutil.copy(ROOT / "pyproject.toml", copy)
        everything = list(dict.fromkeys(test for m in chosen for test in suite_of(m.file, copy)))
        code, by, output = suite(copy, everything, log=copy / "log")
        if code != 0:
            print(f"without a mutation the tests fail already ({by}):\n{output[-3000:]}")
            return 1
        for number, mutation in enumerate(chosen, start=1):
            begun = time.monotonic()
            code, by = plant(mutation, copy)
            verdict = "killed" if code != 0 else "explained" if mutation.equivalent else "SURVIVED"
            counts[verdict] += 1
            if verdict == "SURVIVED":
                unexplained.append(mutation)
            reason = by or mutation.equivalent
            print(
                f"{number:4d} {verdict:9} {time.monotonic() - begun:5.1f} s  {_described(mutation)}  {reason}",
                flush=True,
            )
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("killed", "explained", "SURVIVED"))
    print(f"{summary} of {len(chosen)} in {time.monotonic() - started:.0f} s")
    return 1 if unexplained else 0


def plant(mutation: Mutation, copy: Path) -> tuple[int, str]:
    """Run the tests of a mutated module in the copy, and put the module back: exit code and the first failing test."""
    target, tests = copy / mutation.file, suite_of(mutation.file, copy)
    original = target.read_text()
    target.write_text(mutated(mutation, copy))
    try:
        # Nearly all fall to the module's own tests; collecting the others costs more than running these.
        code, by, _ = suite(copy, tests[:1], log=copy / "log")
        if code == 0 and len(tests) > 1:
            code, by, _ = suite(copy, tests[1:], log=copy / "log")
    finally:
        target.write_text(original)
    return code, by


def suite(copy: Path, tests: Sequence[str], *, log: Path) -> tuple[int, str, str]:
    """Run tests of the copy in a forked process: exit code, the first failing test, and the output.

    The parent has imported torch and never the package, so a fork starts in milliseconds with a fresh package.

    Raises:
        RuntimeError: pytest stopped without a failing test.
    """
    child = os.fork()
    if child == 0:
        _run_child(copy, tests, log)
    code = _waited(child)
    output = log.read_text(errors="replace")
    caught = _CAUGHT.search(output)
    if code > 0 and caught is None:
        raise RuntimeError(
            f"the tests did not run (exit code {code}), which is not the same as failing:\n{output[-3000:]}"
        )
    by = "" if code == 0 else "ran past its limit" if code < 0 else str(caught and caught[1])
    return code, by, output


def _run_child(copy: Path, tests: Sequence[str], log: Path) -> None:
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(copy)
        # A stale .pyc of the same size and second would run the unmutated text.
        sys.dont_write_bytecode = True
        sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.split(".")[0] in ("lecritique", "tests", "scripts")]:
            del sys.modules[name]
        import pytest

        options = ["-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow", "--hypothesis-seed=0"]
        code = int(pytest.main([*options, f"--rootdir={copy}", *tests]))
        where = str(getattr(sys.modules.get("lecritique"), "__file__", ""))
        if code == 0 and not where.startswith(str(copy)):
            print(f"the tests imported {where}, not the copy")
            code = 71
    finally:
        sys.stdout.flush()
        os._exit(code)


def _waited(child: int) -> int:
    """Exit code of the child, -1 if it had to be stopped."""
    end = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _load_heavy_modules() -> None:
    """What every test imports anyway, once, before the forks."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import hypothesis  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)


def _described(mutation: Mutation) -> str:
    """File and what changed, cut to the words that differ."""
    old, new = mutation.old.split(), mutation.new.split()
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    shown = [" ".join(words[start : len(words) - end]) or "(nothing)" for words in (old, new)]
    return f"{mutation.file.removeprefix('lecritique/').removesuffix('.py')}: {shown[0]} -> {shown[1]}"


def _shared(old: Sequence[str], new: Sequence[str]) -> int:
    """How many words both begin with."""
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


if __name__ == "__main__":
    sys.exit(main())
