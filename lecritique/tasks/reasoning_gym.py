"""Reasoning Gym data sets as an environment, alone or mixed. The one module that imports `reasoning_gym`."""

from __future__ import annotations

import hashlib
import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lecritique.core.errors import ConfigurationError, DataError, VerifierFailure
from lecritique.core.seeds import derive_seed
from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.options import TaskOptions, nearest
from lecritique.tasks.protocol import Episode, SingleTurn, finite_reward

_RUNS_OUTPUT = "its scorer evaluates what the model wrote as code"
_PARSES_OUTPUT = "its scorer hands what the model wrote to sympy, which evaluates it and can hang (9**9**9)"
_NO_ANSWER = "its items have no reference answer"
_HASH_DEPENDENT = "its items depend on PYTHONHASHSEED, so that two processes see different rows"
_RAISES = "its scorer raises on malformed answers, which would be excluded from training instead of earning 0"
_PAYS_JUNK = "its scorer gives full marks to text that answers nothing"

# Measured on reasoning-gym 0.1.25.
REFUSED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("string_insertion", "spiral_matrix", "binary_matrix", "n_queens"), _RUNS_OUTPUT)
    | dict.fromkeys(
        ("puzzle24", "countdown", "polynomial_multiplication", "simple_integration", "intermediate_integration"),
        _PARSES_OUTPUT,
    )
    | dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _NO_ANSWER)
    | dict.fromkeys(("isomorphic_strings", "knight_swap", "ransom_note", "word_ladder"), _HASH_DEPENDENT)
    | dict.fromkeys(("game_of_life_halting", "complex_arithmetic"), _PAYS_JUNK)
    | dict.fromkeys(("game_of_life", "prime_factorization"), _RAISES)
    | {
        "coin_flip": "its scorer expands exponents without limit (1e999999999 hangs)",
        "composite": "it would hide data sets that are refused; mix with task.datasets instead",
        "codeio": "it executes stored programs while generating and is not reproducible",
        "list_functions": "it is not reproducible from a seed",
    }
)

# Items are taken from generators of this many, each with a hashed seed: the library seeds item i of a data set
# with seed + i, so that neighbouring seeds would share nearly all of their items.
_CHUNK = 1000
# Some generators hand their seed to numpy, which takes 32 bits.
_SEED_SPAN = 2**31 - _CHUNK
# Draws without a new question before a data set is taken to be exhausted.
_MAX_REPEATS = 2000


class ReasoningGymOptions(TaskOptions):
    """Which data sets, and how their scores become rewards."""

    dataset: str | None = None
    """One data set by its Reasoning Gym name. Give this or `datasets`."""

    datasets: dict[str, float] | None = None
    """A mixture: data set names and their weights. Give this or `dataset`."""

    dataset_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the data set's generator; with `datasets`, a table of them for each name."""

    rows: int = Field(default=1000, ge=1)
    """Number of different questions."""

    reward: Literal["binary", "score"] = "binary"
    """`binary`: 1 where the score reaches `threshold`, else 0. `score`: the scorer's own partial credit."""

    threshold: float = Field(default=1.0, gt=0, le=1)
    """The score from which a binary reward is 1."""

    prompt_template: str = "{question}"
    """The user message. `{question}` and the fields of the items' metadata, such as `{expression}`, are filled in."""

    @property
    def weights(self) -> dict[str, float]:
        """Data set names and weights."""
        return {self.dataset: 1.0} if self.dataset is not None else dict(self.datasets or {})

    def generator_options(self, name: str) -> dict[str, Any]:
        """The generator's options for one data set."""
        return dict(self.dataset_options if self.dataset is not None else self.dataset_options.get(name, {}))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.dataset is None) == (self.datasets is None):
            raise ValueError("expected exactly one of task.dataset and task.datasets")
        if not self.weights or any(not 0 < weight < float("inf") for weight in self.weights.values()):
            raise ValueError(f"task.datasets = {self.datasets} needs at least one name, each with a weight above 0")
        if self.reward == "score" and self.threshold != 1.0:
            raise ValueError(f'task.threshold = {self.threshold} is for task.reward = "binary", got "score"')
        for name in self.dataset_options if self.dataset is None else ():
            if name not in self.weights:
                close = nearest(name, self.weights)
                raise ValueError(f"task.dataset_options.{name} is for none of task.datasets{close}")
            if not isinstance(self.dataset_options[name], dict):
                raise ValueError(f"task.dataset_options.{name} must be a table, as task.datasets is given")
        for name in self.weights:
            for key in {"seed", "size"} & self.generator_options(name).keys():
                raise ValueError(f"task.dataset_options.{key} is not an option here, use task.seed and task.rows")
        return self


@dataclass(frozen=True, kw_only=True)
class _Item:
    dataset: str
    entry: dict[str, Any]


class ReasoningGymEnvironment:
    """Single-turn questions with the library's own scorers; no question occurs twice."""

    Options = ReasoningGymOptions
    name = "reasoning_gym"
    reward_range = (0.0, 1.0)

    def __init__(self, options: ReasoningGymOptions) -> None:
        self.options = options.resolved(0)
        for name in self.options.weights:
            if name in REFUSED:
                raise ConfigurationError(f"data set {name!r} of reasoning_gym is refused: {REFUSED[name]}")
        self._scorers = {name: _generator(name, self.options, 0) for name in self.options.weights}
        self._items = self._unrepeated()
        self._prompts = [self._prompt(row, item) for row, item in enumerate(self._items)]

    def __len__(self) -> int:
        return self.options.rows

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
        return SingleTurn(lambda text: self._score(item, text))

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """The reference answer."""
        answer: str = self._items[task.metadata["row"]].entry["answer"]
        return answer

    def _score(self, item: _Item, text: str) -> float:
        answer = text.strip()
        # Blank text answers nothing; several scorers raise on it.
        score = finite_reward(self._scorers[item.dataset].score_answer(answer, item.entry)) if answer else 0.0
        if self.options.reward == "binary":
            # Scores that are computed as ratios miss 1 by rounding.
            return float(score >= self.options.threshold - 1e-9)
        if not -1e-9 <= score <= 1 + 1e-9:
            raise VerifierFailure(f"the scorer of {item.dataset} returned {score}, expected a score from 0 to 1")
        return min(max(score, 0.0), 1.0)

    def _unrepeated(self) -> list[_Item]:
        """The first `rows` items of the mixture whose questions differ and whose own answers are paid."""
        sources = {name: _entries(name, self.options) for name in self.options.weights}
        seen: set[str] = set()
        items: list[_Item] = []
        for name in mixture_order(self.options.weights, self.options.rows):
            items.append(self._new_item(name, len(items), sources[name], seen))
        return items

    def _new_item(self, name: str, row: int, source: Iterator[dict[str, Any]], seen: set[str]) -> _Item:
        for entry in itertools.islice(source, _MAX_REPEATS):
            if entry["question"] in seen:
                continue
            seen.add(entry["question"])
            item = _Item(dataset=name, entry=entry)
            if not isinstance(entry["answer"], str) or not entry["answer"].strip():
                raise DataError(
                    f"row {row} of task 'reasoning_gym' (data set {name!r}) has the reference answer "
                    f"{entry['answer']!r}, expected text that is not blank"
                )
            # About one in forty items of gsm_symbolic has an answer that its own scorer rejects.
            if self._score(item, entry["answer"]) == 1.0:
                return item
        raise ConfigurationError(
            f"task.rows: data set {name!r} gave no new question in {_MAX_REPEATS} draws after {row} rows, expected "
            "fewer rows or wider task.dataset_options"
        )

    def _prompt(self, row: int, item: _Item) -> str:
        fields = {**item.entry["metadata"], "question": item.entry["question"]}
        for name in _template_fields(self.options.prompt_template):
            if name not in fields:
                raise ConfigurationError(
                    f"task.prompt_template asks for {{{name}}}, which row {row} of data set {item.dataset!r} lacks, "
                    f"expected fields out of {', '.join(sorted(fields))}{nearest(name, fields)}"
                )
        prompt = self.options.prompt_template.format(**fields)
        if not prompt.strip():
            raise ConfigurationError(f"task.prompt_template gives a blank prompt for row {row}, expected some text")
        return prompt


def mixture_order(weights: Mapping[str, float], rows: int) -> Iterator[str]:
    """Names in the proportion of `weights` over every prefix: each row goes to the name that lags most behind."""
    total = sum(weights.values())
    counts = dict.fromkeys(weights, 0)
    for row in range(rows):
        # max() takes the first of equals, which is the order of the options.
        name = max(weights, key=lambda name: weights[name] / total * (row + 1) - counts[name])
        counts[name] += 1
        yield name


def _entries(name: str, options: ReasoningGymOptions) -> Iterator[dict[str, Any]]:
    """Entries without end, fixed by the seed and the name."""
    chunk = 0
    while True:
        generator = _generator(name, options, chunk)
        for index in range(_CHUNK):
            yield generator[index]
        chunk += 1


def _generator(name: str, options: ReasoningGymOptions, chunk: int) -> Any:
    library = _library()
    if name not in library.factory.DATASETS:
        raise ConfigurationError(
            f"unknown data set {name!r} of reasoning_gym{nearest(name, library.factory.DATASETS)}, "
            f"expected one of its {len(library.factory.DATASETS)} names"
        )
    seed = derive_seed(options.seed or 0, f"tasks.reasoning_gym.{name}", attempt=chunk) % _SEED_SPAN
    try:
        return library.create_dataset(name, seed=seed, size=_CHUNK, **options.generator_options(name))
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"task.dataset_options for {name!r} do not fit: {error}") from error


def _template_fields(template: str) -> list[str]:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigurationError(f"task.prompt_template = {template!r} is no template: {error}") from error
    for name in names:
        if not name.isidentifier():
            raise ConfigurationError(f"task.prompt_template has the field {{{name}}}, expected plain field names")
    return names


def _library() -> Any:
    try:
        import reasoning_gym
        import reasoning_gym.factory
    except ImportError as error:
        raise ConfigurationError(
            "task.type = 'reasoning_gym' needs the extra reasoning-gym: pip install 'lecritique[reasoning-gym]'"
        ) from error
    return reasoning_gym
