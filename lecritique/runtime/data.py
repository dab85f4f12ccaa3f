"""The rows that a run trains on, decided before it starts: split, prompt length, and room for the critic's context.

What is left out is left out for every arm of a recipe, so that arms differ in their method alone (VP D.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lecritique.config.resolve import teacher_content, uses_critic, uses_teacher
from lecritique.config.schema import Context, NoContext, ReferenceContext, RunConfig
from lecritique.config.teachers import TeacherContent
from lecritique.core.errors import DataError
from lecritique.core.task import Task
from lecritique.critic.context import ContextBuilder, context_text, needs_siblings
from lecritique.critic.teacher import teacher_messages
from lecritique.critic.views import supports
from lecritique.models.chat import ChatRenderer
from lecritique.tasks.prompts import CutPrompts, PromptLengths, cut_prompt
from lecritique.tasks.protocol import Environment, checked_task
from lecritique.tasks.splits import split_of


@dataclass(frozen=True, kw_only=True)
class DataCounts:
    """What became of the task's rows. A row is counted once, by the first rule that it falls under."""

    rows: int
    for_training: int
    for_evaluation: int = 0
    dropped_long_prompt: int = 0
    truncated_prompt: int = 0
    dropped_long_context: int = 0

    def record(self) -> dict[str, int]:
        """For the run's events."""
        return asdict(self)

    @property
    def note(self) -> str:
        """One line for a person; empty when every row is trained on as it is."""
        parts = [
            f"{count} {text}"
            for count, text in (
                (self.for_evaluation, "kept for evaluation"),
                (self.dropped_long_prompt, "left out, prompt too long"),
                (self.truncated_prompt, "with a prompt cut"),
                (self.dropped_long_context, "left out, too long with a critic's context or for a teacher"),
            )
            if count
        ]
        return f"rows: {self.for_training} of {self.rows} are trained on; {', '.join(parts)}" if parts else ""


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """An environment and those of its rows that are trained on."""

    environment: Environment
    rows: tuple[int, ...]
    counts: DataCounts


def data_set(environment: Environment, renderer: ChatRenderer, config: RunConfig, *, context_length: int) -> DataSet:
    """Go through all rows and decide which are trained on.

    Args:
        environment: the task as it is.
        renderer: of the policy.
        config: resolved.
        context_length: longest sequence of the critic, tokens.

    Raises:
        DataError: a row that cannot be used, a prompt over the limit where that is an error, or no row left.
    """
    chooser = _Chooser(renderer, config, context_length)
    rows, cut, counts = [], {}, dict.fromkeys(_FATES, 0)
    for row in range(len(environment)):
        task = checked_task(environment, row)
        fate, task = chooser.fate(row, task)
        counts[fate] += 1
        if fate == "truncated_prompt":
            cut[row] = task
        if fate in ("kept", "truncated_prompt"):
            rows.append(row)
    kept = counts.pop("kept") + counts["truncated_prompt"]
    found = DataCounts(rows=len(environment), for_training=kept, **counts)
    if not rows:
        raise DataError(f"no row of task {environment.name!r} is left to train on ({found.note}).")
    return DataSet(environment=CutPrompts(environment, cut) if cut else environment, rows=tuple(rows), counts=found)


_FATES = ("kept", "for_evaluation", "dropped_long_prompt", "truncated_prompt", "dropped_long_context")


class _Chooser:
    """What becomes of one row."""

    def __init__(self, renderer: ChatRenderer, config: RunConfig, context_length: int) -> None:
        self._renderer = renderer
        self._lengths = PromptLengths(renderer)
        self._data = config.data
        self._sampling = config.sampling
        self._context_length = context_length
        self._frames: dict[str, int] = {}
        own = [config.critic.context] if uses_critic(config) else []
        self._own = _checkable(own)
        self._shared = [c for c in _checkable(config.data.contexts or ()) if c not in self._own]
        own_teacher = [teacher_content(config)] if uses_teacher(config) else []
        self._own_teachers = _told(own_teacher)
        self._shared_teachers = [t for t in _told(config.data.teachers or ()) if t not in self._own_teachers]

    def fate(self, row: int, task: Task) -> tuple[str, Task]:
        """One of the fates, and the task as it is asked."""
        if split_of(task, evaluation_fraction=self._data.evaluation_fraction) == "evaluation":
            return "for_evaluation", task
        limit, fate = self._data.max_prompt_tokens, "kept"
        assert limit is not None
        if self._lengths.at_most(task.messages) > limit and self._lengths.tokens(task.messages) > limit:
            if self._data.on_long_prompt == "drop":
                return "dropped_long_prompt", task
            if self._data.on_long_prompt == "error":
                raise DataError(
                    f"row {row}: the prompt of task {task.task_id} has {self._lengths.tokens(task.messages)} tokens "
                    f"with its template, over 'data.max_prompt_tokens' = {limit}; see 'data.on_long_prompt'."
                )
            fate, task = "truncated_prompt", cut_prompt(task, self._renderer, limit=limit)
        contexts = [*self._own, *(context for context in self._shared if supports(task, context))]
        if not all(self._leaves_room(task, context) for context in contexts):
            return "dropped_long_context", task
        teachers = [*self._own_teachers, *(told for told in self._shared_teachers if supports(task, told))]
        if not all(self._teacher_has_room(task, told) for told in teachers):
            return "dropped_long_context", task
        return fate, task

    def _leaves_room(self, task: Task, context: Context) -> bool:
        """Whether the critic can read prompt, context and one whole turn."""
        text = context_text(task, context) or ""
        turn, total = self._sampling.max_turn_tokens, self._sampling.max_total_tokens or self._context_length
        if self._lengths.at_most(task.messages, text) + self._frame(task, context) + turn <= self._context_length:
            return True
        inserted = ContextBuilder(context, self._renderer, context_length=self._context_length)(task)
        prompt = self._lengths.tokens(task.messages)
        return prompt + len(inserted or ()) + min(turn, total - prompt) <= self._context_length

    def _teacher_has_room(self, task: Task, told: ReferenceContext) -> bool:
        """Whether a teacher can read its prompt and one whole turn; nothing of it is ever cut."""
        messages = teacher_messages(task, told)
        turn, total = self._sampling.max_turn_tokens, self._sampling.max_total_tokens or self._context_length
        if self._lengths.at_most(messages) + turn <= self._context_length:
            return True
        room = min(turn, total - self._lengths.tokens(task.messages))
        return self._lengths.tokens(messages) + room <= self._context_length

    def _frame(self, task: Task, context: Context) -> int:
        """Tokens that a context takes beside its text."""
        assert not isinstance(context, NoContext)
        if context.placement not in self._frames:
            prompt = self._renderer.render_prompt(task.messages)
            put = self._renderer.context_insertion(prompt, task.messages, "-", context.placement)
            self._frames[context.placement] = len(put) + 1
        return self._frames[context.placement]


def _told(contents: Sequence[TeacherContent]) -> list[ReferenceContext]:
    """What teachers read beside the policy's own tokens."""
    return [ReferenceContext(content=content) for content in contents if content != "none"]


def _checkable(contexts: Sequence[Context]) -> list[Context]:
    """Contexts that can be measured before there are rollouts."""
    return [c for c in contexts if not isinstance(c, NoContext) and not needs_siblings(c)]
