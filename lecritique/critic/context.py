"""What the critic sees and the policy does not (LC section 3, eq. 12).

Admissible (LC eq. 5): the context must be independent of token t given the tokens before it. The builder is given
the task and the other members of the group, so a rollout's own response, return or later feedback cannot reach it.
Nor can its length: what a context is cut to is a fixed number of tokens, never the room that a response leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from lecritique.config.schema import Context, EnvContext, NoContext, ReferenceContext, RubricContext, SiblingsContext
from lecritique.core.errors import DataError
from lecritique.core.task import Task
from lecritique.core.trajectory import ContextInsertion, Trajectory
from lecritique.critic.siblings import Sibling, siblings_text
from lecritique.critic.templates import placed_text, reference_text
from lecritique.models.chat import ChatRenderer
from lecritique.models.scoring import token_row


class ContextTooLong(DataError):
    """A context that appears only at run time, over the critic's limit."""


def needs_siblings(context: Context) -> bool:
    """Whether the context is made from the complete group: nothing can be scored before the last member has ended."""
    return isinstance(context, SiblingsContext)


class ContextBuilder:
    """Makes the ids that only the critic reads.

    Args:
        context: the configured context.
        renderer: puts it into the policy's own ids.
        context_length: longest sequence that the critic can read, tokens.
    """

    def __init__(self, context: Context, renderer: ChatRenderer, *, context_length: int) -> None:
        self.context = context
        self.renderer = renderer
        self.context_length = context_length

    @property
    def needs_siblings(self) -> bool:
        """Whether it is made from the complete group."""
        return needs_siblings(self.context)

    @property
    def overflow_is_an_error(self) -> bool:
        """Whether a context that is too long stops the run instead of leaving its group out."""
        return not isinstance(self.context, SiblingsContext) or self.context.on_overflow == "error"

    def require_room(self, trajectory: Trajectory, inserted: ContextInsertion | None) -> None:
        """Raise ContextTooLong when the critic cannot read all of a trajectory with its context."""
        needed = token_row(trajectory, inserted).read_tokens
        if needed > self.context_length:
            raise ContextTooLong(
                f"rollout {trajectory.rollout_id} has {needed} tokens with the critic's context, over the model's "
                f"limit of {self.context_length}; see 'critic.context.on_overflow'"
            )

    def __call__(self, task: Task, siblings: Sequence[Sibling] = ()) -> ContextInsertion | None:
        """The context of one rollout; None for a clean critic.

        Args:
            task: what is played.
            siblings: the other members of the group; read by `siblings` only.

        Raises:
            DataError: the task or the group has nothing of the kind that is asked for.
            ContextTooLong: over the token limit of its own, and not to be trimmed or too long even so.
        """
        text = context_text(task, self.context, siblings)
        if text is None:
            return None
        inserted = self._insertion(task, text)
        if not isinstance(self.context, SiblingsContext):
            return inserted
        limit = self.context.max_tokens or self.context_length
        if len(inserted) <= limit:
            return inserted
        if self.context.on_overflow == "trim_context":
            return self._trimmed(task, siblings, limit)
        raise ContextTooLong(
            f"the siblings of task {task.task_id} take {len(inserted)} tokens, the limit is {limit}; see "
            "'critic.context.on_overflow'"
        )

    def _insertion(self, task: Task, text: str, *, trimmed: bool = False) -> ContextInsertion:
        assert not isinstance(self.context, NoContext)
        placement = self.context.placement
        prompt = self.renderer.render_prompt(task.messages)
        put = self.renderer.context_insertion(prompt, task.messages, placed_text(text, placement), placement)
        return ContextInsertion(position=put.position, token_ids=put.token_ids, text=text, trimmed=trimmed)

    def _trimmed(self, task: Task, siblings: Sequence[Sibling], limit: int) -> ContextInsertion:
        """The siblings, each cut to the same number of characters, as many as fit into `limit` tokens."""
        fitting, least, most = None, 0, max(len(sibling.text) for sibling in siblings)
        while least <= most:
            middle = (least + most) // 2
            inserted = self._insertion(task, siblings_text(siblings, most_characters=middle), trimmed=True)
            if len(inserted) <= limit:
                fitting, least = inserted, middle + 1
            else:
                most = middle - 1
        if fitting is None:
            raise ContextTooLong(
                f"the returns alone of the siblings of task {task.task_id} take more than the limit of {limit} tokens"
            )
        return fitting


def context_text(
    task: Task, context: Context, siblings: Sequence[Sibling] = (), *, key: str = "critic.context"
) -> str | None:
    """The context in words, None for a clean critic; `key` is what a message blames.

    Raises:
        DataError: the task has nothing of the kind, or there is no sibling.
    """
    match context:
        case NoContext():
            return None
        case ReferenceContext():
            return _reference(task, context, key)
        case RubricContext() | EnvContext():
            text = task.rubric if isinstance(context, RubricContext) else task.env
            if text is None:
                raise DataError(
                    f"task {task.task_id} declares no {context.type!r} context, which 'critic.context.type' = "
                    f"'{context.type}' needs."
                )
            return text
        case SiblingsContext():
            return siblings_text(siblings)


def _reference(task: Task, context: ReferenceContext, key: str) -> str:
    type_key, content_key = (f"{key}.type", f"{key}.content") if key == "critic.context" else (key, key)
    if task.reference is None:
        wanted = "reference" if type_key != key else context.content
        raise DataError(f"task {task.task_id} has no reference, which '{type_key}' = '{wanted}' needs.")
    if context.content != "answer" and not (task.reference.solution or "").strip():
        raise DataError(
            f"task {task.task_id} has no worked solution, which '{content_key}' = '{context.content}' needs."
        )
    return reference_text(task.reference, context.content)
