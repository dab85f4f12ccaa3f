"""Explained variance by relative position in the response.

Ten bins of (i + 1/2) / T for the 0-based action index i of a response with T action tokens (VP G.1).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.saved_rollouts import RolloutTable
from lecritique.core.metrics import ValueFit
from lecritique.core.moments import Moments
from lecritique.numerics.statistics.positions import POSITION_BINS, position_bins

__all__ = ["POSITION_COLUMNS", "position_bins", "value_fit_by_position"]

POSITION_COLUMNS = ("step", "row", "attempt", "member", "segment_index", "action_mask", "values", "value_targets")

_PerToken = list[NDArray[np.float64] | None]


def value_fit_by_position(tables: Iterable[RolloutTable], bins: int = POSITION_BINS) -> tuple[ValueFit, ...]:
    """Values against value targets in each bin, pooled over all action tokens of `tables`.

    An episode in several segments is one response. Episodes without values are left out, as are tokens whose
    value or target is not finite.
    """
    fits = [ValueFit()] * bins
    for table in tables:
        values, targets, masks = (table.per_token(name) for name in ("values", "value_targets", "action_mask"))
        for _, rows in table.episodes():
            V, G = _joined(values, masks, rows), _joined(targets, masks, rows)
            if V is None or G is None:
                continue
            place = position_bins(len(V), bins)
            known = np.isfinite(V) & np.isfinite(G)
            for b in range(bins):
                chosen = known & (place == b)
                if chosen.any():
                    seen = ValueFit(Moments.of(G[chosen] - V[chosen]), Moments.of(G[chosen]))
                    fits[b] = fits[b].merge(seen)
    return tuple(fits)


def _joined(column: _PerToken, masks: _PerToken, rows: list[int]) -> NDArray[np.float64] | None:
    """The column's action tokens over the segments of an episode, None when a segment has none saved."""
    parts = []
    for row in rows:
        values, mask = column[row], masks[row]
        if values is None or mask is None:
            return None
        parts.append(values[mask == 1])
    return np.concatenate(parts)
