"""How many critic updates a policy step owes: a rate above or below 1, without drift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# A rate such as 0.1 is no binary fraction: ten steps of it owe one update, not none.
_TOLERANCE = 1e-9


class UpdateBudget:
    """Spreads `rate` updates a policy step evenly: after n steps floor(rate * n) have been owed in all.

    What is owed and cannot be made, because replay is not ready, is forgone.

    Args:
        rate: updates a step; 0.5 is one every second step, 2 is two every step.
    """

    def __init__(self, rate: float) -> None:
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(f"critic updates per policy step must be a number from 0, got {rate}")
        self._rate = rate
        self._steps = 0

    def due(self) -> int:
        """Go on by one policy step; the updates that it owes."""
        before, self._steps = self._total(self._steps), self._steps + 1
        return self._total(self._steps) - before

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, ready for JSON."""
        return {"steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state."""
        self._steps = int(state["steps"])

    def _total(self, steps: int) -> int:
        return math.floor(self._rate * steps + _TOLERANCE)
