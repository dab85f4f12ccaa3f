"""What a run has spent: rollouts, sampled tokens, estimated FLOPs, seconds of training. And what models have read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lecritique.core.trajectory import ContextInsertion, Trajectory

# Each unit with the metric that holds its total so far.
UNITS: Mapping[str, str] = {
    "rollouts": "rollouts_total",
    "tokens": "generated_tokens_total",
    "flops": "flops_total",
    "seconds": "seconds_total",
}


@dataclass
class Reading:
    """Sequences that one role has read so far, each whole.

    `pairs` are pairs of a token and one that it attends to: T (T + 1) / 2 of a sequence of T tokens. One thread adds,
    others may look.
    """

    tokens: int = 0
    pairs: int = 0

    def add(self, lengths: Iterable[int]) -> None:
        """Sequences of so many tokens were read."""
        for length in lengths:
            self.tokens += length
            self.pairs += length * (length + 1) // 2


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Totals of a run. `seconds` are those of its steps: evaluation between steps and time off are not in them."""

    rollouts: int = 0
    tokens: int = 0
    flops: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, totals: Mapping[str, float]) -> Spent:
        """From numbers by unit, none missing."""
        return cls(
            rollouts=int(totals["rollouts"]),
            tokens=int(totals["tokens"]),
            flops=int(totals["flops"]),
            seconds=float(totals["seconds"]),
        )

    def share_of(self, limits: Mapping[str, float]) -> float:
        """The largest share of a limit that is spent; limits of 0 are none, and without any the share is 0."""
        return max((getattr(self, unit) / limits[unit] for unit in UNITS if limits.get(unit)), default=0.0)

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"rollouts": self.rollouts, "tokens": self.tokens, "flops": self.flops, "seconds": self.seconds}


def tokens_read(trajectory: Trajectory, context: ContextInsertion | None = None) -> int:
    """Tokens that a model reads to score every action token: up to the last of them, and the context before it."""
    actions = np.flatnonzero(trajectory.action_mask)
    if not len(actions):
        return 1
    return int(actions[-1]) + 1 + (0 if context is None else len(context))
