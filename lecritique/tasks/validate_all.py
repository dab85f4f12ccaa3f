"""Validation of every task, each in two processes whose hash seeds differ; a process that hangs is ended."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.tasks.registry import class_of, load_environment, task_names
from lecritique.tasks.sandbox.isolation import SandboxUnavailable
from lecritique.tasks.validate import Problem, ValidationReport, validate_environment

# A job that says nothing for so long hangs where no time limit of its own reaches.
_JOB_SECONDS = 180.0
_HASH_SEEDS = ("1", "2")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One environment to validate: the label of its report, the task and its options.

    `not_validated` says why it is only listed. An environment that a task names itself (`part`) must load; a whole
    task may need what a user has to supply.
    """

    label: str
    task: str
    options: Mapping[str, Any]
    part: bool = False
    not_validated: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A job's report, or in one sentence why there is none."""

    job: Job
    report: ValidationReport | None = None
    skipped: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """`ok`, `broken` or `not validated`."""
        if self.report is None:
            return "not validated"
        return "ok" if self.report.ok else "broken"

    def lines(self) -> list[str]:
        """The outcome for a terminal."""
        if self.report is None:
            return [f"{self.job.label}: not validated: {self.skipped}"]
        first, *others = self.report.lines()
        _, _, text = first.partition(": ")
        slowest = f", slowest answer to a text made to hang {self.report.slowest_seconds:.2f} s"
        return [f"{self.job.label}: {text}{slowest}; {self.seconds:.1f} s", *others]


def all_jobs() -> list[Job]:
    """A job for each built-in task, or for each part that a task names in `validation_parts`.

    That class method returns for each part its options, or in words why it is not validated.
    """
    return [job for task in task_names() for job in _jobs(task)]


def _jobs(task: str) -> list[Job]:
    parts = getattr(class_of(task), "validation_parts", None)
    if parts is None:
        return [Job(label=task, task=task, options={})]
    try:
        named: Mapping[str, Any] = parts()
    except ConfigurationError as error:  # an extra that is not installed
        return [Job(label=task, task=task, options={}, not_validated=str(error))]
    return [
        Job(label=f"{task} {part}", task=task, options={}, not_validated=what)
        if isinstance(what, str)
        else Job(label=f"{task} {part}".strip(), task=task, options=what, part=True)
        for part, what in named.items()
    ]


def validate_all(jobs: Sequence[Job], *, items: int = 200, junk_items: int = 20) -> Iterator[Outcome]:
    """Outcomes in the order of `jobs`, as they come; two processes at a time.

    A job is skipped, with the reason, where its environment cannot be had without what a user must supply. Tasks and
    rewards that differ between the two processes are a problem of their own.
    """
    played = [job for job in jobs if not job.not_validated]
    first, second = (_outcomes(played, hash_seed, items, junk_items) for hash_seed in _HASH_SEEDS)
    for job in jobs:
        if job.not_validated:
            yield Outcome(job=job, skipped=job.not_validated)
        else:
            # The second process works on while the first is waited for.
            yield _compared(job, next(first), next(second))


def _compared(job: Job, first: Outcome, second: Outcome) -> Outcome:
    if first.report is None or second.report is None:
        return first if first.report is None else second
    if not (first.report.fingerprint and second.report.fingerprint):
        return second if first.report.fingerprint else first
    if first.report.fingerprint == second.report.fingerprint:
        return first
    problem = Problem(kind="depends on the process", row=0, text="another PYTHONHASHSEED gives other tasks or rewards")
    report = ValidationReport(**{**vars(first.report), "problems": (*first.report.problems, problem)})
    return Outcome(job=job, report=report, seconds=first.seconds)


def _outcomes(jobs: Sequence[Job], hash_seed: str, items: int, junk_items: int) -> Iterator[Outcome]:
    """Outcomes of one process, and of another one for what is left whenever one hung."""
    # Started here and not in the generator, so that both processes run at once.
    process = _Process(jobs, hash_seed, items, junk_items)

    def read(process: _Process) -> Iterator[Outcome]:
        try:
            for number, job in enumerate(jobs):
                outcome = process.outcome(job)
                if outcome is None:
                    process.end()
                    process = _Process(jobs[number + 1 :], hash_seed, items, junk_items)
                    text = f"nothing came within {_JOB_SECONDS:g} s, or its process died"
                    outcome = _failed(job, "hang", text, _JOB_SECONDS)
                yield outcome
        finally:
            process.end()

    return read(process)


def _failed(job: Job, kind: str, text: str, seconds: float) -> Outcome:
    """The outcome of a job that came to no report of its own."""
    problem = Problem(kind=kind, row=0, text=text)
    report = ValidationReport(
        name=job.task, rows=0, gold_rows=0, junk_rows=0, junk_kinds=0, problems=(problem,)
    )  # fmt: skip
    return Outcome(job=job, report=report, seconds=seconds)


class _Process:
    """A process that validates jobs one by one and writes an outcome a line."""

    def __init__(self, jobs: Sequence[Job], hash_seed: str, items: int, junk_items: int) -> None:
        work = {"jobs": [{**asdict(job), "options": dict(job.options)} for job in jobs], "items": items,
                "junk_items": junk_items}  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, json.dumps(work)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._buffer = b""

    def outcome(self, job: Job) -> Outcome | None:
        """The next line's outcome, or None if none comes."""
        line = self._line(time.monotonic() + _JOB_SECONDS)
        if line is None:
            return None
        values = json.loads(line)
        if values["skipped"] and job.part and not values["no_sandbox"]:
            return _failed(job, "cannot be loaded", values["skipped"], values["seconds"])
        if values["skipped"]:
            return Outcome(job=job, skipped=values["skipped"])
        problems = tuple(Problem(**problem) for problem in values["report"].pop("problems"))
        report = ValidationReport(**values["report"], problems=problems)
        return Outcome(job=job, report=report, seconds=values["seconds"])

    def _line(self, deadline: float) -> bytes | None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    return None
                part = self._process.stdout.read(1 << 16)
                if not part:
                    return None
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main() -> None:
    """Inside the process: validate what the one argument lists."""
    work = json.loads(sys.argv[1])
    results = os.fdopen(os.dup(1), "w")
    # What libraries print must not mix with the results.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for values in work["jobs"]:
        started = time.monotonic()
        found: dict[str, Any] = {"skipped": "", "no_sandbox": False, "report": None}
        try:
            environment = load_environment(values["task"], values["options"])
        except (ConfigurationError, DataError) as error:
            found |= {"skipped": str(error), "no_sandbox": isinstance(error, SandboxUnavailable)}
        else:
            found["report"] = asdict(
                validate_environment(environment, items=work["items"], junk_items=work["junk_items"])
            )
        found["seconds"] = time.monotonic() - started
        results.write(json.dumps(found) + "\n")
        results.flush()


if __name__ == "__main__":
    main()
