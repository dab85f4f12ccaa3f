"""An arm of ours on the workload: `lecritique train` itself, without checkpoints and saved rollouts.

PYTHONPATH=. python benchmarks/peers/own.py MODEL_FOLDER ARM [KEY.PATH=VALUE ...]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import workload
from meter import Meter

from lecritique.config.load import Recipe, compose
from lecritique.config.schema import RunConfig
from lecritique.core.task import Message, Reference, Task
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.build import build, load_base
from lecritique.runtime.training import train
from lecritique.tasks.options import TaskOptions
from lecritique.tasks.protocol import SingleTurn


class LetterOptions(TaskOptions):
    """None of its own."""


class Letters:
    """The workload's prompts and reward as an environment."""

    Options = LetterOptions
    name = "letters"
    reward_range = (0.0, 1.0)

    def __init__(self, options: LetterOptions) -> None:
        self.options = options

    def __len__(self) -> int:
        return 2000

    def task(self, row: int) -> Task:
        """One prompt of 6 characters; a reference of one, for a critic that reads it."""
        message = Message(role="user", content=workload.prompt(row))
        return Task(task_id=f"letters-{row}", messages=(message,), reference=Reference(answer=message.content[0]))

    def start(self, task: Task) -> SingleTurn:
        """One turn."""
        return SingleTurn(workload.reward)

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """All letters."""
        return "a" * workload.NEW_TOKENS


def main() -> None:
    """Train until the driver has had enough."""
    folder, arm, overrides = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    torch.set_num_threads(1)
    meter = Meter(warmup_steps=5)

    def step_done(step: int, metrics: dict[str, float]) -> None:
        assert metrics["response_tokens"] == workload.NEW_TOKENS, "a response ended early"
        meter.step_done()

    base = load_base(configured(folder, arm, overrides))
    with tempfile.TemporaryDirectory() as out:
        train(build(base), RunDirectory.create(Path(out) / "run", base.config), on_step=step_done)


def configured(folder: Path, arm: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The arm at the workload's sizes; a critic is warm from the start and trained once a step."""
    tree = {
        "run": {"steps": 100_000, "save_rollouts_every": 0, "checkpoint_every": 0},
        "task": {"type": "own:Letters"},
        "model": {"name": str(folder)},
        "sampling": {"max_turn_tokens": workload.NEW_TOKENS},
        "rollout": {"batch_size": workload.ROWS, "group_size": workload.GROUP},
        "policy": {"optimizer": {"learning_rate": workload.LEARNING_RATE}},
        "critic": {
            "warmup_updates": 0,
            "optimizer": {"learning_rate": workload.LEARNING_RATE},
            "replay": {"max_uses": 1, "refill_size": workload.ROWS},
        },
        "runtime": {"loop": "synchronous", "device": "cpu"},
    }
    recipe = Recipe(name="workload", text="", tree=tree, arms={}, default_arm=None)
    return compose(recipe, arm=arm, overrides=list(overrides))


if __name__ == "__main__":
    main()
