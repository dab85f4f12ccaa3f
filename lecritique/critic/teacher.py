"""The prompt that a teacher reads in place of the policy's (VP section 3); the response behind it stays as sampled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lecritique.config.schema import Context, NoContext, ReferenceContext
from lecritique.config.teachers import TeacherContent
from lecritique.core.errors import ConfigurationError
from lecritique.core.task import Message, Task
from lecritique.critic.context import context_text
from lecritique.critic.templates import teacher_message
from lecritique.models.chat import ChatRenderer


class TeacherPrompts:
    """Renders what a teacher reads in place of the policy's prompt.

    Args:
        content: what of the reference it is told.
        renderer: of the policy.
    """

    def __init__(self, content: TeacherContent, renderer: ChatRenderer) -> None:
        self._content = content
        self._renderer = renderer

    def __call__(self, task: Task) -> NDArray[np.int64] | None:
        """Ids of the prompt; None where the teacher reads the policy's own tokens.

        Raises:
            DataError: the task lacks what is to be told.
        """
        if self._content == "none":
            return None
        return teacher_prompt(task, ReferenceContext(content=self._content), self._renderer)


def teacher_prompt(task: Task, context: Context, renderer: ChatRenderer) -> NDArray[np.int64]:
    """Ids up to and including the generation prompt; never cut, whatever the policy's prompt limit.

    Without a context these are the policy's own prompt ids. With one: one user message, no system message.

    Raises:
        ConfigurationError: a context that a teacher cannot be told.
        DataError: the task lacks what is to be told.
    """
    return renderer.render_prompt(teacher_messages(task, context))


def teacher_messages(task: Task, context: Context) -> tuple[Message, ...]:
    """What the teacher is asked."""
    if isinstance(context, NoContext):
        return task.messages
    if not isinstance(context, ReferenceContext):
        raise ConfigurationError(f"a teacher can be told the context 'none' or 'reference', got '{context.type}'.")
    context_text(task, context, key="policy.teacher.content")  # raises where the task lacks something, by its name
    assert task.reference is not None
    problem = "\n\n".join(message.content for message in task.messages if message.role != "system")
    return (Message(role="user", content=teacher_message(problem, task.reference, context.content)),)
