"""The Knights and Knaves environment.

Terse.   User: `A:Bk&Cn B:Ak C:~Ak`. Policy: `AkBkCn`.
Verbose: the puzzle in sentences; the policy may reason, and claims inside <answer> tags who is what.
The reference is the answer and a worked solution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from lecritique.core.seeds import derive_seed
from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.answer_tags import CLOSE, OPEN, inside_tags
from lecritique.tasks.knights_knaves.deduction import worked_steps
from lecritique.tasks.knights_knaves.generator import Puzzle, PuzzleSource
from lecritique.tasks.knights_knaves.logic import Assignment
from lecritique.tasks.knights_knaves.options import KnightsKnavesOptions
from lecritique.tasks.knights_knaves.published import PublishedPuzzle, published_puzzles
from lecritique.tasks.knights_knaves.reading import terse_reading, verbose_reading
from lecritique.tasks.knights_knaves.wording import (
    Cast,
    drawn_cast,
    terse_answer,
    terse_puzzle,
    terse_solution,
    verbose_answer,
    verbose_puzzle,
    verbose_solution,
)
from lecritique.tasks.protocol import Episode, SingleTurn


class KnightsKnavesEnvironment:
    """Puzzles with one solution each; reward 1 for the right role of everybody, else 0."""

    Options = KnightsKnavesOptions
    name = "knights_knaves"
    reward_range = (0.0, 1.0)

    def __init__(self, options: KnightsKnavesOptions) -> None:
        self.options = options.resolved(0)
        self._tasks: dict[int, Task] = {}
        if self.options.path is not None:
            puzzles = published_puzzles(self.options.path, self.options.rows)
            self._rows, self._made = len(puzzles), lambda row: self._published_task(puzzles[row])
        else:
            self._rows, self._made = self.options.rows or 0, self._generated_task
            self._source = _source(self.options)

    _made: Callable[[int], Task]

    def __len__(self) -> int:
        return self._rows

    def task(self, row: int) -> Task:
        """The puzzle of one row, with its solution in the metadata and the worked solution in the reference."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of task 'knights_knaves' does not exist, expected 0 to {len(self) - 1}")
        if row not in self._tasks:
            self._tasks[row] = self._made(row)
        return self._tasks[row]

    def start(self, task: Task) -> Episode:
        """Open an episode of one turn."""
        solution = task.metadata["solution"]
        return SingleTurn(lambda text: float(self._read(text, task) == solution))

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """The right role of everybody."""
        solution = task.metadata["solution"]
        if self.options.style == "terse":
            return terse_answer(solution)
        claims = "\n".join(verbose_answer(solution, _cast(task)).split(", "))
        return f"{OPEN}\n{claims}\n{CLOSE}" if self.options.answer_tags else claims

    def holds_answer(self, task: Task, text: str) -> bool:
        """Whether `text` gives everybody one role, right or wrong."""
        return self._read(text, task) is not None

    def _read(self, text: str, task: Task) -> Assignment | None:
        if self.options.style == "terse":
            return terse_reading(text, len(task.metadata["solution"]))
        return verbose_reading(inside_tags(text) if self.options.answer_tags else text, _cast(task))

    def _generated_task(self, row: int) -> Task:
        puzzle = self._source.puzzle(row)
        steps = worked_steps(puzzle.statements)
        task_id = f"knights_knaves:{puzzle.content}"
        if self.options.style == "terse":
            reference = Reference(answer=terse_answer(puzzle.solution), solution=terse_solution(steps, puzzle.solution))
            return _task(task_id, terse_puzzle(puzzle.statements), reference, puzzle.solution)
        cast = self._cast_of(puzzle, row)
        seed = derive_seed(self.options.seed or 0, "tasks.knights_knaves.wording", row=row)
        question = verbose_puzzle(puzzle.statements, cast, wording=self.options.wording or "plain", seed=seed)
        reference = Reference(
            answer=verbose_answer(puzzle.solution, cast),
            solution=verbose_solution(steps, puzzle.statements, puzzle.solution, cast),
        )
        return _task(task_id, f"{question}\n\n{self._request(cast)}", reference, puzzle.solution, cast)

    def _cast_of(self, puzzle: Puzzle, row: int) -> Cast:
        names, words = self.options.names or "common", self.options.role_words or "knight"
        return drawn_cast(names, words, puzzle.roles, seed=self.options.seed or 0, row=row)

    def _published_task(self, puzzle: PublishedPuzzle) -> Task:
        digest = hashlib.blake2b(puzzle.quiz.encode("utf-8", "replace"), digest_size=8).hexdigest()
        reference = Reference(answer=verbose_answer(puzzle.solution, puzzle.cast), solution=puzzle.worked)
        question = f"{puzzle.quiz}\n\n{self._request(puzzle.cast)}"
        return _task(f"knights_knaves:file:{digest}", question, reference, puzzle.solution, puzzle.cast)

    def _request(self, cast: Cast) -> str:
        place = (
            f" inside {OPEN} and {CLOSE}; you may reason before it" if self.options.answer_tags else " and nothing else"
        )
        return (
            f"Write your answer with one line for each inhabitant, either `NAME is {cast.role(True)}` or "
            f"`NAME is {cast.role(False)}`,{place}."
        )


def _source(options: KnightsKnavesOptions) -> PuzzleSource:
    fewest, most = options.role_range
    return PuzzleSource(
        min_roles=fewest,
        max_roles=most,
        kinds=options.kinds or (),
        max_depth=options.max_depth or 1,
        held_out=options.split != "train",
        seed=options.seed or 0,
    )


def _task(task_id: str, question: str, reference: Reference, solution: Assignment, cast: Cast | None = None) -> Task:
    metadata: dict[str, object] = {"solution": solution, "roles": len(solution)}
    if cast is not None:
        metadata |= {"names": cast.names, "role_words": cast.words}
    return Task(
        task_id=task_id,
        messages=(Message(role="user", content=question),),
        reference=reference,
        metadata=metadata,
    )


def _cast(task: Task) -> Cast:
    return Cast(names=task.metadata["names"], words=task.metadata["role_words"])
