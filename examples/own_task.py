"""A task of one's own in one file: sort words. Explained in docs/own-task.md.

lecritique tasks show examples.own_task:SortWords --context
lecritique tasks validate examples.own_task:SortWords words=5
lecritique train demo task.type=examples.own_task:SortWords --arm pvf
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from lecritique.core.seeds import derive_seed
from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.functions import named_function
from lecritique.tasks.options import TaskOptions
from lecritique.tasks.protocol import SingleTurn

WORDS = "ant bee cat dog eel fox gnu hen ibis jay kiwi lynx mole newt owl pig quail rat seal toad vole wasp yak"


class SortOptions(TaskOptions):
    """Sort words into alphabetical order; the seed of the data is an option of every task."""

    rows: int = Field(default=1000, ge=1)
    """Number of questions."""
    words: int = Field(default=4, ge=2, le=10)
    """Words of a question, all different."""
    verifier: str = "examples.own_task:exact_match"
    """What scores a response: `module:function`, called as `function(text, task)`, returns a number from 0 to 1."""


def exact_match(text: str, task: Task) -> float:
    """1 for the sorted words, else 0. `text` is hostile: anything a model can emit."""
    assert task.reference is not None
    return float(text.split() == task.reference.answer.split())


class SortWords:
    """The environment: which questions there are, what a policy is asked, and how a response is scored."""

    Options = SortOptions
    name = "sort_words"
    reward_range = (0.0, 1.0)

    def __init__(self, options: SortOptions) -> None:
        self.options = options
        self._score = named_function(options.verifier, key="task.verifier")

    def __len__(self) -> int:
        return self.options.rows

    def task(self, row: int) -> Task:
        """A pure function of options and row: the same on every machine and in every process."""
        rng = np.random.default_rng(derive_seed(self.options.seed or 0, "sort_words", row=row))
        words = [str(word) for word in rng.choice(WORDS.split(), size=self.options.words, replace=False)]
        answer = " ".join(sorted(words))
        return Task(
            task_id=f"sort_words-{row}",
            messages=(Message(role="user", content=f"Sort: {' '.join(words)}"),),
            reference=Reference(answer=answer, solution=worked_solution(words)),
            rubric="Every word of the question once, in alphabetical order, with spaces between and nothing else.",
            env=f"The words in order: {answer}",
        )

    def start(self, task: Task) -> SingleTurn:
        """One turn, scored by the verifier."""
        return SingleTurn(lambda text: self._score(text, task))

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """What a perfect policy answers."""
        assert task.reference is not None
        return task.reference.answer


def worked_solution(words: Sequence[str]) -> str:
    """Take the first word in alphabetical order, again and again."""
    left, lines = list(words), []
    while left:
        first = min(left)
        left.remove(first)
        lines.append(f"{first} comes first" + (f", left are {' '.join(left)}" if left else ""))
    return "; ".join(lines) + "."
