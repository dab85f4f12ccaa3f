"""math-verify in processes: right from everywhere, cut at the limit, replaced, gone afterwards."""

import asyncio
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lecritique.core.errors import ConfigurationError, VerifierFailure
from lecritique.tasks.math import pool as pool_module
from lecritique.tasks.math.pool import ComparisonPool, Outcome

LIMIT = 5.0
TOWER = "9^{9^{9^9}}"
ENDLESS = r"\sum_{n=1}^{10^{12}} \frac{1}{n^2}"
PARENTHESES = "(" * 500 + "1" + ")" * 500


@pytest.fixture(scope="module")
def pool():
    pool = ComparisonPool(workers=2, limit_seconds=LIMIT)
    yield pool
    pool.close()


@pytest.fixture
def short():
    """A pool with a short limit, started before anything is timed."""
    pool = ComparisonPool(workers=1, limit_seconds=LIMIT)
    assert pool.compare("1", "2").outcome is Outcome.DIFFERENT
    pool.limit_seconds = 0.3
    yield pool
    pool.close()


def descendants(pid: int) -> set[int]:
    """Process ids below `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found, todo = set(), [pid]
    while todo:
        below = {child for child, parent in parents.items() if parent == todo[-1]} - found
        todo.pop()
        found |= below
        todo += below
    return found


def worker_ids(pool: ComparisonPool) -> list[int]:
    return [worker._process.pid for worker in pool._idle]


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/3", r"\frac13"),
        (r"\frac{\sqrt{3}}{2}", r"\sin(\pi/3)"),
        ("x^2+2x+1", "(x+1)^2"),
        ("(1,2)", "(1, 2)"),
        (r"\{1,2\}", "2, 1"),
        ("10^6", "1,000,000"),
        ("3", "x=3"),
        (r"\infty", r"+\infty"),
        (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\begin{bmatrix}1&0\\0&1\end{bmatrix}"),
    ],
)
def test_equal_answers(pool, gold, answer):
    assert pool.compare(gold, answer).outcome is Outcome.EQUAL


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/3", "0.33"),
        ("42", "41"),
        ("42", r"41 \le x \le 43"),
        ("42", r"\mathbb{R}"),
        ("42", "40, 41, 42, 43"),
        ("42", "1/0"),
        ("42", "nan"),
        ("42", r"42 \pm 1"),
        ("x", "y"),
        ("42", "{{{"),
        ("42", "\ud800"),
        ("42", "\x00"),
    ],
)
def test_other_answers(pool, gold, answer):
    assert pool.compare(gold, answer).outcome is Outcome.DIFFERENT


def in_a_process(queue):
    pool = ComparisonPool(workers=1, limit_seconds=LIMIT)
    queue.put(pool.compare("1/3", r"\frac13").outcome)
    pool.close()


def test_the_same_from_a_thread_an_asyncio_task_and_a_process(pool):
    """Fault 45: SIGALRM, which math_verify uses by default, works in the main thread only."""
    outcomes = []

    def ask():
        outcomes.append(pool.compare("1/3", r"\frac13").outcome)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def task():
        ask()
        await asyncio.get_running_loop().run_in_executor(None, ask)

    asyncio.run(task())
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=in_a_process, args=(queue,))
    process.start()
    outcomes.append(queue.get(timeout=60))
    process.join()
    assert outcomes == [Outcome.EQUAL] * 7


def test_a_forked_copy_starts_processes_of_its_own(pool):
    pool.compare("1", "2")
    theirs = set(worker_ids(pool))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome, own = pool.compare("1/3", r"\frac13").outcome, set(worker_ids(pool))
        pool.close()
        os.write(writer, json.dumps([outcome, bool(own & theirs)]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert json.loads(os.read(reader, 1000)) == ["equal", False]
    os.close(reader), os.close(writer)
    assert pool.compare("1/3", r"\frac13").outcome is Outcome.EQUAL and set(worker_ids(pool)) == theirs


def test_a_pickled_copy_works():
    copy = pickle.loads(pickle.dumps(ComparisonPool(workers=1, limit_seconds=LIMIT)))
    assert copy.compare("1/3", r"\frac13").outcome is Outcome.EQUAL
    copy.close()


def test_nothing_is_started_before_it_is_needed():
    before = descendants(os.getpid())
    pool = ComparisonPool(workers=2, limit_seconds=LIMIT)
    assert descendants(os.getpid()) == before
    pool.compare("1", "2")
    assert len(descendants(os.getpid()) - before) == 1
    pool.close()
    assert descendants(os.getpid()) == before


def test_a_hundred_hangs_in_a_row_are_cut_and_leave_no_process(short):
    """Fault 46."""
    before = descendants(os.getpid())
    (worker,) = worker_ids(short)
    short.limit_seconds = 0.1
    for number in range(100):
        begun = time.monotonic()
        outcome = short.compare("42", (TOWER, ENDLESS, PARENTHESES)[number % 3]).outcome
        assert time.monotonic() - begun < short.limit_seconds + 1.0
        assert outcome is Outcome.TIMEOUT
    assert descendants(os.getpid()) == before and worker_ids(short) == [worker]
    short.limit_seconds = LIMIT
    assert short.compare("42", "42.0").outcome is Outcome.EQUAL
    short.close()
    assert descendants(os.getpid()) == before - {worker}


def test_a_worker_without_time_to_look_still_says_that_the_limit_was_reached():
    """The child's own alarm, meant for orphans, comes first when a busy machine lets the worker wait."""
    script = Path(pool_module.__file__).with_name("worker.py")
    with subprocess.Popen([sys.executable, "-P", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout.readline() == b"ready\n"
        request = {"gold": "42", "answer": ENDLESS, "whole": False, "limit_seconds": 0.3}
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        worker.stdin.flush()
        time.sleep(0.1)
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(worker.pid, signal.SIGCONT)
        assert json.loads(worker.stdout.readline())["outcome"] == "timeout"
        worker.stdin.close()
        assert worker.wait(timeout=10) == 0


def test_a_worker_that_is_stopped_or_killed_is_replaced(short):
    os.kill(worker_ids(short)[0], signal.SIGSTOP)
    begun = time.monotonic()
    assert short.compare("1", "1.0").outcome is Outcome.TIMEOUT
    assert time.monotonic() - begun < short.limit_seconds + 1.0
    assert worker_ids(short) == []
    short.limit_seconds = LIMIT  # a busy machine needs more than a third of a second for an answer
    assert short.compare("1", "2").outcome is Outcome.DIFFERENT
    os.kill(worker_ids(short)[0], signal.SIGKILL)
    time.sleep(0.1)
    with pytest.raises(VerifierFailure, match="died"):
        short.compare("1", "1.0")
    assert short.compare("1", "1.0").outcome is Outcome.EQUAL


def test_a_gold_answer_without_a_value_is_the_verifiers_fault(pool):
    comparison = pool.compare("1/0", "42")
    assert comparison.outcome is Outcome.RAISED and "ValueError" in comparison.detail


def test_the_end_of_the_program_ends_the_processes():
    """Also when it is killed in the middle of a hang."""
    script = (
        "import os, sys, threading, time\n"
        "from lecritique.tasks.math.pool import ComparisonPool\n"
        "pool = ComparisonPool(workers=2, limit_seconds=60.0)\n"
        "pool.compare('1', '2')\n"
        "if sys.argv[1] == 'hang':\n"
        f"    threading.Thread(target=pool.compare, args=('1', {TOWER!r}), daemon=True).start()\n"
        "    time.sleep(0.5)\n"
        "print(*[w._process.pid for w in pool._idle], flush=True)\n"
        "if sys.argv[1] == 'hang': time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, "end"], capture_output=True, text=True, check=True)
    assert all(not Path(f"/proc/{pid}").exists() for pid in done.stdout.split()) and done.stdout.split()
    process = subprocess.Popen([sys.executable, "-c", script, "hang"], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    below = descendants(process.pid)
    assert len(below) == 2, "expected the worker and its child"
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 5.0
    while any(alive(pid) for pid in below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in below)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(pool_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'lecritique\[math\]'"):
        ComparisonPool(workers=1, limit_seconds=1.0)
