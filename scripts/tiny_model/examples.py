"""Training examples: gold dialogues, and the model's own dialogues read beside the reference.

Letters: B rows, L tokens of the longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from lecritique.config.schema import ReferenceContext
from lecritique.core.ids import GroupId
from lecritique.core.rollout import GroupRequest, Rollout, Sampling
from lecritique.core.seeds import derive_seed
from lecritique.core.task import Message, Task
from lecritique.critic.teacher import teacher_prompt
from lecritique.critic.templates import placed_text, reference_text
from lecritique.models.chat import ChatRenderer
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.collect import collect
from lecritique.rollout.engine import EmbeddedEngine
from lecritique.tasks.protocol import Environment

from .mix import CHECKING_PHASE, TRAIN_SEED, AnyReading, Source, Teaching
from .shape import CONTEXT_LENGTH, END_ID

NO_TARGET = -100


@dataclass(frozen=True, kw_only=True)
class Example:
    """Token ids, and what is to be predicted in the place of each (NO_TARGET: nothing)."""

    token_ids: list[int]
    targets: list[int]


def opening_ids(renderer: ChatRenderer, task: Task, reading: AnyReading | None) -> list[int]:
    """The prompt, with the reference where a critic or a teacher would see it (reading None: without)."""
    if isinstance(reading, Teaching):
        return teacher_prompt(task, ReferenceContext(content=reading.content), renderer).tolist()
    prompt = renderer.render_prompt(task.messages)
    if reading is None:
        return prompt.tolist()
    assert task.reference is not None
    text = placed_text(reference_text(task.reference, reading.content), reading.placement)
    context = renderer.context_insertion(prompt, task.messages, text, reading.placement)
    at = context.position
    return [*prompt[:at].tolist(), *context.token_ids.tolist(), *prompt[at:].tolist()]


def gold_example(renderer: ChatRenderer, environment: Environment, task: Task, reading: AnyReading | None) -> Example:
    """The dialogue of a perfect policy."""
    episode = environment.start(task)
    messages = list(task.messages)
    ids = opening_ids(renderer, task, reading)
    targets = [NO_TARGET] * len(ids)
    while True:
        answer = environment.gold(task, messages)
        turn = [*renderer.encode_text(answer), END_ID]
        ids, targets = ids + turn, targets + turn
        reply = episode.reply(answer)
        if reply.done:
            return Example(token_ids=ids, targets=targets)
        messages += [Message(role="assistant", content=answer), *reply.messages]
        longer = renderer.extend(ids, reply.messages).tolist()
        targets += [NO_TARGET] * (len(longer) - len(ids))
        ids = longer


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Rows padded on the right to [B, L]; causal attention never looks there."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


class ExampleStream:
    """Gold dialogues of one source, with and without the reference, in an order fixed by the seed."""

    def __init__(self, source: Source, renderer: ChatRenderer, phase: int) -> None:
        self._environment = source.environment(measured=False, rows=source.rows)
        self._readings = source.readings
        self._per_step = source.per_step[phase]
        self.label = source.label
        self._renderer = renderer
        self._random = np.random.default_rng(derive_seed(TRAIN_SEED, f"tiny.stream.{source.label}", attempt=phase))
        self._rows: list[int] = []

    def take_step(self) -> list[Example]:
        """The examples of the next step, going round the readings of the source."""
        return [self._next(self._readings[i % len(self._readings)]) for i in range(self._per_step)]

    def _next(self, reading: AnyReading | None) -> Example:
        if not self._rows:
            self._rows = self._random.permutation(len(self._environment)).tolist()
        task = self._environment.task(self._rows.pop())
        return gold_example(self._renderer, self._environment, task, reading)


def checked_example(
    renderer: ChatRenderer, environment: Environment, rollout: Rollout, reading: AnyReading, mark: int | None
) -> Example:
    """A sampled dialogue read beside the reference: the gold token up to the first departure, then `mark`.

    So a reader of the reference has to notice the first token that departs from it, and to remember that. Without a
    mark the gold tokens go on: a teacher says what it would say, whatever the student wrote before.
    """
    ids: list[int] = []
    targets: list[int] = []
    messages: list[Message] = []
    departed = False
    for turn in rollout.turns:
        messages += turn.messages
        gold = [*renderer.encode_text(environment.gold(rollout.task, messages)), END_ID]
        sampled = turn.completion.token_ids.tolist()
        ids += [*turn.given_ids.tolist(), *sampled]
        targets += [NO_TARGET] * len(turn.given_ids)
        for place, token in enumerate(sampled):
            right = gold[place] if place < len(gold) else None
            targets.append(_target(right, departed, mark))
            departed = departed or token != right
        messages.append(Message(role="assistant", content=turn.text))
    opening = opening_ids(renderer, rollout.task, reading)
    plain = len(renderer.render_prompt(rollout.task.messages))
    return Example(token_ids=opening + ids[plain:], targets=[NO_TARGET] * len(opening) + targets[plain:])


def _target(right: int | None, departed: bool, mark: int | None) -> int:
    if mark is not None and (departed or right is None):
        return mark
    return NO_TARGET if right is None else right


class CheckedStream:
    """Dialogues that the model itself samples, refreshed as it changes, each with the reference in its context.

    With a mark they are read as a critic reads them, without one as a teacher does.
    """

    # Dialogues sampled at once, and steps until the next ones.
    _POOL, _REFRESH = 512, 40

    def __init__(
        self, source: Source, renderer: ChatRenderer, model: Qwen3ForCausalLM, phase: int, *, mark: int | None
    ) -> None:
        taught = mark is None
        self.label = f"{source.label} {'taught' if taught else 'checked'}"
        self._per_step = (source.taught_per_step if taught else source.checked_per_step)[phase]
        self._readings: Sequence[AnyReading] = (
            source.teachings if taught else [reading for reading in source.readings if reading is not None]
        )
        self._mark = mark
        self._source, self._renderer, self._model = source, renderer, model
        self._environment = source.environment(measured=False, rows=source.rows)
        name = f"tiny.{'taught' if taught else 'checked'}.{source.label}"
        self._random = np.random.default_rng(derive_seed(TRAIN_SEED, name, attempt=phase - CHECKING_PHASE))
        self._pool: list[Rollout] = []
        self._steps = 0

    def take_step(self) -> list[Example]:
        """The checked examples of the next training step."""
        if self._steps % self._REFRESH == 0:
            self._pool = self._sampled()
        self._steps += 1
        chosen = self._random.choice(len(self._pool), size=self._per_step, replace=False)
        return [
            checked_example(
                self._renderer,
                self._environment,
                self._pool[index],
                self._readings[place % len(self._readings)],
                self._mark,
            )
            for place, index in enumerate(chosen)
        ]

    def _sampled(self) -> list[Rollout]:
        store = MemoryWeightStore()
        engine = EmbeddedEngine(self._model, store, max_rows=128, chunk_tokens=32, prefill_tokens=16384)
        rows = self._random.choice(len(self._environment), size=self._POOL, replace=False).tolist()
        requests = [
            GroupRequest(
                group_id=GroupId(row, self._steps),
                task=self._environment.task(row),
                group_size=1,
                sampling=Sampling(),
                max_turn_tokens=self._source.max_turn_tokens,
                max_total_tokens=CONTEXT_LENGTH,
                seed=TRAIN_SEED,
            )
            for row in rows
        ]
        groups = collect(requests, environment=self._environment, renderer=self._renderer, engine=engine)
        engine.close()
        return [rollout for group in groups for rollout in group if rollout.turns]


Stream = ExampleStream | CheckedStream
