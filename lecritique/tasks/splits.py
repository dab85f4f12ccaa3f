"""Training and evaluation rows, told apart by what they ask: the same on every machine, whatever the order of rows."""

from __future__ import annotations

import hashlib
from typing import Literal

from lecritique.core.task import Task
from lecritique.tasks.protocol import Environment, checked_task

Split = Literal["train", "evaluation"]


def content_hash(task: Task) -> int:
    """64 bits of what the policy is asked; runs of white space count as one space.

    Two rows with the same opening messages have the same hash, whatever their ids, references and metadata.
    """
    digest = hashlib.blake2b(digest_size=8)
    for message in task.messages:
        # Lengths in front: no text can pose as the border between two messages.
        content = " ".join(message.content.split()).encode()
        digest.update(f"{message.role}:{len(content)}:".encode() + content)
    return int.from_bytes(digest.digest(), "big")


def split_of(task: Task, *, evaluation_fraction: float) -> Split:
    """Which split a task is in. Tasks that ask the same are always in the same split.

    Args:
        task: read for its opening messages alone.
        evaluation_fraction: expected share of evaluation rows, in [0, 1]; a larger one keeps those of a smaller one.
    """
    if not 0 <= evaluation_fraction <= 1:
        raise ValueError(f"evaluation_fraction must be in [0, 1], got {evaluation_fraction}")
    return "evaluation" if content_hash(task) < evaluation_fraction * 2.0**64 else "train"


def split_rows(environment: Environment, split: Split, *, evaluation_fraction: float) -> tuple[int, ...]:
    """The rows of one split, in order. The two splits share no row and no question, and together they are all rows."""
    return tuple(
        row
        for row in range(len(environment))
        if split_of(checked_task(environment, row), evaluation_fraction=evaluation_fraction) == split
    )
