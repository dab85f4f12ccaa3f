"""The replicas of a vLLM engine: started, watched, and replaced when they die or hang, a bounded number of times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lecritique.rollout.vllm_messages import Command, ReplicaSettings, Report
from lecritique.rollout.vllm_replica import ReplicaProcess

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """When a replica counts as failed, and what is done about it.

    Attributes:
        start_seconds: how long one may take to start.
        stuck_seconds: how long one that has work may say nothing.
        restarts: replacements of all replicas together.
    """

    start_seconds: float
    stuck_seconds: float
    restarts: int


@dataclass(frozen=True, kw_only=True)
class ReplicaLost:
    """A replica has failed; `replacement` is the number of the one that starts in its place, None without one.

    `actor` is the one that it belonged to, None where the run's own process started it.
    """

    number: int
    reason: str
    replacement: int | None
    restarts_left: int
    actor: str | None = None


class Replicas:
    """Processes by number; one that takes another's place has a number of its own, so that nobody mixes them up.

    Not safe to share: the engine calls it with its lock held, but for `start` and `close`.

    Args:
        settings: of every replica.
        environments: environment variables of each; as many are started.
        folder: where they print to.
        supervision: when one counts as failed, and how many are replaced.
        start: makes a replica's process.
        report: told what they say.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        environments: Sequence[Mapping[str, str]],
        folder: Path,
        supervision: Supervision,
        *,
        start: Callable[..., ReplicaProcess],
        report: Callable[[int, Report], None],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._supervision = supervision
        self._start = start
        self._report = report
        # Of every process that was ever started.
        self._environments = dict(enumerate(environments))
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._kill_stuck_ones, name="vllm watch", daemon=True)
        self.processes: dict[int, ReplicaProcess] = {}
        self.restarts = 0

    def start(self) -> None:
        """Return when all of them serve.

        Raises:
            ConfigurationError: one does not start, or not in time.
        """
        for number in self._environments:
            self._begin(number)
        for process in self.processes.values():
            process.wait_until_ready(self._supervision.start_seconds)
        self._watch.start()

    def send(self, number: int, command: Command) -> None:
        """Hand a command to a replica."""
        self.processes[number].send(command)

    def replace(self, number: int, reason: str) -> ReplicaLost:
        """Bury a replica that has failed, and start another in its place if that is still allowed."""
        self.processes[number].bury()
        replacement = None
        if self.restarts < self._supervision.restarts:
            self.restarts += 1
            replacement = len(self.processes)
            self._environments[replacement] = self._environments[number]
            try:
                self._begin(replacement)
            except OSError as error:
                replacement, reason = None, f"{reason}; no other could be started: {error}"
        left = self._supervision.restarts - self.restarts
        return ReplicaLost(number=number, reason=reason, replacement=replacement, restarts_left=left)

    def close(self) -> None:
        """End every process."""
        for process in self.processes.values():
            process.ask_to_stop()
        for process in self.processes.values():
            process.stop()
        # Only now: one that hangs would not take the word to stop either.
        self._closing.set()
        if self._watch.is_alive():
            self._watch.join()

    def _begin(self, number: int) -> None:
        self.processes[number] = self._start(
            self._settings,
            number=number,
            log=self._folder / f"replica-{number}.log",
            variables=self._environments[number],
            report=self._report,
        )

    def _kill_stuck_ones(self) -> None:
        """Without the engine's lock, which may be held by one that waits for a replica that hangs."""
        limits = self._supervision
        while not self._closing.wait(min(_LOOK_SECONDS, limits.stuck_seconds / 4)):
            for process in list(self.processes.values()):
                process.kill_if_stuck(start_seconds=limits.start_seconds, stuck_seconds=limits.stuck_seconds)
