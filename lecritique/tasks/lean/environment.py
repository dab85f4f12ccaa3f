"""The Lean environment: prove a theorem in a few attempts, each answered by the compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lecritique.core.errors import DataError
from lecritique.core.task import Message, Reference, Reply, Task
from lecritique.tasks.lean.backends import backend_of
from lecritique.tasks.lean.checking import LeanBackend, Verdict, checked_body, judged
from lecritique.tasks.lean.options import LeanOptions
from lecritique.tasks.lean.proofs import Refused, taken_proof, theorem_name, trimmed_statement, without_comments
from lecritique.tasks.protocol import Episode
from lecritique.tasks.tables import Table, open_table

_TASK = """Prove this theorem in Lean 4.
{informal}
```lean
{header}{statement} := sorry
```

Answer with one code block that starts with ```lean and holds the proof that replaces `sorry` (such as `by` and \
tactics), or the whole theorem with its statement unchanged. No axioms, no further declarations, no `sorry`. \
You have {attempts}."""
_RETRY = "The proof was not accepted.\n\n{feedback}\n\nYou have {attempts} left. Answer with a complete proof."


@dataclass(frozen=True, kw_only=True)
class _Theorem:
    name: str
    header: str
    statement: str
    informal: str
    proof: str | None


class LeanEnvironment:
    """Theorems whose statement is ours; reward 1 for a proof that Lean accepts, else 0."""

    Options = LeanOptions
    name = "lean"
    reward_range = (0.0, 1.0)

    def __init__(self, options: LeanOptions) -> None:
        self.options = options.resolved(0)
        self._backend: LeanBackend = backend_of(self.options)
        self._theorems = list(_theorems(open_table(self.options.file), self.options))

    def __len__(self) -> int:
        return len(self._theorems)

    def task(self, row: int) -> Task:
        """The theorem of one row, with its proof as the reference where the file has one."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of task 'lean' does not exist, expected 0 to {len(self) - 1}")
        theorem = self._theorems[row]
        content = _TASK.format(
            informal=theorem.informal and f"\n{theorem.informal}\n",
            header=theorem.header and f"{theorem.header.strip()}\n\n",
            statement=theorem.statement,
            attempts=_times(self.options.attempts),
        )
        return Task(
            task_id=f"lean:{theorem.name}:{_digest(theorem.header + theorem.statement)}",
            messages=(Message(role="user", content=content),),
            reference=None if theorem.proof is None else Reference(answer=theorem.proof),
            metadata={"name": theorem.name, "header": theorem.header, "statement": theorem.statement},
        )

    def start(self, task: Task) -> Episode:
        """Open an episode."""
        return _Attempts(self, task)

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """The file's own proof.

        Raises:
            DataError: the file has none.
        """
        if task.reference is None:
            raise DataError(f"theorem {task.metadata['name']!r} has no proof: task.proof_column names the column")
        return f"```lean\n{task.reference.answer}\n```"

    def checked(self, task: Task, text: str) -> Verdict:
        """Whether the proof in a response is accepted.

        Raises:
            VerifierFailure: Lean could not be asked.
        """
        statement = task.metadata["statement"]
        proof = taken_proof(text, statement)
        if isinstance(proof, Refused):
            return Verdict(accepted=False, feedback=proof.reason)
        compilation = self._backend.compiled(task.metadata["header"], checked_body(statement, proof))
        return judged(compilation, statement, proof)

    def close(self) -> None:
        """End the Lean processes; a later check starts new ones."""
        self._backend.close()


class _Attempts:
    """An episode of up to `attempts` turns."""

    def __init__(self, environment: LeanEnvironment, task: Task) -> None:
        self._environment, self._task = environment, task
        self._left = environment.options.attempts

    def reply(self, text: str) -> Reply:
        """Check a proof: the end when it is accepted or was the last, else the compiler's messages."""
        if self._left == 0:
            raise ValueError("the episode is over, expected no further turn")
        verdict = self._environment.checked(self._task, text)
        self._left = 0 if verdict.accepted else self._left - 1
        if self._left == 0:
            return Reply(reward=float(verdict.accepted))
        feedback = verdict.feedback[: self._environment.options.feedback_characters].encode("utf-8", "replace").decode()
        content = _RETRY.format(attempts=_times(self._left), feedback=feedback)
        return Reply(messages=(Message(role="user", content=content),))


def _times(attempts: int) -> str:
    return "one attempt" if attempts == 1 else f"{attempts} attempts"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _theorems(table: Table, options: LeanOptions) -> Iterator[_Theorem]:
    """The rows that are asked for, each checked."""
    optional = (options.name_column, options.header_column, options.informal_column, options.proof_column)
    columns = [options.statement_column, *(column for column in optional if column is not None)]
    for row, cells in enumerate(table.rows(columns)):
        if row == options.rows:
            return
        statement = trimmed_statement(without_comments(_text(table, row, cells, options.statement_column)))
        name = theorem_name(statement)
        if name is None:
            raise DataError(
                f"{table.name!r}: row {row} has {statement[:80]!r} in column {options.statement_column!r}, expected "
                "`theorem NAME ...`"
            )
        header = options.header if options.header_column is None else _text(table, row, cells, options.header_column)
        yield _Theorem(
            name=name if options.name_column is None else _text(table, row, cells, options.name_column),
            header=header if header.endswith("\n") or not header else header + "\n",
            statement=statement,
            informal="" if options.informal_column is None else _text(table, row, cells, options.informal_column),
            proof=None if options.proof_column is None else _text(table, row, cells, options.proof_column),
        )


def _text(table: Table, row: int, cells: Mapping[str, Any], column: str) -> str:
    value = cells[column]
    if not isinstance(value, str) or not value.strip() or any("\ud800" <= c <= "\udfff" for c in value):
        raise DataError(f"{table.name!r}: row {row} has {str(value)[:80]!r} in column {column!r}, expected text")
    return value.strip()
