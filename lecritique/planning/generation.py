"""GPUs that generate, simulated: rows of one GPU advance together, by a token for each decode step."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lecritique.planning.events import Clock
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

    Args:
        clock: of the simulation.
        roofline: how long a decode step takes.
        prompt_tokens: in front of each row.
        most_rows: that the cache has room for.
        on_end: called with each rollout that is finished.
    """

    def __init__(
        self,
        clock: Clock,
        roofline: Roofline,
        *,
        prompt_tokens: float,
        most_rows: int,
        on_end: Callable[[SimulatedRollout], None],
    ) -> None:
        self._clock = clock
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
        self._plan = 0
        self._numbers = 0
        self._prompts_read: set[int] = set()
        self.busy_seconds = 0.0
        self.tokens = 0.0

    @property
    def load(self) -> int:
        """Rows that it has or that wait for it."""
        return len(self._rows) + len(self._waiting)

    def play(self, rollouts: list[SimulatedRollout]) -> None:
        """Begin these when there is room."""
        self._catch_up()
        self._waiting.extend(rollouts)
        self._admit_and_plan()

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
        self._admit_and_plan()
        return [row.rollout for row in dropped]

    def forget(self, groups: set[int]) -> None:
        """Drop what waits of these groups."""
        self._waiting = deque(rollout for rollout in self._waiting if rollout.group not in groups)

    def adopt(self, version: int, seconds: float) -> None:
        """Take new weights, which stops it for so long."""
        self._catch_up()
        self.version = version
        self._block(seconds)
        self._admit_and_plan()

    def _block(self, seconds: float) -> None:
        self._blocked_until = max(self._blocked_until, self._clock.now) + seconds

    def _catch_up(self) -> None:
        """Advance all rows to the present."""
        now = self._clock.now
        if self._rows:
            working = now - max(self._looked_at, min(self._blocked_until, now))
            if self._seconds_a_token and working > 0:
                made = working / self._seconds_a_token
                self._position += made
                self.tokens += made * len(self._rows)
            self.busy_seconds += now - self._looked_at
        self._looked_at = now

    def _admit_and_plan(self) -> None:
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
        self._plan += 1
        if not self._rows:
            return
        made = self._position - self._began_sum / len(self._rows)
        self._seconds_a_token = self._roofline.decode_seconds(len(self._rows), self._prompt_tokens + made)
        tokens = min(_STRIDE_TOKENS, max(0.0, self._rows[0].ends_at - self._position))
        blocked = max(0.0, self._blocked_until - self._clock.now)
        plan = self._plan
        self._clock.after(blocked + tokens * self._seconds_a_token, lambda: self._look(plan))

    def _look(self, plan: int) -> None:
        if plan != self._plan:  # something happened in between, and planned anew
            return
        self._catch_up()
        ended = []
        while self._rows and self._rows[0].ends_at <= self._position + 1e-6:
            row = heapq.heappop(self._rows)
            self._began_sum -= row.began_at
            ended.append(row.rollout)
        self._admit_and_plan()
        for rollout in ended:
            self._on_end(rollout)
