"""A training step of ours against TRL's and against its bare parts: CPU seconds, wall seconds, peak memory.

    PYTHONPATH=. python benchmarks/step_time.py [--rounds 5] [--steps 10] [--only NAME ...] [--json FILE]

All run `benchmarks/peers/workload.py` on one thread, each in a process of its own that stays up for all rounds. A round
asks one after the other for some steps, so that whatever disturbs the machine disturbs all of them; the figure of each
is the median of its rounds. TRL has environments of its own, `.venv-trl` (1.16) and `.venv-trl-ppo` (1.12), which
`make bench-peers` builds and the first run makes. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.workload import save_model
from lecritique.models.loading import TINY_FOLDER

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers"
ARMS = ("mean", "leave_one_out", "value", "pvf", "tether", "evpo")
# Environment, script and its arguments after the model's folder.
TRL = {
    "TRL 1.16 GRPO": (".venv-trl", "trl_groups.py", "grpo"),
    "TRL 1.16 RLOO": (".venv-trl", "trl_groups.py", "rloo"),
    "TRL 1.12 PPO": (".venv-trl-ppo", "trl_ppo.py", "as-is"),
    "TRL 1.12 PPO without gc": (".venv-trl-ppo", "trl_ppo.py", "without-gc"),
}
BARE = ("generate", "forward", "train", "train-critic")
GROUP_ARMS, CRITIC_ARMS = ARMS[:2], ARMS[2:]
RIVALS = dict.fromkeys(GROUP_ARMS, "TRL 1.16 GRPO") | dict.fromkeys(CRITIC_ARMS, "TRL 1.12 PPO without gc")
# What an arm cannot do without. The critic of `pvf` reads more than the policy does, so that it has no such sum.
_GROUP_PARTS = ("bare generate", "bare train")
_CRITIC_PARTS = (*_GROUP_PARTS, "bare forward", "bare train-critic")
PARTS = dict.fromkeys(GROUP_ARMS, _GROUP_PARTS) | dict.fromkeys(("value", "tether", "evpo"), _CRITIC_PARTS)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one step, in each of the rounds; memory is the most that the process ever held."""

    cpu_rounds: tuple[float, ...]
    wall_rounds: tuple[float, ...]
    peak_mib: float

    def of(self, others: Sequence[Cost]) -> float:
        """The median over the rounds of this one's CPU seconds by those of the others together in the same round."""
        together = [sum(each) for each in zip(*(other.cpu_rounds for other in others), strict=True)]
        return statistics.median(own / other for own, other in zip(self.cpu_rounds, together, strict=True))


class Worker:
    """A trainer in a process of its own that makes steps when it is asked to."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, cwd=PEERS, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if self._answer() != "ready":
            raise RuntimeError(f"{name} did not start; run it by hand in {PEERS}: {' '.join(command)}")

    def steps(self, count: int) -> dict[str, float]:
        """Cost of a step, the mean of so many."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return dict(json.loads(self._answer()))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@ "):
                return line[2:].strip()
        raise RuntimeError(f"{self.name} ended with exit code {self._process.wait()}")


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of each in a round")
    parser.add_argument("--only", nargs="*", help="names of what is measured, as in the table")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), TINY_FOLDER)
        commands = {
            name: command for name, command in commands_of(folder).items() if not asked.only or name in asked.only
        }
        if any(name in TRL for name in commands):
            subprocess.run(["make", "--silent", "bench-peers"], cwd=ROOT, check=True)
        costs = measured(commands, rounds=asked.rounds, steps=asked.steps)
    print(table(costs))
    if asked.json:
        asked.json.write_text(json.dumps({name: vars(cost) for name, cost in costs.items()}, indent=1) + "\n")


def commands_of(folder: str) -> dict[str, list[str]]:
    """How each is started."""
    ours = {arm: [sys.executable, "own.py", folder, arm] for arm in ARMS}
    peers = {
        name: [str(ROOT / environment / "bin" / "python"), script, folder, form]
        for name, (environment, script, form) in TRL.items()
    }
    bare = {f"bare {part}": [sys.executable, "bare_parts.py", folder, part] for part in BARE}
    return ours | peers | bare


def measured(commands: Mapping[str, Sequence[str]], *, rounds: int, steps: int) -> dict[str, Cost]:
    """All of them, alternating."""
    workers: list[Worker] = []
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    try:
        for name, command in commands.items():
            workers.append(Worker(name, command))
        for number in range(rounds):
            # Every second round backwards: who comes after whom is not always the same.
            for worker in workers if number % 2 == 0 else workers[::-1]:
                found[worker.name].append(worker.steps(steps))
    finally:
        for worker in workers:
            worker.close()
    return {
        name: Cost(
            cpu_rounds=tuple(each["cpu_seconds"] for each in rows),
            wall_rounds=tuple(each["wall_seconds"] for each in rows),
            peak_mib=rows[-1]["peak_mib"],
        )
        for name, rows in found.items()
    }


def table(costs: Mapping[str, Cost]) -> str:
    """One line for each: medians, and ratios to its rival and to its bare parts in the same rounds."""
    lines = [f"{'':26}{'CPU s':>8}{'wall s':>8}{'peak MiB':>10}{'of GRPO / PPO without gc':>26}{'of its parts':>14}"]
    for name, cost in costs.items():
        cpu, wall = statistics.median(cost.cpu_rounds), statistics.median(cost.wall_rounds)
        ratios = [_ratio(cost, costs, names) for names in ((RIVALS.get(name, ""),), PARTS.get(name, ("",)))]
        lines.append(f"{name:26}{cpu:8.3f}{wall:8.3f}{cost.peak_mib:10.0f}{ratios[0]:>26}{ratios[1]:>14}")
    return "\n".join(lines)


def _ratio(cost: Cost, costs: Mapping[str, Cost], names: Sequence[str]) -> str:
    """Nothing where one of them was not measured."""
    return f"{cost.of([costs[name] for name in names]):.2f}" if all(name in costs for name in names) else ""


if __name__ == "__main__":
    main()
