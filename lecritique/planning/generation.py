"""GPUs that generate, simulated: rows of one GPU advance together, by a token for each decode step."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import simpy

from lecritique.planning.roofline import Roofline

# How far rows go before the length of their contexts is looked at again.
_STRIDE_TOKENS = 256


@dataclass(eq=False)
class SimulatedRollout:
    """A rollout of a simulated run; `version` is the policy's at its first token, -1 before."""

    group: int
    tokens: float
    version: int = -1
    cancelled: bool = False


@dataclass(order=True)
class _Row:
    ends_at: float
    number: int
    rollout: SimulatedRollout = field(compare=False)
    began_at: float = field(compare=False)


class GeneratingGpu:
    """One engine with its key-value cache. Rows that do not fit wait.

    A process of the simulation advances the rows from one end of a rollout to the next; whoever changes what the engine
    has to do wakes it.

    Args:
        environment: the simulation.
        roofline: how long a decode step takes.
        prompt_tokens: in front of each row.
        most_rows: that the cache has room for.
        on_end: called with each rollout that is finished.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        roofline: Roofline,
        *,
        prompt_tokens: float,
        most_rows: int,
        on_end: Callable[[SimulatedRollout], None],
    ) -> None:
        self._environment = environment
        self._roofline = roofline
        self._prompt_tokens = prompt_tokens
        self._prefill_seconds = roofline.score_seconds(roofline.forward_flops(prompt_tokens, output=False), 1)
        self._most_rows = most_rows
        self._on_end = on_end
        self.version = 0
        self._waiting: deque[SimulatedRollout] = deque()
        self._rows: list[_Row] = []
        self._began_sum = 0.0
        self._position = 0.0  # tokens that a row which was there from the start would have
        self._looked_at = 0.0
        self._blocked_until = 0.0
        self._seconds_a_token = 0.0
        self._numbers = 0
        self._prompts_read: set[int] = set()
        self.busy_seconds = 0.0
        self.tokens = 0.0
        self._changed = environment.event()
        environment.process(self._generate())

    @property
    def load(self) -> int:
        """Rows that it has or that wait for it."""
        return len(self._rows) + len(self._waiting)

    def play(self, rollouts: list[SimulatedRollout]) -> None:
        """Begin these when there is room."""
        self._catch_up()
        self._waiting.extend(rollouts)
        self._wake()

    def cancel(self, stale: Callable[[SimulatedRollout], bool]) -> list[SimulatedRollout]:
        """Drop the rows for which `stale` holds; they are not reported as ended."""
        self._catch_up()
        dropped = [row for row in self._rows if stale(row.rollout)]
        if dropped:
            self._rows = [row for row in self._rows if not stale(row.rollout)]
            heapq.heapify(self._rows)
            self._began_sum = sum(row.began_at for row in self._rows)
            for row in dropped:
                row.rollout.cancelled = True
        self._wake()
        return [row.rollout for row in dropped]

    def forget(self, groups: set[int]) -> None:
        """Drop what waits of these groups."""
        self._waiting = deque(rollout for rollout in self._waiting if rollout.group not in groups)

    def adopt(self, version: int, seconds: float) -> None:
        """Take new weights, which stops it for so long."""
        self._catch_up()
        self.version = version
        self._block(seconds)
        self._wake()

    def _wake(self) -> None:
        if not self._changed.triggered:
            self._changed.succeed()

    def _block(self, seconds: float) -> None:
        self._blocked_until = max(self._blocked_until, self._environment.now) + seconds

    def _generate(self) -> Generator[simpy.Event, None, None]:
        """Wait for the next row that ends or for a change, tell of the rows that ended, and go on."""
        while True:
            self._admit()
            self._changed = self._environment.event()
            if self._rows:
                yield self._changed | self._environment.timeout(self._plan_seconds())
            else:
                yield self._changed
            self._catch_up()
            ended = self._take_ended()
            self._admit()
            for rollout in ended:
                self._on_end(rollout)

    def _catch_up(self) -> None:
        """Advance all rows to the present."""
        now = self._environment.now
        if self._rows:
            working = now - max(self._looked_at, min(self._blocked_until, now))
            if self._seconds_a_token and working > 0:
                made = working / self._seconds_a_token
                self._position += made
                self.tokens += made * len(self._rows)
            self.busy_seconds += now - self._looked_at
        self._looked_at = now

    def _admit(self) -> None:
        """Begin what waits as far as there is room, each row with the weights of this moment."""
        while self._waiting and len(self._rows) < self._most_rows:
            rollout = self._waiting.popleft()
            rollout.version = self.version
            if rollout.group not in self._prompts_read:  # siblings share their prompt
                self._prompts_read.add(rollout.group)
                self._block(self._prefill_seconds)
            self._numbers += 1
            row = _Row(self._position + rollout.tokens, self._numbers, rollout, self._position)
            heapq.heappush(self._rows, row)
            self._began_sum += self._position

    def _plan_seconds(self) -> float:
        """Seconds until the first row ends, or the stride is over; the pace at which rows go until then."""
        made = self._position - self._began_sum / len(self._rows)
        self._seconds_a_token = self._roofline.decode_seconds(len(self._rows), self._prompt_tokens + made)
        tokens = min(_STRIDE_TOKENS, max(0.0, self._rows[0].ends_at - self._position))
        blocked = max(0.0, self._blocked_until - self._environment.now)
        return blocked + tokens * self._seconds_a_token

    def _take_ended(self) -> list[SimulatedRollout]:
        ended = []
        while self._rows and self._rows[0].ends_at <= self._position + 1e-6:
            row = heapq.heappop(self._rows)
            self._began_sum -= row.began_at
            ended.append(row.rollout)
        return ended
