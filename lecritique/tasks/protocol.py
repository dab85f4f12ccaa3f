"""The protocol that an environment implements. No asyncio: a driver pumps it, one reply at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Protocol

from lecritique.core.errors import DataError, LecritiqueError, RolloutError, VerifierFailure
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


def checked_task(environment: Environment, row: int) -> Task:
    """`environment.task(row)`, where a row that cannot be a task (a blank reference answer) is named.

    Raises:
        DataError: the row cannot be made into a task.
    """
    try:
        task: object = environment.task(row)
    except LecritiqueError:
        raise
    except Exception as error:  # user code may raise anything
        raise DataError(
            f"row {row} of task {environment.name!r} cannot be used: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(task, Task):
        raise DataError(f"row {row} of task {environment.name!r} is a {type(task).__name__}, expected a Task")
    return task


class SingleTurn:
    """An episode of one turn: the score of the text is the reward.

    A score function that raises, or returns anything but a finite number, is a crashed verifier: the rollout
    gets no reward, which is not the same as the reward 0 of a wrong answer.
    """

    def __init__(self, score: Callable[[str], float]) -> None:
        self._score = score

    def reply(self, text: str) -> Reply:
        """Score the text and end.

        Raises:
            VerifierFailure: the score function raised, or its result is no finite number.
        """
        try:
            score = self._score(text)
        except RolloutError:
            raise
        except Exception as error:  # the rollout boundary: whatever a verifier raises is recorded, not spread
            raise VerifierFailure(f"the verifier raised {type(error).__name__}: {str(error)[:200]}") from error
        return Reply(reward=finite_reward(score))


def finite_reward(score: object) -> float:
    """`score` as a float.

    Raises:
        VerifierFailure: it is no number, or not finite.
    """
    if not isinstance(score, Real) or not math.isfinite(score):
        raise VerifierFailure(f"the verifier returned {str(score)[:100]!r}, expected a finite number")
    return float(score)
