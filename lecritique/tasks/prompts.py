"""How long prompts are with their template, and what becomes of those that are too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lecritique.core.errors import DataError
from lecritique.core.task import Message, Task
from lecritique.models.chat import ChatRenderer
from lecritique.tasks.protocol import Environment, Episode

# No tokenizer makes more tokens than bytes of a text, but a normaliser may first write a text longer:
# compatibility forms (NFKC) by up to 11 times in UTF-8. ASCII stays as it is.
_LONGEST_NORMAL_FORM = 11


class PromptLengths:
    """Lengths of rendered prompts in tokens, template included."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._frames: dict[tuple[str, ...], int] = {}

    def tokens(self, messages: Sequence[Message]) -> int:
        """The exact length of the prompt."""
        return len(self._renderer.render_prompt(messages))

    def at_most(self, messages: Sequence[Message], *more_texts: str) -> int:
        """No fewer tokens than the prompt has with further texts in it; without encoding any of it."""
        roles = tuple(message.role for message in messages)
        if roles not in self._frames:
            self._frames[roles] = self.tokens([Message(role=message.role, content="-") for message in messages])
        texts = [*(message.content for message in messages), *more_texts]
        return self._frames[roles] + sum(_most_tokens(text) for text in texts)


def _most_tokens(text: str) -> int:
    # One more: some tokenizers put a mark in front.
    return 1 + len(text) if text.isascii() else 1 + _LONGEST_NORMAL_FORM * len(text.encode())


def cut_prompt(task: Task, renderer: ChatRenderer, *, limit: int) -> Task:
    """`task` with its last user message cut at the end, so that the prompt has at most `limit` tokens.

    Raises:
        DataError: the limit leaves nothing of that message.
    """
    last = max(index for index, message in enumerate(task.messages) if message.role == "user")
    content = task.messages[last].content

    def with_content(characters: int) -> tuple[Message, ...]:
        cut = Message(role="user", content=content[:characters])
        return (*task.messages[:last], cut, *task.messages[last + 1 :])

    def fits(characters: int) -> bool:
        return len(renderer.render_prompt(with_content(characters))) <= limit

    least, most = 0, len(content)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    if not content[:least].strip() or not fits(least):
        raise DataError(f"task {task.task_id}: a prompt of {limit} tokens would hold nothing of its last user message")
    return replace(task, messages=with_content(least), metadata=dict(task.metadata))


class CutPrompts:
    """An environment, some of whose rows ask less than they did."""

    def __init__(self, environment: Environment, cut: Mapping[int, Task]) -> None:
        self._environment = environment
        self._cut = dict(cut)
        self.name = environment.name
        self.reward_range = environment.reward_range

    def __len__(self) -> int:
        return len(self._environment)

    def task(self, row: int) -> Task:
        """The task of one row, its prompt cut where it was too long."""
        return self._cut[row] if row in self._cut else self._environment.task(row)

    def start(self, task: Task) -> Episode:
        """Open an episode."""
        return self._environment.start(task)

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """What a perfect policy answers."""
        return self._environment.gold(task, messages)
