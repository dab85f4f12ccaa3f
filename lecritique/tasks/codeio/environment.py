"""CodeIO as an environment: single-turn, scored by comparison and, for inputs, by running the program."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.codeio.items import Item, drawn_items, frozen_items
from lecritique.tasks.codeio.options import CodeIOOptions
from lecritique.tasks.codeio.trials import require_sandbox, returns
from lecritique.tasks.json_values import JsonRefused, same_value
from lecritique.tasks.protocol import Episode, SingleTurn
from lecritique.tasks.tagged import CLOSING, OPENING, answered_json

_DEFAULT_ROWS = 200
# A predicted input may be longer than the recorded one, within reason.
_MOST_ANSWER_CHARACTERS = 20_000


class CodeIOEnvironment:
    """Predict outputs, and inputs of which any that yields the output counts.

    Reference answer: the recorded value. Reference solution: the run as a trace of values, and the call itself.

    Raises:
        SandboxUnavailable: something would have to be run (to make items, or to score an input), and there is no
            sandbox.
    """

    Options = CodeIOOptions
    name = "codeio"
    reward_range = (0.0, 1.0)

    def __init__(self, options: CodeIOOptions) -> None:
        self.options = options = options.resolved(0)
        if options.file is None:
            self._items = drawn_items(options, options.rows or _DEFAULT_ROWS)
        else:
            self._items = frozen_items(options.file, options)
        if any(item.direction == "input" for item in self._items):
            require_sandbox()
        self.time_limit_seconds = options.run_seconds

    @classmethod
    def frozen(cls, options: CodeIOOptions) -> Iterator[dict[str, Any]]:
        """The items for `lecritique tasks freeze`."""
        for item in cls(options)._items:
            yield item.as_json()

    def __len__(self) -> int:
        return len(self._items)

    def task(self, row: int) -> Task:
        """The question of one row."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of task 'codeio' does not exist, expected 0 to {len(self) - 1}")
        item = self._items[row]
        prompt = self.options.template(item.direction).format(
            description=item.description, specification=item.specification, code=item.code, given=item.given
        )
        digest = hashlib.blake2b(f"{item.code}\0{item.given}".encode(), digest_size=8).hexdigest()
        return Task(
            task_id=f"codeio:{item.direction}:{digest}",
            messages=(Message(role="user", content=prompt),),
            reference=Reference(answer=item.wanted, solution=_solution(item)),
            metadata={"direction": item.direction, "row": row},
        )

    def start(self, task: Task) -> Episode:
        """Open an episode of one turn."""
        item = self._items[task.metadata["row"]]
        return SingleTurn(lambda text: float(self._right(item, text)))

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """The recorded value, between tags."""
        return f"{OPENING}{self._items[task.metadata['row']].wanted}{CLOSING}"

    def holds_answer(self, task: Task, text: str) -> bool:
        """Whether `text` answers with a JSON value, right or wrong."""
        try:
            answered_json(text)
        except JsonRefused:
            return False
        return True

    def _right(self, item: Item, text: str) -> bool:
        try:
            answer = answered_json(text)
        except JsonRefused:
            return False
        if item.direction == "output":
            return same_value(answer, item.output, tolerance=self.options.tolerance)
        if not isinstance(answer, dict) or answer.keys() != item.inputs.keys():
            return False
        if same_value(answer, item.inputs):
            return True
        return returns(
            item.code,
            answer,
            item.output,
            seconds=self.options.run_seconds,
            tolerance=self.options.tolerance,
            most_characters=_MOST_ANSWER_CHARACTERS,
        )


def _solution(item: Item) -> str:
    call = ", ".join(f"{name}={value!r}" for name, value in item.inputs.items())
    ending = f"main_solution({call}) returns {item.output!r}"
    return f"{item.trace}\n{ending}" if item.trace else ending
