"""GPUs that generate, simulated: rows of one GPU advance together, by a token for each decode step."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Protocol

import simpy

# How far rows go before the length of their contexts is looked at again.
_STRIDE_TOKENS = 256


class EngineCosts(Protocol):
    """Seconds of an engine's work: a roofline's, or measured ones."""

    def prefill_seconds(self, length: float) -> float:
        """So many tokens of one row that it has no keys of."""
        ...

    def decode_seconds(self, rows: int, context: float) -> float:
        """One token for each of `rows` rows with `context` tokens on average."""
        ...


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
    has to do wakes it. The embedded engine works in chunks: rows that have ended leave, and others join, only between
    two of them, and a chunk is over early when fewer than half of its rows are left (`rollout/sampler.py`).

    Args:
        environment: the simulation.
        costs: how long a decode step and reading a prompt take.
        prompt_tokens: in front of each row.
        most_rows: that the cache has room for.
        on_end: called with each rollout that is finished.
        chunk_tokens: of a chunk; 0 where rows join and leave at every token.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        costs: EngineCosts,
        *,
        prompt_tokens: float,
        most_rows: int,
        on_end: Callable[[SimulatedRollout], None],
        chunk_tokens: int = 0,
    ) -> None:
        self._environment = environment
        self._costs = costs
        self._prompt_tokens = prompt_tokens
        self._prefill_seconds = costs.prefill_seconds(prompt_tokens)
        self._most_rows = most_rows
        self._on_end = on_end
        self._chunk_tokens = chunk_tokens
        self._chunk_ends, self._chunk_rows = 0.0, 0
        self._ended: list[SimulatedRollout] = []
        self._adopting: tuple[int, float] | None = None
        self._give_up: Callable[[], None] = lambda: None
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
        return len(self._rows) + len(self._ended) + len(self._waiting)

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

    def adopt(self, version: int, seconds: float, give_up: Callable[[], None] = lambda: None) -> None:
        """Take new weights, which stops it for so long and until it has read its open rows again.

        No key survives new weights. An engine in the middle of a chunk takes them after it. `give_up` is called first,
        for rows that are not to go on.
        """
        self._catch_up()
        self._adopting, self._give_up = (version, seconds), give_up
        if not self._in_chunk:
            self._load_adopted()
        self._wake()

    @property
    def _made(self) -> float:
        """Tokens that a row has made, in the mean."""
        return self._position - self._began_sum / len(self._rows)

    @property
    def _in_chunk(self) -> bool:
        """Whether rows go on side by side, and nobody joins or leaves."""
        left = len(self._rows)
        return bool(left) and self._position < self._chunk_ends - 1e-6 and left >= self._chunk_rows // 2

    def _load_adopted(self) -> None:
        if self._adopting is None:
            return
        (self.version, seconds), self._adopting = self._adopting, None
        self._give_up()
        self._prompts_read.clear()
        again = len(self._rows) * self._costs.prefill_seconds(self._prompt_tokens + self._made) if self._rows else 0.0
        self._block(seconds + again)

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
            self._take_ended()
            if self._in_chunk:
                continue
            ended, self._ended = self._ended, []
            for rollout in ended:
                self._on_end(rollout)
            self._load_adopted()

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
        if self._in_chunk:
            return
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
        self._chunk_ends, self._chunk_rows = self._position + self._chunk_tokens, len(self._rows)

    def _plan_seconds(self) -> float:
        """Seconds until the first row ends, or the stride is over; the pace at which rows go until then."""
        self._seconds_a_token = self._costs.decode_seconds(len(self._rows), self._prompt_tokens + self._made)
        until = min(self._rows[0].ends_at, self._chunk_ends) if self._chunk_tokens else self._rows[0].ends_at
        tokens = min(_STRIDE_TOKENS, max(0.0, until - self._position))
        blocked = max(0.0, self._blocked_until - self._environment.now)
        return blocked + tokens * self._seconds_a_token

    def _take_ended(self) -> None:
        while self._rows and self._rows[0].ends_at <= self._position + 1e-6:
            row = heapq.heappop(self._rows)
            self._began_sum -= row.began_at
            self._ended.append(row.rollout)
