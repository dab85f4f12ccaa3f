"""The simulated asynchronous run (`lecritique/planning/simulation.py`) beside asynchronous runs on this machine.

    PYTHONPATH=. python benchmarks/planner_asynchronous.py

Each case trains the bundled model with `runtime.loop` = `asynchronous`. The seconds of its pieces of work (a decode
step, reading a prompt, a policy step, a critic update, scoring a rollout) and the lengths of its rollouts are measured
in that very run and given to the simulation, which says by the orchestrator's rules how they fall together. What is
compared is nothing that it was given: seconds a step, staleness, groups that came too late, and each role's idle time.
One thread for each role; four roles share the cores, so that how long a piece takes depends on what else goes on.
Exit code 1 when a step's seconds are off by more than 25%, staleness by more than 0.3, or an idle share by more than
0.2. Letters choose cases: `... B D`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lecritique.config.load import compose, load_recipe
from lecritique.planning.lengths import MeasuredLengths
from lecritique.planning.plans import asynchronous_settings
from lecritique.planning.simulation import AsynchronousRun, Outcome
from lecritique.runtime.asynchronous import Orchestrator, Step
from lecritique.runtime.build import Parts, build, load_base
from lecritique.runtime.ledger import Ledger
from lecritique.runtime.local_runtime import UTILISATION, LocalRuntime

STEPS, SKIPPED, LAST = 60, 12, 6
SIMULATED = 400
MOST_SECONDS, MOST_STALENESS, MOST_IDLE = 0.25, 0.3, 0.2
SETTINGS = ("runtime.loop=asynchronous", "critic.warmup_updates=0", "run.save_rollouts_every=0", "task.rows=500")
CASES = {
    "A: K 4, batch 32, 64 open, bound 8": (
        "rollout.group_size=4", "rollout.batch_size=32", "rollout.in_flight=64",
    ),
    "B: K 8, batch 16, 96 open, bound 8": (
        "rollout.group_size=8", "rollout.batch_size=16", "rollout.in_flight=96",
    ),
    "C: K 4, batch 16, 128 open, bound 2": (
        "rollout.group_size=4", "rollout.batch_size=16", "rollout.in_flight=128", "rollout.max_staleness=2",
    ),
    "D: as A, chunks of 4 tokens, colocated": (
        "rollout.group_size=4", "rollout.batch_size=32", "rollout.in_flight=64", "runtime.placement=colocated",
        "runtime.decode_chunk_tokens=4",
    ),
}  # fmt: skip
# As the simulation calls them.
ROLES = {
    "rollout engine": "inference",
    "policy trainer": "policy trainer",
    "value trainer": "value trainer",
    "value evaluator": "evaluator",
}


class Watch:
    """Times calls while `on`. What it wraps is private to the roles: only they know how long each piece takes."""

    def __init__(self) -> None:
        self.on = False
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, list[list[float]]] = defaultdict(list)
        self.lengths: dict[str, list[float]] = defaultdict(list)

    def wrap(self, owner: Any, method: str, name: str, count: Callable[..., list[float]] = lambda *_: [1.0]) -> None:
        """Time a method under a name, beside what `count` makes of its arguments before the call."""
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            counted, started = count(*args), time.perf_counter()
            answer = inner(*args, **kwargs)
            if self.on:
                seconds = time.perf_counter() - started
                self.seconds[name] += seconds
                self.counts[name].append(counted)
                self.lengths[name].append(seconds)
            return answer

        setattr(owner, method, timed)

    def rates(self, name: str, busy_seconds: float) -> list[float]:
        """Seconds of each thing counted, by least squares; scaled so that they add up to `busy_seconds`."""
        counts = np.array(self.counts[name])
        found = np.maximum(0.0, np.linalg.lstsq(counts, np.array(self.lengths[name]), rcond=None)[0])
        scaled: list[float] = (found * busy_seconds / float(counts.sum(axis=0) @ found)).tolist()
        return scaled


def decoded(rows: Sequence[Any]) -> list[float]:
    """A decode step, its rows, and tokens that it reads beside the new ones: rows that read the same are read once."""
    unread = {tuple(r.token_ids): len(r.token_ids) - r.cached for r in rows if r.cached < len(r.token_ids) - 1}
    return [1.0, float(len(rows)), float(sum(unread.values()))]


@dataclass(frozen=True, kw_only=True)
class MeasuredCosts:
    """An engine's seconds: of a decode step, of a row in it, and of a token of a prompt."""

    step: float
    row: float
    read: float

    def prefill_seconds(self, length: float) -> float:
        """So many tokens of one row."""
        return self.read * length

    def decode_seconds(self, rows: int, context: float) -> float:
        """One token for each row; contexts are short here."""
        return self.step + rows * self.row


@dataclass(frozen=True, kw_only=True)
class MeasuredWork:
    """Mean seconds of the other roles' work.

    Of a batch: its policy update with publication, publication alone, credit. Then of a critic update, a batch of
    values, and a rollout in it.
    """

    policy: float
    publish_seconds: float
    credit_seconds: float
    update: float
    scoring: float
    rollout: float

    def policy_seconds(self, tokens: Sequence[float]) -> float:
        """A batch, its publication included."""
        return self.policy

    def score_value_seconds(self, tokens: Sequence[float]) -> float:
        """These rollouts."""
        return self.scoring + len(tokens) * self.rollout

    def train_value_seconds(self, tokens: Sequence[float]) -> float:
        """An update."""
        return self.update


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run did in its middle steps, and the durations of its work."""

    outcome: Outcome
    costs: MeasuredCosts
    work: MeasuredWork
    lengths: MeasuredLengths


def measured(parts: Parts) -> Measured:
    """Run all steps, and look at those in the middle: behind the start, and before groups are no longer asked for."""
    service, values = parts.service, parts.learner.values
    assert service is not None and values is not None
    watch, steps = Watch(), list[Step]()
    updates: list[int] = []

    def on_step(step: Step) -> None:
        steps.append(step)
        if step.index in (SKIPPED - 1, STEPS - LAST - 1):
            watch.on = not watch.on
            updates.append(values.trainer.updates)

    runtime = LocalRuntime(parts)
    orchestrator = Orchestrator(runtime, Ledger(), on_step=on_step)
    watch.wrap(parts.engine._sampler, "_step", "decode", decoded)
    watch.wrap(runtime.rollouts._pump, "start", "start")
    watch.wrap(service.evaluator, "_score", "score", lambda _, rows: [1.0, float(len(rows))])
    watch.wrap(parts.learner.policy, "publish", "publish")
    watch.wrap(orchestrator, "_credit", "credit")
    watch.wrap(orchestrator, "_step_metrics", "credit")
    orchestrator.run()

    middle = steps[SKIPPED : STEPS - LAST]
    metrics, count = [step.metrics for step in middle], len(middle)
    seconds = sum(each["seconds"] for each in metrics)
    busy = {role: sum(each[UTILISATION[role]] * each["seconds"] for each in metrics) for role in ROLES}
    # The timeline leaves out that groups are begun, and that weights are published.
    busy["rollout engine"] += watch.seconds["start"]
    busy["policy trainer"] += watch.seconds["publish"]
    step_s, row_s, read_s = watch.rates("decode", busy["rollout engine"])
    batch_s, value_s = watch.rates("score", busy["value evaluator"])
    worked = dict(busy)
    if parts.config.runtime.placement == "colocated":  # one role of the simulation
        worked["value trainer"] += worked.pop("value evaluator")
    return Measured(
        outcome=Outcome(
            step_seconds=seconds / count,
            tokens_per_second=sum(tokens_of(step).sum() for step in middle) / seconds,
            staleness=statistics.mean(each["staleness_mean"] for each in metrics),
            oldest=int(max(each["staleness_max"] for each in metrics)),
            stale_groups=statistics.mean(each["groups_stale"] for each in metrics),
            rows_per_gpu=float(np.mean([rows for _, rows, _ in watch.counts["decode"]])),
            scored=sum(rows for _, rows in watch.counts["score"]) / count,
            idle={told: 1 - worked[role] / seconds for role, told in ROLES.items() if role in worked},
        ),
        costs=MeasuredCosts(step=step_s, row=row_s, read=read_s),
        work=MeasuredWork(
            policy=busy["policy trainer"] / count,
            publish_seconds=watch.seconds["publish"] / count,
            credit_seconds=watch.seconds["credit"] / count,
            update=busy["value trainer"] / (updates[1] - updates[0]),
            scoring=batch_s,
            rollout=value_s,
        ),
        lengths=MeasuredLengths(
            sampled=np.concatenate([tokens_of(step) for step in steps]),
            prompt=float(np.mean([len(r.turns[0].given_ids) for step in steps for g in step.rollouts for r in g])),
        ),
    )


def tokens_of(step: Step) -> np.ndarray:
    """Sampled tokens of a step's rollouts, [groups, size]."""
    return np.array(
        [[float(sum(len(turn.completion.token_ids) for turn in r.turns)) for r in group] for group in step.rollouts]
    )


def simulated(parts: Parts, found: Measured) -> Outcome:
    """The same run by the rules, from the durations of its work."""
    run = AsynchronousRun(
        asynchronous_settings(parts.config),
        found.work,
        found.costs,
        found.lengths,
        gpus=1,
        most_rows=parts.config.runtime.decode_rows,
        chunk_tokens=parts.config.runtime.decode_chunk_tokens,
    )
    return run.run(SIMULATED, skip=SKIPPED)


def row(name: str, outcome: Outcome) -> str:
    """A line of the table."""
    idle = [f"{outcome.idle[role]:.0%}" if role in outcome.idle else "-" for role in ROLES.values()]
    cells = (
        f"{outcome.step_seconds:.3f}", f"{outcome.staleness:.2f}", str(outcome.oldest), f"{outcome.stale_groups:.2f}",
        f"{outcome.scored:.1f}", *idle,
    )  # fmt: skip
    return f"{name:12}" + "".join(f"{cell:>10}" for cell in cells)


def gaps(found: Outcome, told: Outcome) -> tuple[float, float, float]:
    """Relative in seconds a step; in versions of staleness; the largest of the idle shares."""
    idle = max(abs(found.idle[role] - told.idle[role]) for role in found.idle)
    return abs(told.step_seconds / found.step_seconds - 1), abs(told.staleness - found.staleness), idle


def main() -> int:
    """Two lines for each case, and the largest gaps."""
    torch.set_num_threads(1)
    headings = ("step s", "staleness", "oldest", "lost", "scored", "inference", "policy", "critic", "evaluator")
    print(f"{'':12}" + "".join(f"{heading:>10}" for heading in headings))
    chosen, seen = sys.argv[1:], []
    for name, overrides in CASES.items():
        if chosen and name[0] not in chosen:
            continue
        words = [*SETTINGS, *overrides, f"run.steps={STEPS}"]
        parts = build(load_base(compose(load_recipe("demo"), arm="pvf", overrides=words)))
        found = measured(parts)
        told = simulated(parts, found)
        print(name)
        print(row("measured", found.outcome))
        print(row("simulated", told))
        print(durations(found), flush=True)
        seen.append(gaps(found.outcome, told))
    seconds, staleness, idle = (max(column) for column in zip(*seen, strict=True))
    print(f"largest gaps: step {seconds:.0%}, staleness {staleness:.2f}, idle {idle:.0%}")
    return int(seconds > MOST_SECONDS or staleness > MOST_STALENESS or idle > MOST_IDLE)


def durations(found: Measured) -> str:
    """What the simulation was given, in milliseconds."""
    costs, work = found.costs, found.work
    told = {
        "decode step": costs.step, "and row": costs.row, "token read": costs.read, "policy batch": work.policy,
        "its publication": work.publish_seconds, "and credit": work.credit_seconds, "critic update": work.update,
        "batch of values": work.scoring, "and rollout": work.rollout,
    }  # fmt: skip
    given = ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in told.items())
    return f"    ms: {given}; {found.lengths.sampled.mean():.1f} tokens a rollout"


if __name__ == "__main__":
    sys.exit(main())
