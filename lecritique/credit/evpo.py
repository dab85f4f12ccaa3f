"""EVPO's state: which explained variance decides for a batch."""

from __future__ import annotations

import math
from typing import Any

from lecritique.core.errors import CheckpointError
from lecritique.core.metrics import null_if_undefined
from lecritique.credit.tether import require_contract
from lecritique.numerics.evpo import evpo_uses_critic


class EvpoController:
    """Decides batch by batch whether the critic or the group mean credits it.

    Not lagged, as published, a batch is decided by its own explained variance, and so by its own returns.
    Lagged, it is decided by that of the batch before; the first batch uses the group mean.

    Args:
        lagged: whether the previous batch decides.
    """

    def __init__(self, *, lagged: bool = False) -> None:
        self._contract = {"lagged": lagged}
        self._lagged = lagged
        self._previous_ev = math.nan

    def decide(self, current_ev: float) -> bool:
        """Whether the critic credits this batch, whose explained variance is `current_ev`; call once per batch."""
        decisive = self._previous_ev if self._lagged else current_ev
        self._previous_ev = current_ev
        return evpo_uses_critic(decisive)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, ready for JSON (an undefined EV is null)."""
        return {"contract": dict(self._contract), "previous_ev": null_if_undefined(self._previous_ev)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a saved state.

        Raises:
            CheckpointError: the state was saved under another contract, or lacks an entry.
        """
        require_contract("EVPO", state.get("contract"), self._contract)
        if "previous_ev" not in state:
            raise CheckpointError("the saved EVPO state is incomplete: previous_ev is missing")
        saved = state["previous_ev"]
        self._previous_ev = math.nan if saved is None else float(saved)
