"""Environments that break what only several processes can see; loaded by name in child processes."""

from __future__ import annotations

import os
import time

from pydantic import BaseModel

from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.protocol import SingleTurn


class Options(BaseModel):
    pass


class Sound:
    """Three rows that keep every promise."""

    Options = Options
    name = "sound"
    reward_range = (0.0, 1.0)

    def __init__(self, options):
        pass

    def __len__(self):
        return 3

    def answer(self, row):
        return f"answer {row}"

    def task(self, row):
        return Task(
            task_id=f"sound:{row}",
            messages=(Message(role="user", content=f"question {row}"),),
            reference=Reference(answer=self.answer(row)),
        )

    def start(self, task):
        return SingleTurn(lambda text: self.score(task, text))

    def score(self, task, text):
        return float(text == task.reference.answer)

    def gold(self, task, messages):
        return task.reference.answer


class HashDependent(Sound):
    """Another process has other answers."""

    def answer(self, row):
        return f"answer {hash('x') % 1000 + row}"


class Hanging(Sound):
    """A verifier without an end."""

    def score(self, task, text):
        while "while" in text:
            time.sleep(0.01)
        return super().score(task, text)


class Slow(Sound):
    """A verifier that takes longer than it says."""

    time_limit_seconds = 0.1

    def score(self, task, text):
        if "while" in text:
            time.sleep(1.3)
        return super().score(task, text)


class Dying(Sound):
    """A verifier that takes the process with it."""

    def score(self, task, text):
        if "abort" in text:
            os._exit(1)
        print("noise on standard output")
        return super().score(task, text)


class Unloadable(Sound):
    def __init__(self, options):
        raise FileNotFoundError("no data here")
