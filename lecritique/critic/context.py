"""What the critic sees and the policy does not (LC section 3, eq. 12).

Admissible (LC eq. 5): the context must be independent of token t given the tokens before it. The
builder is given the task alone, so a rollout's own response or reward cannot reach it.
"""

from __future__ import annotations

from collections.abc import Callable

from lecritique.config.schema import Context, NoContext, ReferenceContext
from lecritique.core.errors import DataError
from lecritique.core.task import Task
from lecritique.core.trajectory import ContextInsertion
from lecritique.critic.templates import placed_text, reference_text
from lecritique.models.chat import ChatRenderer

ContextBuilder = Callable[[Task], ContextInsertion | None]


def context_builder(context: Context, renderer: ChatRenderer) -> ContextBuilder:
    """The builder of the configured context: from a task to the ids to insert, None for a clean critic."""
    match context:
        case NoContext():
            return lambda task: None
        case ReferenceContext():
            return lambda task: _reference(task, context, renderer)


def context_text(task: Task, context: Context) -> str | None:
    """The context in words, None for a clean critic.

    Raises:
        DataError: the task has no reference, or not the part that is asked for.
    """
    match context:
        case NoContext():
            return None
        case ReferenceContext():
            if task.reference is None:
                raise DataError(
                    f"task {task.task_id} has no reference, which 'critic.context.type' = 'reference' needs."
                )
            if context.content != "answer" and not (task.reference.solution or "").strip():
                raise DataError(
                    f"task {task.task_id} has no worked solution, which 'critic.context.content' = "
                    f"'{context.content}' needs."
                )
            return reference_text(task.reference, context.content)


def _reference(task: Task, context: ReferenceContext, renderer: ChatRenderer) -> ContextInsertion:
    text = context_text(task, context)
    assert text is not None
    prompt = renderer.render_prompt(task.messages)
    return renderer.context_insertion(prompt, task.messages, placed_text(text, context.placement), context.placement)
