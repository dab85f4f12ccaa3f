"""What the asynchronous runtime buys: policy steps per second with stragglers, and with a slow value trainer.

    python -m benchmarks.asynchronous stragglers          an engine with simulated latencies, 1 rollout in 16 10x longer
    python -m benchmarks.asynchronous stragglers-embedded the embedded engine, where one core does everything
    python -m benchmarks.asynchronous slow-critic         the value trainer slowed 20 times by sleeping
    python -m benchmarks.asynchronous lock                what the interpreter lock costs the policy

Each prints one JSON line per run and the ratios at the end. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lecritique.config.load import compose, load_recipe
from lecritique.rollout.simulated import SimulatedEngine, one_in
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.asynchronous import Orchestrator, Step
from lecritique.runtime.build import Parts, build, load_base
from lecritique.runtime.ledger import Ledger
from lecritique.runtime.local_runtime import LocalRuntime
from lecritique.runtime.synchronous import train_step
from lecritique.runtime.training import train

SETTINGS = (
    "rollout.batch_size=32",
    "critic.warmup_updates=0",
    "critic.replay.refill_size=32",
    "task.rows=256",
    "run.save_rollouts_every=0",
    "run.checkpoint_every=0",
)


def parts_of(*overrides: str, arm: str, steps: int) -> Parts:
    """The roles of a small run of the demo's task and model."""
    settings = [*SETTINGS, f"run.steps={steps}", *overrides]
    return build(load_base(compose(load_recipe("demo"), arm=arm, overrides=settings)))


def simulated(parts: Parts, *, seconds: float) -> Parts:
    """The same with an engine that waits: one rollout in 16 takes ten times as long."""
    digits = parts.tokenizer.encode("1234", add_special_tokens=False)
    stop = min(parts.renderer.stop_ids)
    engine = SimulatedEngine(
        latency_seconds=one_in(16, seconds=seconds, slow_seconds=10 * seconds),
        tokens=lambda request: [*(digits * 4)[:15], stop],
    )
    parts.engine.close()
    engine.adopt(parts.learner.policy.publish())
    return replace(parts, engine=engine)


def synchronous_rate(parts: Parts, *, skip: int) -> float:
    """Policy steps per second of the synchronous loop, after `skip` steps."""
    times = []
    try:
        for step in range(parts.config.run.steps):
            train_step(parts, step)
            times.append(time.perf_counter())
    finally:
        parts.engine.close()
    return (len(times) - 1 - skip) / (times[-1] - times[skip])


def asynchronous_rate(
    parts: Parts, *, skip: int, pause: Callable[[], None] = lambda: None
) -> tuple[float, dict[str, float]]:
    """Policy steps per second of the asynchronous loop after `skip` steps, and the last step's metrics."""
    times: list[float] = []
    last: dict[str, float] = {}

    def on_step(step: Step) -> None:
        times.append(time.perf_counter())
        last.update(step.metrics)

    runtime = LocalRuntime(parts, pause_critic=pause)
    Orchestrator(runtime, Ledger(), on_step=on_step).run()
    return (len(times) - 1 - skip) / (times[-1] - times[skip]), last


def say(**fields: Any) -> None:
    """One line."""
    print(json.dumps(fields), flush=True)


def stragglers(steps: int, seconds: float) -> None:
    """The simulated engine under both loops."""
    slow = synchronous_rate(
        simulated(parts_of("runtime.loop='synchronous'", arm="pvf", steps=max(6, steps // 4)), seconds=seconds), skip=1
    )
    say(loop="synchronous", steps_per_second=slow)
    fast, last = asynchronous_rate(
        simulated(parts_of("runtime.loop='asynchronous'", arm="pvf", steps=steps), seconds=seconds), skip=4
    )
    say(loop="asynchronous", steps_per_second=fast, staleness_mean=last["staleness_mean"], stale=last["groups_stale"])
    say(ratio=fast / slow, wanted=3.0)


def stragglers_embedded(steps: int) -> None:
    """The embedded engine under both loops: no latency to hide, two cores at most."""
    slow = synchronous_rate(parts_of("runtime.loop='synchronous'", arm="pvf", steps=steps), skip=2)
    say(loop="synchronous", steps_per_second=slow)
    fast, last = asynchronous_rate(parts_of("runtime.loop='asynchronous'", arm="pvf", steps=steps), skip=4)
    shares = {name: round(value, 2) for name, value in last.items() if name.startswith("utilisation")}
    say(loop="asynchronous", steps_per_second=fast, **shares)
    say(ratio=fast / slow)


def slow_critic(steps: int, rounds: int) -> None:
    """The value trainer as it is and 20 times slower, alternating; medians."""
    probe = parts_of("runtime.loop='synchronous'", arm="pvf", steps=8)
    rows = []
    for step in range(8):
        rows.append(train_step(probe, step).metrics["seconds_critic"])
    probe.engine.close()
    update_seconds = statistics.median(rows[2:])
    say(critic_update_seconds=update_seconds, slowed_by_seconds=19 * update_seconds)
    rates: dict[str, list[float]] = {"as it is": [], "slowed": []}
    for _ in range(rounds):
        for name, pause in (("as it is", lambda: None), ("slowed", lambda: time.sleep(19 * update_seconds))):
            parts = simulated(parts_of("runtime.loop='asynchronous'", arm="pvf", steps=steps), seconds=0.2)
            rate, last = asynchronous_rate(parts, skip=4, pause=pause)
            rates[name].append(rate)
            say(critic=name, steps_per_second=rate, updates=last["value_updates"], evicted=last["replay_evicted"])
    plain, slowed = (statistics.median(rates[name]) for name in ("as it is", "slowed"))
    say(drop=1 - slowed / plain, wanted_below=0.1)


def lock(steps: int) -> None:
    """How much slower the policy's own step is while the other threads run."""
    parts = parts_of("runtime.loop='synchronous'", arm="pvf", steps=steps)
    alone = statistics.median(train_step(parts, step).metrics["seconds_policy"] for step in range(steps))
    parts.engine.close()
    together: list[float] = []
    parts = parts_of("runtime.loop='asynchronous'", arm="pvf", steps=steps)
    runtime = LocalRuntime(parts)

    def on_step(step: Step) -> None:
        spans = [s for s in runtime.timeline.spans() if s.role == "policy trainer"]
        together.extend(s.end_seconds - s.start_seconds for s in spans)

    Orchestrator(runtime, Ledger(), on_step=on_step).run()
    say(policy_step_seconds_alone=alone, beside_other_threads=statistics.median(together))
    say(ratio=statistics.median(together) / alone)


def whole_runs(steps: int) -> None:
    """Both loops as `lecritique train` runs them, everything recorded."""
    for loop in ("synchronous", "asynchronous"):
        parts = parts_of(f"runtime.loop='{loop}'", arm="pvf", steps=steps)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            train(parts, RunDirectory.create(Path(folder) / "run", parts.config))
            say(loop=loop, seconds=time.perf_counter() - started, steps=steps)


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stragglers", "stragglers-embedded", "slow-critic", "lock", "whole-runs"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.2, help="latency of a common rollout")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    match arguments.what:
        case "stragglers":
            stragglers(arguments.steps, arguments.seconds)
        case "stragglers-embedded":
            stragglers_embedded(arguments.steps)
        case "slow-critic":
            slow_critic(arguments.steps, arguments.rounds)
        case "lock":
            lock(arguments.steps)
        case _:
            whole_runs(arguments.steps)


if __name__ == "__main__":
    main()
