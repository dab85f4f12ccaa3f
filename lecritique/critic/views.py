"""What policy, critic and teacher see of one task, as text with the template's own tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lecritique.config.schema import (
    Context,
    EnvContext,
    NoContext,
    ReferenceContext,
    RubricContext,
    SiblingsContext,
)
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.task import Task
from lecritique.critic.context import ContextBuilder, context_text, needs_siblings
from lecritique.critic.siblings import Sibling
from lecritique.critic.teacher import teacher_prompt
from lecritique.models.chat import ChatRenderer
from lecritique.numerics.alignment import insert_context

Placement = Literal["system_prefix", "user_suffix"]


@dataclass(frozen=True, kw_only=True)
class View:
    """The prompt as each of the three reads it."""

    policy: str
    critic: str
    teacher: str


def view(task: Task, context: Context, renderer: ChatRenderer, siblings: Sequence[Sibling] = ()) -> View:
    """The prompt of `task` in the eyes of policy, critic and teacher."""
    own = renderer.render_prompt(task.messages)
    put = ContextBuilder(context, renderer, context_length=len(own) + 10**9)(task, siblings)
    told = own if put is None else insert_context(own, put.position, put.token_ids)
    try:
        teacher = renderer.decode(teacher_prompt(task, context, renderer))
    except ConfigurationError as error:
        teacher = f"(no teacher: {error})"
    return View(policy=renderer.decode(own), critic=renderer.decode(told), teacher=teacher)


def supported_contexts(task: Task, placement: Placement) -> Iterator[tuple[str, Context]]:
    """Every context that can be made for a task, with its name: first none, last siblings."""
    yield "none", NoContext()
    hidden: list[tuple[str, Context]] = [
        (f"reference, content = {content}", ReferenceContext(content=content, placement=placement))
        for content in ("answer", "solution", "both")
    ]
    hidden += [("rubric", RubricContext(placement=placement)), ("env", EnvContext(placement=placement))]
    for name, context in hidden:
        if supports(task, context):
            yield name, context
    yield "siblings (two made-up ones)", SiblingsContext(placement=placement)


def supports(task: Task, context: Context) -> bool:
    """Whether the task has what the context is made from; any task has siblings."""
    if needs_siblings(context):
        return True
    try:
        context_text(task, context)
    except DataError:
        return False
    return True


def example_siblings(gold: str, reward_range: tuple[float, float]) -> tuple[Sibling, Sibling]:
    """A right and a wrong response, for display."""
    return (
        Sibling(text=gold, episode_return=reward_range[1]),
        Sibling(text="(a wrong response)", episode_return=reward_range[0]),
    )
