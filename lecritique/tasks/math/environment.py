"""The math environment: one turn, reward 1 for a final answer that equals the gold answer, else 0."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lecritique.core.errors import DataError, VerifierFailure
from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.math.answers import as_text, bare, is_word, last_box, same_text
from lecritique.tasks.math.judge import judge_of
from lecritique.tasks.math.options import MathOptions
from lecritique.tasks.math.pool import ComparisonPool, Outcome
from lecritique.tasks.protocol import Episode, SingleTurn
from lecritique.tasks.tables import Table, open_table

# Longer answers are compared as text only: parsing them costs much and no gold answer is that long.
_LONGEST_PARSED = 2000
_LONGEST_GOLD = 500
# Written by scripts/make_math_sample.py.
_SAMPLE = Path(__file__).with_name("sample.jsonl")
# Where math-verify looks for an answer when none is boxed.
_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True)
class _Problem:
    row: int
    question: str
    answer: str


class MathEnvironment:
    """Problems with a final answer, compared by math-verify and as text.

    What a response can cause itself is a wrong answer: an answer that cannot be read, or that takes more than the
    limits of time, memory or stack to compare. A comparison that raises or whose process dies is a crashed
    verifier, which gives no reward.
    """

    Options = MathOptions
    name = "math"
    reward_range = (0.0, 1.0)

    def __init__(self, options: MathOptions) -> None:
        self.options = options.resolved(0)
        self._pool = ComparisonPool(workers=self.options.workers, limit_seconds=self.options.limit_seconds)
        self._judge = None if self.options.judge is None else judge_of(self.options.judge)
        self._table = _table(self.options)
        self._problems = list(_problems(self._table, self.options))
        for column in self.options.solution_columns:
            self._table.cell(0, column)

    @classmethod
    def validation_parts(cls) -> dict[str, dict[str, object]]:
        """What `lecritique tasks validate --all` validates: sample problems of many kinds of answers."""
        return {"sample": {"file": str(_SAMPLE), "solution_columns": ["r1_solution_1"], "limit_seconds": 2.0}}

    def __len__(self) -> int:
        return len(self._problems)

    def task(self, row: int) -> Task:
        """The problem of one row, with gold answer and worked solution as the reference."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of task 'math' does not exist, expected 0 to {len(self) - 1}")
        problem = self._problems[row]
        system = self.options.system_prompt
        opening = (Message(role="system", content=system),) if system else ()
        prompt = self.options.prompt_template.replace("{question}", problem.question)
        return Task(
            task_id=f"math:{_digest(problem.question)}",
            messages=(*opening, Message(role="user", content=prompt)),
            reference=Reference(answer=problem.answer, solution=self._solution(problem.row)),
            metadata={"question": problem.question, "source": self.options.source, "source_row": problem.row},
        )

    def start(self, task: Task) -> Episode:
        """Open an episode of one turn."""
        self._pool.prepare()
        return SingleTurn(lambda text: self.score(task, text))

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """The gold answer in a box."""
        return f"\\boxed{{{_gold(task)}}}"

    def score(self, task: Task, text: str) -> float:
        """1 if the final answer of `text` equals the gold answer, else 0.

        Raises:
            VerifierFailure: the comparison crashed, or the judge gave no verdict.
        """
        answer = last_box(text)
        if answer is None and not self.options.require_box:
            answer = text[-_TAIL_CHARACTERS:]
        if answer is None or not as_text(answer):
            return 0.0
        gold = _gold(task)
        if self._equal(gold, answer, whole=last_box(text) is None):
            return 1.0
        if self._judge is None:
            return 0.0
        return float(self._judge.accepts(question=task.metadata["question"], gold=gold, answer=answer))

    def holds_answer(self, task: Task, text: str) -> bool:
        """Whether `text` has a final answer to compare, right or wrong."""
        answer = last_box(text)
        return bool(
            as_text(text[-_TAIL_CHARACTERS:] if answer is None and not self.options.require_box else answer or "")
        )

    def close(self) -> None:
        """End the comparison processes; a later comparison starts new ones."""
        self._pool.close()

    def _equal(self, gold: str, answer: str, *, whole: bool) -> bool:
        if same_text(gold, answer):
            return True
        if is_word(as_text(gold)) or len(answer) > _LONGEST_PARSED:
            return False
        comparison = self._pool.compare(gold, answer if whole else bare(answer), whole=whole)
        if comparison.outcome in (Outcome.RAISED, Outcome.DIED):
            raise VerifierFailure(f"math-verify failed: {comparison.detail or comparison.outcome}")
        return comparison.outcome is Outcome.EQUAL

    def _solution(self, row: int) -> str | None:
        for column in self.options.solution_columns:
            cell = self._table.cell(row, column)
            if isinstance(cell, list) and len(cell) == 1:
                cell = cell[0]
            if cell is not None and not isinstance(cell, str):
                raise DataError(
                    f"{self._table.name!r}: row {row} has a {type(cell).__name__} in column {column!r}, expected text"
                )
            if cell and cell.strip():
                return cell
        return None


def _gold(task: Task) -> str:
    assert task.reference is not None
    return bare(task.reference.answer)


def _digest(question: str) -> str:
    return hashlib.blake2b(question.encode(), digest_size=8).hexdigest()


def _table(options: MathOptions) -> Table:
    if options.file is not None:
        return open_table(options.file)
    from lecritique.tasks.math.hub import HubTable

    assert options.dataset is not None
    return HubTable(options.dataset, options.dataset_configuration, options.split)


def _problems(table: Table, options: MathOptions) -> Iterator[_Problem]:
    """The rows that are asked for, each checked."""
    first: dict[str, int] = {}
    columns = (options.question_column, options.answer_column)
    for row, cells in enumerate(table.rows(columns)):
        if row == options.rows:
            return
        question = _question(table, row, cells, options.question_column)
        answer = _answer(table, row, cells, options.answer_column)
        if question in first:
            if options.repeated == "drop":
                continue
            raise DataError(
                f"{table.name!r}: row {row} has the question of row {first[question]}, expected distinct questions; "
                'task.repeated = "drop" leaves it out'
            )
        first[question] = row
        yield _Problem(row=row, question=question, answer=answer)


def _question(table: Table, row: int, cells: Mapping[str, Any], column: str) -> str:
    value = cells[column]
    if not isinstance(value, str) or not value.strip() or not _encodable(value):
        raise DataError(f"{table.name!r}: row {row} has {_shown(value)} in column {column!r}, expected a question")
    return value.strip()


def _answer(table: Table, row: int, cells: Mapping[str, Any], column: str) -> str:
    """The gold answer as text; several are listed with commas."""
    value = cells[column]
    parts = value if isinstance(value, list) and value else [value]
    texts = [_written(part) for part in parts]
    if any(text is None or not as_text(text) for text in texts):
        raise DataError(
            f"{table.name!r}: row {row} has {_shown(value)} in column {column!r}, expected a gold answer that is not "
            "empty"
        )
    answer = ", ".join(bare(str(text)) for text in texts)
    if len(answer) > _LONGEST_GOLD:
        raise DataError(
            f"{table.name!r}: row {row} has {len(answer)} characters without a box in column {column!r}, expected a "
            f"final answer of at most {_LONGEST_GOLD}, or a solution that ends in \\boxed{{...}}"
        )
    return answer


def _written(value: Any) -> str | None:
    """A number or text as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, float):
        return None if not math.isfinite(value) else str(int(value)) if value.is_integer() else repr(value)
    text = str(value).strip()
    return text if _encodable(text) else None


def _encodable(text: str) -> bool:
    """Whether UTF-8 can hold it: JSON can spell lone surrogates, which are no text."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
