"""How long the planner says that a step takes on this machine's CPU, beside what `lecritique train` takes.

    PYTHONPATH=. python benchmarks/planner.py

The constants come from micro-benchmarks (`lecritique/runtime/measuring.py`) on models of other sizes than those that
are trained here; nothing is fitted to the runs. Counts are no prediction: each plan is given how long the prompts and
the rollouts of its run were, and how many updates the critic of an asynchronous run made a step, which no step waits
for. One thread; CPU seconds are what is compared, because a busy machine changes them less than the wall's. Exit code 1
when a ratio is off by more than 30%. The simulation of asynchronous runs has `planner_asynchronous.py`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from lecritique.config.cluster import Cluster
from lecritique.config.load import compose, load_recipe
from lecritique.config.schema import RunConfig
from lecritique.models.loading import BUNDLED
from lecritique.planning.cpu import CpuConstants, CpuPlanner
from lecritique.planning.shapes import shape_of
from lecritique.runs.directory import RunDirectory
from lecritique.runs.saved_trajectories import saved_trajectories
from lecritique.runtime.build import Parts, build, load_base
from lecritique.runtime.measuring import measured_constants
from lecritique.runtime.training import train

LIMIT = 0.3
STEPS, SKIPPED = 7, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: a model's sizes, an arm of the demo recipe, and what is changed of it."""

    model: str
    arm: str
    overrides: tuple[str, ...]


# Width, layers, heads, key-value heads, head width, feed-forward width. The first is the bundled model.
MODELS = {
    "tiny 0.36M": None,
    "random 0.8M": (128, 4, 4, 2, 32, 384),
    "random 5M": (256, 6, 8, 4, 32, 896),
}
_TERSE = ("task.style=terse",)
_LARGE = (*_TERSE, "task.size=9", "task.min_empty=30", "task.max_empty=50", "task.rows=100")
CASES = (
    Case(
        model="tiny 0.36M",
        arm="pvf",
        overrides=(*_TERSE, "rollout.batch_size=128", "rollout.group_size=4", "sampling.max_turn_tokens=20"),
    ),
    Case(
        model="tiny 0.36M",
        arm="mean",
        overrides=(*_TERSE, "rollout.batch_size=64", "rollout.group_size=8", "sampling.max_turn_tokens=20"),
    ),
    Case(
        model="random 0.8M",
        arm="mean",
        overrides=(*_TERSE, "rollout.batch_size=32", "rollout.group_size=4", "sampling.max_turn_tokens=64"),
    ),
    Case(
        model="random 0.8M",
        arm="pvf",
        overrides=(
            *_LARGE, "rollout.batch_size=48", "rollout.group_size=4", "sampling.max_turn_tokens=24",
            "runtime.loop=asynchronous",
        ),
    ),
    Case(
        model="random 5M",
        arm="value",
        overrides=(*_TERSE, "rollout.batch_size=32", "rollout.group_size=4", "sampling.max_turn_tokens=48"),
    ),
    Case(
        model="random 5M",
        arm="mean",
        overrides=(
            *_LARGE, "rollout.batch_size=24", "rollout.group_size=4", "sampling.max_turn_tokens=32",
            "runtime.loop=asynchronous",
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Means over steps in seconds and critic updates, and the tokens of the rollouts of the first step."""

    config: RunConfig
    cpu_seconds: float
    wall_seconds: float
    prompt_tokens: float
    context_tokens: float
    lengths: tuple[float, ...]
    updates: float


def measured(case: Case, folder: Path) -> Measured:
    """Train as the command does, and take the time between steps."""
    words = [
        f"run.steps={STEPS}", f"run.save_rollouts_every={STEPS}", "run.saved_rollouts=128",
        f"model.name={json.dumps(model_folder(case.model, folder))}", *case.overrides,
    ]  # fmt: skip
    base = load_base(compose(load_recipe("demo"), arm=case.arm, overrides=words))
    parts, marks = build(base), []

    def mark(step: int, metrics: Mapping[str, float]) -> None:
        marks.append((time.process_time(), time.perf_counter(), metrics.get("value_updates", 0.0)))

    place = folder / f"run-{CASES.index(case)}"
    with closing(RunDirectory.create(place, base.config)) as directory:
        train(parts, directory, on_step=mark)
    cpu, wall, updates = (
        (last - first) / (STEPS - SKIPPED) for first, last in zip(marks[SKIPPED - 1], marks[-1], strict=True)
    )
    # In order of step; those of the last one are saved too.
    saved = islice(saved_trajectories(place), parts.config.rollout.batch_size)
    played = [trajectory for _, trajectory in saved]
    lengths = tuple(float(trajectory.action_mask.sum()) for trajectory in played)
    return Measured(
        config=parts.config,
        cpu_seconds=cpu,
        wall_seconds=wall,
        prompt_tokens=statistics.mean(int(trajectory.action_mask.argmax()) for trajectory in played),
        context_tokens=context_tokens(parts),
        lengths=lengths,
        updates=updates,
    )


def context_tokens(parts: Parts) -> float:
    """Mean tokens of the critic's context: how many more its trainer has read of a rollout than the policy's."""
    values, size = parts.learner.values, parts.config.rollout.batch_size
    if values is None or not values.trainer.updates:
        return 0.0
    updated = values.trainer.updates * (parts.config.critic.replay.batch_size or size)
    trained = parts.learner.policy.steps * size
    return values.trainer.trained.tokens / updated - parts.learner.policy.trained.tokens / trained


def model_folder(name: str, folder: Path) -> str:
    """Where the model is: `tiny`, or a folder with random weights and the bundled model's tokenizer."""
    sizes = MODELS[name]
    if sizes is None:
        return "tiny"
    target = folder / name.replace(" ", "-")
    if target.exists():
        return str(target)
    from transformers import Qwen3Config, Qwen3ForCausalLM

    bundled = Path(BUNDLED["tiny"])
    shutil.copytree(bundled, target, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    width, layers, heads, kv_heads, head_width, intermediate = sizes
    config = json.loads((bundled / "config.json").read_text(encoding="utf-8"))
    config |= {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": head_width,
        "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "layer_types": ["full_attention"] * layers,
        "dtype": "float32",
    }  # fmt: skip
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**config)).save_pretrained(target)
    return str(target)


def planned(found: Measured, constants: CpuConstants) -> dict[str, float]:
    """CPU seconds of a step by phase, from the run's configuration, numbers of tokens and the constants alone."""
    cluster = Cluster(
        prompt_tokens=max(1, round(found.prompt_tokens)), context_tokens=max(0, round(found.context_tokens))
    )
    critic = found.config.critic.model_copy(update={"updates_per_policy_step": found.updates})
    planner = CpuPlanner(
        config=found.config.model_copy(update={"critic": critic}),
        shape=shape_of(found.config.model.name),
        cluster=cluster,
        constants=constants,
        lengths=found.lengths,
    )
    return planner.seconds()


def main() -> int:
    """Print the constants, a line for each run, and the largest error."""
    torch.set_num_threads(1)
    constants = measured_constants()
    print(constants)
    headings = ("K", "batch", "prompt", "response", "planned s", "CPU s", "ratio", "wall s")
    print(f"{'run':36}" + "".join(f"{heading:>10}" for heading in headings))
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            found = measured(case, Path(folder))
            plan = planned(found, constants)
            rollout, seconds = found.config.rollout, sum(plan.values())
            ratios.append(seconds / found.cpu_seconds)
            cells = (
                str(rollout.group_size), str(rollout.batch_size), f"{found.prompt_tokens + found.context_tokens:.0f}",
                f"{statistics.mean(found.lengths):.1f}", f"{seconds:.3f}", f"{found.cpu_seconds:.3f}",
                f"{ratios[-1]:.2f}", f"{found.wall_seconds:.3f}",
            )  # fmt: skip
            print(
                f"{case.model}, {case.arm}, {found.config.runtime.loop:12}" + "".join(f"{cell:>10}" for cell in cells)
            )
            print("    " + ", ".join(f"{phase} {taken:.3f}" for phase, taken in plan.items()), flush=True)
    off = max(abs(ratio - 1) for ratio in ratios)
    print(f"largest error {off:.0%} over {len(ratios)} runs, {'within' if off <= LIMIT else 'NOT WITHIN'} {LIMIT:.0%}")
    return int(off > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
