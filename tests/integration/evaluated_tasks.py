"""Environments that an evaluation meets: one that fails in every way, and one whose problems are few."""

from __future__ import annotations

from collections.abc import Sequence

from lecritique.core.errors import VerifierFailure
from lecritique.core.task import Message, Reply, Task
from lecritique.tasks.options import TaskOptions
from lecritique.tasks.protocol import Episode


class _Fixed:
    """An episode that ends as its row says, whatever the text."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def reply(self, text: str) -> Reply:
        if self._kind == 1:
            raise VerifierFailure("the verifier died")
        if self._kind == 2:
            raise ZeroDivisionError
        return Reply(reward=float(self._kind == 3))


class Failing:
    """Rows 0 to 3: wrong, a crashed verifier, a crashed environment, right."""

    class Options(TaskOptions):
        rows: int = 4

    name = "failing"
    reward_range = (0.0, 1.0)

    def __init__(self, options: Options) -> None:
        self._rows = options.rows

    def __len__(self) -> int:
        return self._rows

    def task(self, row: int) -> Task:
        return Task(task_id=f"f{row}", messages=(Message(role="user", content=f"{row}"),), metadata={"kind": row % 4})

    def start(self, task: Task) -> Episode:
        return _Fixed(task.metadata["kind"])

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        return ""

    def holds_answer(self, task: Task, text: str) -> bool:
        if task.metadata["kind"] == 3:
            raise RuntimeError("hostile")
        return False
