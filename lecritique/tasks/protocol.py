"""The protocol that an environment implements. No asyncio: a driver pumps it, one reply at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from lecritique.core.task import Message, Reply, Task


class Episode(Protocol):
    """One running episode. Holds its own state; is used by one rollout only."""

    def reply(self, text: str) -> Reply:
        """Answer one turn of the policy. `text` is hostile: anything a model can emit."""
        ...


class Environment(Protocol):
    """A fixed, ordered set of tasks and how to play them.

    Rows are numbered from 0 to `len(environment) - 1`; the same options give the same rows on every
    machine and in every process.
    """

    name: str
    reward_range: tuple[float, float]

    def __len__(self) -> int: ...

    def task(self, row: int) -> Task:
        """The task of one row."""
        ...

    def start(self, task: Task) -> Episode:
        """Open an episode of `task`."""
        ...

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """What a perfect policy answers after `messages`; used by `lecritique tasks validate`."""
        ...


class SingleTurn:
    """An episode of one turn: the score of the text is the reward."""

    def __init__(self, score: Callable[[str], float]) -> None:
        self._score = score

    def reply(self, text: str) -> Reply:
        """Score the text and end."""
        return Reply(reward=self._score(text))
