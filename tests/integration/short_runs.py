"""Runs of two steps on the bundled model: what integration tests configure, build and train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from lecritique.config.load import compose, load_recipe
from lecritique.config.schema import RunConfig
from lecritique.runtime.build import Parts, build, load_base
from lecritique.runtime.synchronous import train_step

torch.set_num_threads(1)

# Puzzles that the model solves now and then, so that rewards differ inside groups; one critic update a step,
# used from the first batch on.
SMALL = (
    "run.steps=2",
    "task.rows=16",
    "task.min_empty=6",
    "task.max_empty=10",
    "rollout.batch_size=8",
    "critic.replay.refill_size=8",
    "critic.warmup_updates=0",
)
CLOCKS = {
    "tokens_per_second",
    "seconds_total",
    "seconds",
    "seconds_rollout",
    "seconds_values",
    "seconds_policy",
    "seconds_critic",
}


def small_config(*overrides: str, arm: str | None = None) -> RunConfig:
    """The demo recipe made small; later overrides win, and one that names another task brings all of its keys."""
    another = any(text.startswith("task=") for text in overrides)
    small = [text for text in SMALL if not (another and text.startswith("task."))]
    return compose(load_recipe("demo"), arm=arm, overrides=[*small, *overrides])


def small_parts(*overrides: str, arm: str | None = None) -> Parts:
    """Its roles."""
    return build(load_base(small_config(*overrides, arm=arm)))


def trained(parts: Parts, steps: int = 2) -> list[dict[str, float]]:
    """Metrics of the first steps, nothing written."""
    try:
        return [train_step(parts, step).metrics for step in range(steps)]
    finally:
        parts.engine.close()


def without_clocks(rows: Sequence[dict[str, float]]) -> list[dict[str, float | None]]:
    """Rows that can be compared between runs: no wall times, undefined values as None."""
    return [{k: None if math.isnan(v) else v for k, v in row.items() if k not in CLOCKS} for row in rows]


def recipe_file(folder: Path, text: str) -> Path:
    """A recipe of one's own."""
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path
