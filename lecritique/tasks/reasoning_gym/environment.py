"""Reasoning Gym data sets as an environment, alone or mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lecritique.core.errors import ConfigurationError, DataError, VerifierFailure
from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.options import nearest
from lecritique.tasks.protocol import Episode, SingleTurn, finite_reward
from lecritique.tasks.reasoning_gym.items import Item, as_frozen, drawn, frozen_items
from lecritique.tasks.reasoning_gym.library import data_set_names
from lecritique.tasks.reasoning_gym.options import ReasoningGymOptions, template_fields
from lecritique.tasks.reasoning_gym.scoring import Scorer
from lecritique.tasks.reasoning_gym.sets import VALIDATION_OPTIONS, refusal
from lecritique.tasks.tagged import CLOSING, OPENING, tagged_answer

_DEFAULT_ROWS = 1000


class ReasoningGymEnvironment:
    """Single-turn questions with the library's own scorers; no question occurs twice.

    Raises:
        ConfigurationError: a refused or unknown data set, options that do not fit, or too few different questions.
        SandboxUnavailable: a data set whose scorer evaluates answers, and no sandbox.
    """

    Options = ReasoningGymOptions
    name = "reasoning_gym"
    reward_range = (0.0, 1.0)

    def __init__(self, options: ReasoningGymOptions, *, freezing: bool = False) -> None:
        self.options = options = options.resolved(0)
        self._scorers: dict[tuple[str, str], Scorer] = {}
        if options.file is not None:
            self._items = frozen_items(options.file, options.rows)
            for name in sorted({item.dataset for item in self._items}):
                _require_usable(name, frozen=True)
        else:
            for name in options.weights:
                _require_usable(name, frozen=freezing)
            self._items = drawn(options, options.rows or _DEFAULT_ROWS, self._is_paid)
        self._prompts = [self._prompt(row, item) for row, item in enumerate(self._items)]
        self.time_limit_seconds = options.score_seconds

    @classmethod
    def validation_parts(cls) -> Mapping[str, Mapping[str, Any] | str]:
        """Options for `lecritique tasks validate --all`: each data set, or why it is not used."""
        return {
            name: refusal(name, frozen=False) or {"dataset": name, "rows": 200, **VALIDATION_OPTIONS.get(name, {})}
            for name in data_set_names()
        }

    @classmethod
    def frozen(cls, options: ReasoningGymOptions) -> Iterator[dict[str, Any]]:
        """The items for `lecritique tasks freeze`; also of data sets that must be frozen before use.

        Raises:
            DataError: an item that JSON changes so much that its own answer is not paid any more.
        """
        environment = cls(options, freezing=True)
        for row, item in enumerate(environment._items):
            values, brought_back = as_frozen(item, row)
            if not environment._is_paid(brought_back):
                raise DataError(f"row {row} (data set {item.dataset!r}) cannot be frozen: JSON changes its metadata")
            yield values

    def __len__(self) -> int:
        return len(self._items)

    def task(self, row: int) -> Task:
        """The question of one row; the metadata are the library's, with `dataset` added."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of task 'reasoning_gym' does not exist, expected 0 to {len(self) - 1}")
        item = self._items[row]
        digest = hashlib.blake2b(item.entry["question"].encode(), digest_size=8).hexdigest()
        return Task(
            task_id=f"reasoning_gym:{item.dataset}:{digest}",
            messages=(Message(role="user", content=self._prompts[row]),),
            reference=Reference(answer=item.entry["answer"]),
            metadata={**item.entry["metadata"], "dataset": item.dataset, "row": row},
        )

    def start(self, task: Task) -> Episode:
        """Open an episode of one turn."""
        item = self._items[task.metadata["row"]]
        return SingleTurn(lambda text: self._reward(item, text))

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """The reference answer, between tags where those are asked for."""
        answer: str = self._items[task.metadata["row"]].entry["answer"]
        return f"{OPENING}{answer}{CLOSING}" if self.options.answer == "tags" else answer

    def holds_answer(self, task: Task, text: str) -> bool:
        """Whether `text` has something where the answer is looked for, right or wrong."""
        answer = tagged_answer(text) if self.options.answer == "tags" else text
        return bool(answer and answer.strip())

    def _reward(self, item: Item, text: str) -> float:
        answer = tagged_answer(text) if self.options.answer == "tags" else text
        return 0.0 if answer is None else self._score(item, answer.strip())

    def _is_paid(self, item: Item) -> bool:
        return self._score(item, item.entry["answer"].strip()) == 1.0

    def _score(self, item: Item, answer: str) -> float:
        score = finite_reward(self._scorer(item).score(answer, item.entry))
        if self.options.reward == "binary":
            # Scores that are computed as ratios miss 1 by rounding.
            return float(score >= self.options.threshold - 1e-9)
        if not -1e-9 <= score <= 1 + 1e-9:
            raise VerifierFailure(f"the scorer of {item.dataset} returned {score}, expected a score from 0 to 1")
        return min(max(score, 0.0), 1.0)

    def _scorer(self, item: Item) -> Scorer:
        key = (item.dataset, repr(item.generator_options))
        if key not in self._scorers:
            self._scorers[key] = Scorer(
                item.dataset, item.generator_options, seconds=self.options.score_seconds
            )  # fmt: skip
        return self._scorers[key]

    def _prompt(self, row: int, item: Item) -> str:
        fields = {**item.entry["metadata"], "question": item.entry["question"]}
        for name in template_fields(self.options.template):
            if name not in fields:
                raise ConfigurationError(
                    f"task.prompt_template asks for {{{name}}}, which row {row} of data set {item.dataset!r} lacks, "
                    f"expected fields out of {', '.join(sorted(fields))}{nearest(name, fields)}"
                )
        prompt = self.options.template.format(**fields)
        if not prompt.strip():
            raise ConfigurationError(f"task.prompt_template gives a blank prompt for row {row}, expected some text")
        return prompt


def _require_usable(name: str, *, frozen: bool) -> None:
    if reason := refusal(name, frozen=frozen):
        raise ConfigurationError(f"data set {name!r} of reasoning_gym is refused: {reason}")
