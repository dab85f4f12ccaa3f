"""Questions that look alike and differ in difficulty: what siblings earned is all there is to know.

lecritique compare benchmarks/siblings.toml --arms value,siblings --seeds 0 --out runs/siblings
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pydantic import Field

from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.options import TaskOptions
from lecritique.tasks.protocol import SingleTurn

# A puzzle that the bundled model answers in many ways at temperature 2, so that responses of a group differ.
PROMPT = "1..4..2.4...2..1"


class HiddenDifficultyOptions(TaskOptions):
    """Two kinds of rows, easy and hard, with one prompt."""

    rows: int = Field(default=5000, ge=1)
    """Number of rows."""
    easy: float = Field(default=0.95, ge=0, le=1)
    """Share of responses that are right in an easy row."""
    hard: float = Field(default=0.05, ge=0, le=1)
    """Share of responses that are right in a hard row."""


class HiddenDifficulty:
    """Whether a response is right is fixed by row and text; how often it is depends on the row alone."""

    Options = HiddenDifficultyOptions
    name = "hidden_difficulty"
    reward_range = (0.0, 1.0)

    def __init__(self, options: HiddenDifficultyOptions) -> None:
        self.options = options

    def __len__(self) -> int:
        return self.options.rows

    def task(self, row: int) -> Task:
        """The one prompt; the row is hidden."""
        return Task(
            task_id=f"hidden_difficulty-{row}",
            messages=(Message(role="user", content=PROMPT),),
            reference=Reference(answer="gold"),
            metadata={"row": row},
        )

    def start(self, task: Task) -> SingleTurn:
        """One turn."""
        row = task.metadata["row"]
        share = self.options.easy if _uniform("row", row) < 0.5 else self.options.hard
        return SingleTurn(lambda text: float(text == "gold" or _uniform(text, row) < share))

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """A text that is right in every row."""
        return "gold"


def _uniform(text: str, row: int) -> float:
    """A number in [0, 1) fixed by text and row."""
    digest = hashlib.blake2b(f"{row}:{text}".encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
