"""Whether an environment keeps its promises: the gold answer pays, junk does not, rows are stable."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lecritique.core.errors import EXIT_CONFIGURATION, EXIT_OK
from lecritique.core.task import Reply, Task
from lecritique.tasks.junk import HANGS, JUNK
from lecritique.tasks.protocol import Environment

# An episode that is still open after this many turns is taken to have no end.
_MAX_TURNS = 1000
# The limit of an environment that states none as its attribute `time_limit_seconds`, and what may come on top of it.
_TIME_LIMIT_SECONDS = 5.0
_GRACE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One broken promise: what kind, in which row, in words."""

    kind: str
    row: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ValidationReport:
    """What `validate_environment` saw.

    `fingerprint` is a hash of every task and reward that was seen, equal in every process; `slowest_seconds` is the
    longest that a text made to hang a verifier took.
    """

    name: str
    rows: int
    gold_rows: int
    junk_rows: int
    junk_kinds: int
    problems: tuple[Problem, ...]
    fingerprint: str = ""
    slowest_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was broken."""
        return not self.problems

    @property
    def exit_code(self) -> int:
        """Exit code for a command line."""
        return EXIT_OK if self.ok else EXIT_CONFIGURATION

    def lines(self, most: int = 10) -> list[str]:
        """The report for a terminal: a summary, counts by kind, and the first `most` problems."""
        verdict = "ok" if self.ok else f"{len(self.problems)} problems"
        lines = [
            f"{self.name}: {verdict}; {self.rows} rows, gold answers of {self.gold_rows}, "
            f"{self.junk_kinds} kinds of junk on {self.junk_rows}"
        ]
        lines += [f"  {count} x {kind}" for kind, count in sorted(Counter(p.kind for p in self.problems).items())]
        lines += [f"  row {problem.row}: {problem.text}" for problem in self.problems[:most]]
        if len(self.problems) > most:
            lines.append(f"  and {len(self.problems) - most} more")
        return lines


def validate_environment(
    environment: Environment, *, items: int = 200, junk_items: int = 20, hang_items: int = 3
) -> ValidationReport:
    """Play gold answers on up to `items` rows, every kind of junk on up to `junk_items`, rows evenly spread.

    Gold must end with the top of `reward_range`, junk with its bottom and without an exception; tasks must be the
    same when asked twice, with distinct ids and a reference that is not blank. Texts made to hang a verifier are
    played on up to `hang_items` rows, and each must be answered within the environment's time limit and a second.
    """
    gold_rows = _spread(len(environment), items)
    junk_rows = _spread(len(environment), junk_items)
    seen = _Seen()
    problems: list[Problem] = []
    ids: dict[str, int] = {}
    for row in gold_rows:
        problems += _row_problems(environment, row, ids, seen)
        problems += _gold_problems(environment, row, seen)
    for row in junk_rows:
        problems += _junk_problems(environment, row, seen)
    for row in _spread(len(environment), hang_items):
        problems += _hang_problems(environment, row, seen)
    return ValidationReport(
        name=environment.name,
        rows=len(environment),
        gold_rows=len(gold_rows),
        junk_rows=len(junk_rows),
        junk_kinds=len(JUNK),
        problems=tuple(problems),
        fingerprint=seen.digest.hexdigest(),
        slowest_seconds=seen.slowest_seconds,
    )


class _Seen:
    """Running hash of what was seen, and the longest time that a hang took."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self.slowest_seconds = 0.0

    def add(self, *values: object) -> None:
        self.digest.update(repr(values).encode("utf-8", "backslashreplace"))


def _spread(rows: int, wanted: int) -> list[int]:
    return sorted({int(row) for row in np.linspace(0, rows - 1, min(rows, wanted))}) if rows and wanted else []


def _row_problems(environment: Environment, row: int, ids: dict[str, int], seen: _Seen) -> Iterator[Problem]:
    try:
        task, again = environment.task(row), environment.task(row)
    except Exception as error:  # user code: whatever it raises is the finding
        yield Problem(kind="task raised", row=row, text=f"task({row}) raised {_named(error)}")
        return
    if not isinstance(task, Task):
        yield Problem(kind="no task", row=row, text=f"task({row}) is a {type(task).__name__}, expected a Task")
        return
    seen.add(task.task_id, task.messages, task.reference)
    if (task.task_id, task.messages, task.reference) != (again.task_id, again.messages, again.reference):
        yield Problem(kind="unstable row", row=row, text="task(row) differs between two calls")
    if task.task_id in ids:
        yield Problem(kind="repeated id", row=row, text=f"has the task_id of row {ids[task.task_id]}: {task.task_id}")
    ids.setdefault(task.task_id, row)


def _gold_problems(environment: Environment, row: int, seen: _Seen) -> Iterator[Problem]:
    top = environment.reward_range[1]
    try:
        task = environment.task(row)
        reward = _gold_reward(environment, task)
    except Exception as error:
        yield Problem(kind="gold raised", row=row, text=f"the gold answer raised {_named(error)}")
        return
    seen.add(row, reward)
    if reward is None:
        yield Problem(kind="no end", row=row, text=f"gold answers did not end the episode in {_MAX_TURNS} turns")
    elif reward != top:
        yield Problem(kind="gold unpaid", row=row, text=f"the gold answer earned {reward}, expected {top}")


def _gold_reward(environment: Environment, task: Task) -> float | None:
    episode, messages = environment.start(task), list(task.messages)
    for _ in range(_MAX_TURNS):
        answer = environment.gold(task, tuple(messages))
        if not answer.strip():
            raise ValueError("the gold answer is blank")
        reply = episode.reply(answer)
        if reply.done:
            return reply.reward
        messages += reply.messages
    return None


def _junk_problems(environment: Environment, row: int, seen: _Seen) -> Iterator[Problem]:
    bottom = environment.reward_range[0]
    for kind, text in JUNK.items():
        try:
            reward = _junk_reward(environment, row, text)
        except Exception as error:
            yield Problem(kind="junk raised", row=row, text=f"junk ({kind}) raised {_named(error)}")
            continue
        seen.add(row, kind, reward)
        if reward is None:
            yield Problem(kind="no end", row=row, text=f"junk ({kind}) did not end the episode in {_MAX_TURNS} turns")
        elif not reward <= bottom:
            yield Problem(kind="junk paid", row=row, text=f"junk ({kind}) earned {reward}, expected {bottom}")


def _hang_problems(environment: Environment, row: int, seen: _Seen) -> Iterator[Problem]:
    limit = float(getattr(environment, "time_limit_seconds", _TIME_LIMIT_SECONDS))
    for kind, text in HANGS.items():
        started = time.monotonic()
        try:
            reward = _junk_reward(environment, row, text)
        except Exception as error:
            yield Problem(kind="hang raised", row=row, text=f"a text made to hang ({kind}) raised {_named(error)}")
            continue
        seconds = time.monotonic() - started
        seen.slowest_seconds = max(seen.slowest_seconds, seconds)
        if seconds > limit + _GRACE_SECONDS:
            text = f"a text made to hang ({kind}) took {seconds:.1f} s, expected at most {limit:g} s and one more"
            yield Problem(kind="hang", row=row, text=text)
        if reward is not None and not reward <= environment.reward_range[0]:
            yield Problem(kind="junk paid", row=row, text=f"a text made to hang ({kind}) earned {reward}")


def _junk_reward(environment: Environment, row: int, text: str) -> float | None:
    episode = environment.start(environment.task(row))
    for _ in range(_MAX_TURNS):
        reply: Reply = episode.reply(text)
        if reply.done:
            return reply.reward
    return None


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
