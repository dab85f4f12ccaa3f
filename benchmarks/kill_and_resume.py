"""Kills a run at random moments, resumes it each time, and compares it with the run that was never killed.

    python benchmarks/kill_and_resume.py                       25 kills of one long run (some minutes)
    python benchmarks/kill_and_resume.py --kills 3 --steps 12  a short form
    python benchmarks/kill_and_resume.py --loop asynchronous   every group one outcome, versions consecutive

The process gets SIGKILL, so nothing of its own can clean up: what counts is what is on the disk. With the synchronous
loop, weights, optimizer states, replay, versions, metrics (clocks aside), task order and sampled tokens must be the
same to the last bit. With the asynchronous loop, where timing decides which groups meet in a batch, every group (row,
attempt) must have exactly one outcome that survives, and the surviving versions of policy and critic must be
consecutive. Exit code 0 when it is so, 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from lecritique.analysis.history import surviving_outcomes, surviving_versions
from lecritique.analysis.read import load_run
from tests.integration.run_files import differences

# A step takes a tenth of a second or two, a checkpoint is written every second step: kills fall into both.
RECIPE = ("demo", "--arm", "tether")
SETTINGS = (
    "runtime.dtype=float64", "run.checkpoint_every=2", "run.save_rollouts_every=1",
    "task.rows=16", "task.min_empty=6", "task.max_empty=10", "rollout.batch_size=8", "critic.replay.refill_size=16",
    "critic.warmup_updates=1", "sampling.temperature=1.6",
)  # fmt: skip


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """`python -m lecritique train ARGUMENTS`, its output at the end of `log`."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "lecritique", "train", *arguments],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def lines(path: Path) -> int:
    """Lines in a file, 0 without one."""
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def kill_once(process: subprocess.Popen[bytes], run: Path, rows: int, draw: random.Random) -> bool:
    """Wait until it has recorded `rows` new steps and a random moment more, then kill it; False when it had ended."""
    metrics = run / "metrics.jsonl"
    wanted = lines(metrics) + rows
    while process.poll() is None and lines(metrics) < wanted:
        time.sleep(0.01)
    time.sleep(draw.uniform(0.0, 0.4))
    process.kill()
    return process.wait() == -9


def killed_run(run: Path, *, kills: int, steps: int, seed: int, log: Path, loop: str = "synchronous") -> int:
    """Train with kills in between, until it is finished; how many of them met a living process."""
    draw = random.Random(seed)
    process = start(*RECIPE, *SETTINGS, f"runtime.loop={loop}", f"run.steps={steps}", "--out", str(run), log=log)
    done = 0
    while done < kills:
        # Kills before the first checkpoint would only start the run again: the first one comes after it.
        if not kill_once(process, run, rows=3 if not done else draw.randint(0, 3), draw=draw):
            break
        done += 1
        process = start("--resume", str(run), log=log)
    if process.wait() not in (0, -9):
        raise SystemExit(f"the resumed run ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}")
    return done


def asynchronous_faults(run: Path, *, steps: int) -> list[str]:
    """What is wrong with the history of a finished asynchronous run; empty when nothing is."""
    faults = []
    outcomes = surviving_outcomes(run)
    positions = Counter(outcome["position"] for outcome in outcomes)
    groups = Counter((outcome["row"], outcome["attempt"]) for outcome in outcomes)
    faults += [f"group {group} has {count} outcomes" for group, count in groups.items() if count != 1]
    if sorted(positions) != list(range(len(positions))):
        faults.append("groups that were asked for have no outcome")
    for role in ("policy", "critic"):
        versions = surviving_versions(run, role)
        if versions != list(range(1, len(versions) + 1)) or not versions:
            faults.append(f"versions of the {role} are not consecutive: {versions}")
    if load_run(run).steps.tolist() != list(range(steps)):
        faults.append("not every step was recorded once")
    return faults


def killed_asynchronously(folder: Path, asked: argparse.Namespace) -> int:
    """Kill and resume an asynchronous run, and check its history."""
    run, log = folder / "killed", folder / "log"
    done = killed_run(run, kills=asked.kills, steps=asked.steps, seed=asked.seed, log=log, loop="asynchronous")
    faults = asynchronous_faults(run, steps=asked.steps)
    outcomes = Counter(outcome["outcome"] for outcome in surviving_outcomes(run))
    redone = lines(run / "metrics.jsonl") - asked.steps
    print(
        f"{done} kills in {asked.steps} steps, {redone} steps done again: outcomes {dict(outcomes)}, versions to "
        f"policy {surviving_versions(run, 'policy')[-1]} and critic {surviving_versions(run, 'critic')[-1]}: "
        f"{'; '.join(faults) or 'every group has one outcome, versions are consecutive'}"
    )
    return 0 if not faults and done == asked.kills else 1


def main() -> int:
    """Run both, compare, print a verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--loop", choices=("synchronous", "asynchronous"), default="synchronous")
    asked = parser.parse_args()
    if asked.loop == "asynchronous":
        with tempfile.TemporaryDirectory() as folder:
            return killed_asynchronously(Path(folder), asked)
    with tempfile.TemporaryDirectory() as folder:
        straight, killed, log = (Path(folder) / name for name in ("straight", "killed", "log"))
        settings = (*SETTINGS, "runtime.loop=synchronous", f"run.steps={asked.steps}")
        whole = start(*RECIPE, *settings, "--out", str(straight), log=log)
        if whole.wait() != 0:
            print(log.read_text(errors="replace"))
            return 1
        done = killed_run(killed, kills=asked.kills, steps=asked.steps, seed=asked.seed, log=log)
        found = differences(straight, killed)
        redone = lines(killed / "metrics.jsonl") - asked.steps
    verdict = "the same run to the last bit" if not found else f"{len(found)} differences: {', '.join(found[:8])}"
    print(f"{done} kills in {asked.steps} steps, {redone} steps done again: {verdict}")
    return 0 if not found and done == asked.kills else 1


if __name__ == "__main__":
    sys.exit(main())
