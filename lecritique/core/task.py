"""What a policy is asked and what only a critic may see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Role = Literal["system", "user", "assistant"]


def _require_text(what: str, text: object) -> None:
    """Raise ValueError unless `text` is a str that UTF-8 can hold: a lone surrogate is no text to any tokenizer."""
    if not isinstance(text, str):
        raise ValueError(f"{what} must be text, got {text!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds a lone surrogate at position {error.start}, which is no text") from None


@dataclass(frozen=True, kw_only=True)
class Message:
    """One chat message."""

    role: Role
    content: str

    def __post_init__(self) -> None:
        if self.role not in ("system", "user", "assistant"):
            raise ValueError(f"message role {self.role!r} is none of system, user, assistant")
        _require_text("the content of a message", self.content)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the task knows and the policy may not see: the final answer and, where there is one, a worked solution."""

    answer: str
    solution: str | None = None

    def __post_init__(self) -> None:
        _require_text("a reference answer", self.answer)
        if self.solution is not None:
            _require_text("a reference solution", self.solution)
        if not self.answer.strip():
            raise ValueError("a reference answer must not be blank")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One row of an environment: a stable id, the opening messages and what only a critic may see.

    `rubric` says what a grader looks for, `env` what the environment knows before the first action (a solved grid,
    a hidden state); both are worded by the task.
    """

    task_id: str
    messages: tuple[Message, ...]
    reference: Reference | None = None
    rubric: str | None = None
    env: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_text("a task_id", self.task_id)
        for name in ("rubric", "env"):
            text = getattr(self, name)
            if text is not None:
                _require_text(f"task {self.task_id}: {name}", text)
                if not text.strip():
                    raise ValueError(f"task {self.task_id}: {name} must not be blank")
        if not self.messages or self.messages[-1].role != "user":
            raise ValueError(f"task {self.task_id}: the opening messages must end with a user message")
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What an environment says to a turn: further messages, or the episode's end with its reward."""

    messages: tuple[Message, ...] = ()
    reward: float | None = None

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.reward is not None

    def __post_init__(self) -> None:
        if self.reward is None and not self.messages:
            raise ValueError("a reply either ends the episode with a reward or says something")
