"""The ledger: every group (row, attempt) that was asked for ends with exactly one outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from lecritique.core.ids import GroupId
from lecritique.core.rollout import Rollout
from lecritique.core.trajectory import PolicyBatch

Outcome = Literal["trained", "stale", "warmup", "failed", "filtered"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Ledger:
    """Positions of the data stream that were asked for, those still open, and how the others ended.

    Outcomes: `trained` (the policy was updated on it), `stale` (older than the bound), `warmup` (its batch was withheld
    while the critic was cold), `failed` (no member has a reward), `filtered` (too small for its baseline, or without
    action tokens).
    """

    def __init__(self) -> None:
        self._write: Callable[[Mapping[str, Any]], None] = lambda record: None
        self._open: dict[GroupId, int] = {}
        self._next_position = 0
        self.counts: Counter[str] = Counter()

    def write_with(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        """Have `write` called with one record per outcome, ready for JSON."""
        self._write = write

    @property
    def next_position(self) -> int:
        """The stream position that was not asked for yet."""
        return self._next_position

    @property
    def open(self) -> Mapping[GroupId, int]:
        """Groups without an outcome and their stream positions."""
        return dict(self._open)

    def issue(self, group_id: GroupId, position: int) -> None:
        """A group is asked for; ValueError unless it is the next of the stream."""
        if position != self._next_position or group_id in self._open:
            raise ValueError(f"group {group_id} at position {position}: expected position {self._next_position}")
        self._open[group_id] = position
        self._next_position += 1

    def position(self, group_id: GroupId) -> int:
        """Where in the stream an open group stands."""
        return self._open[group_id]

    def close(self, group_id: GroupId, outcome: Outcome, *, step: int, **fields: float | None) -> None:
        """A group has ended; KeyError when it is not open: no group has two outcomes."""
        position = self._open.pop(group_id)
        self.counts[outcome] += 1
        self._write(
            {
                "row": group_id.row,
                "attempt": group_id.attempt,
                "position": position,
                "outcome": outcome,
                "step": step,
                **fields,
            }
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint, ready for JSON."""
        return {
            "next_position": self._next_position,
            "open": [[group_id.row, group_id.attempt, position] for group_id, position in self._open.items()],
            "counts": dict(self.counts),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; the open groups will be asked for again."""
        self._next_position = int(state["next_position"])
        self._open = {GroupId(row, attempt): position for row, attempt, position in state["open"]}
        self.counts = Counter({str(name): int(count) for name, count in state["counts"].items()})


def outcome_of(rollouts: Sequence[Rollout], policy_batch: PolicyBatch | None) -> Outcome:
    """How a group of a batch ended.

    Args:
        rollouts: all members of the group.
        policy_batch: what the policy was trained on of the batch; None when a cold critic withheld it.
    """
    if all(rollout.reward is None for rollout in rollouts):
        return "failed"
    if policy_batch is None:
        return "warmup"
    trained = {member.trajectory.group_id for member in policy_batch.members}
    return "trained" if rollouts[0].rollout_id.group in trained else "filtered"
