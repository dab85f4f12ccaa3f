"""Explained variance by relative position in the response, and by turn.

Ten bins of (i + 1/2) / T for the 0-based action index i of a response with T action tokens (VP G.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.saved_rollouts import RolloutTable
from lecritique.core.metrics import ValueFit
from lecritique.core.moments import Moments
from lecritique.numerics.statistics.positions import POSITION_BINS, position_bins

__all__ = ["POSITION_COLUMNS", "TURNS", "PlaceFits", "position_bins", "value_fit_by_place", "value_fit_by_position"]

POSITION_COLUMNS = (
    "step", "row", "attempt", "member", "segment_index", "action_mask", "turn_index", "values", "value_targets",
)  # fmt: skip
TURNS = 12

_PerToken = list[NDArray[np.float64] | None]
_Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PlaceFits:
    """The fit in each tenth of the response, and in each turn; the last turn holds all later ones."""

    positions: tuple[ValueFit, ...]
    turns: tuple[ValueFit, ...]


def value_fit_by_place(tables: Iterable[RolloutTable], bins: int = POSITION_BINS, turns: int = TURNS) -> PlaceFits:
    """Values against value targets in each bin and turn, pooled over all action tokens of `tables`.

    An episode in several segments is one response. Episodes without values are left out, as are tokens whose
    value or target is not finite.
    """
    positions, by_turn = [ValueFit()] * bins, [ValueFit()] * turns
    for table in tables:
        V, G, place, turn = _tokens(table, bins)
        positions = _merged(positions, V, G, place)
        by_turn = _merged(by_turn, V, G, np.clip(turn, 0, turns - 1))
    last = max((index for index, fit in enumerate(by_turn) if fit.target.count), default=-1)
    return PlaceFits(positions=tuple(positions), turns=tuple(by_turn[: last + 1]))


def value_fit_by_position(tables: Iterable[RolloutTable], bins: int = POSITION_BINS) -> tuple[ValueFit, ...]:
    """The bins of `value_fit_by_place`."""
    return value_fit_by_place(tables, bins).positions


def _tokens(table: RolloutTable, bins: int) -> tuple[NDArray[np.float64], NDArray[np.float64], _Integers, _Integers]:
    """Value, target, bin and turn of every action token [N] that has both numbers."""
    names = ("values", "value_targets", "turn_index")
    columns = [table.per_token(name) for name in names]
    masks = table.per_token("action_mask")
    parts: list[list[NDArray[np.float64]]] = [[], [], [], []]
    for _, rows in table.episodes():
        V, G, turn = (_joined(column, masks, rows) for column in columns)
        if V is None or G is None:
            continue
        known = [V, G, position_bins(len(V), bins), np.zeros(len(V)) if turn is None else turn]
        for part, column in zip(parts, known, strict=True):
            part.append(column)
    V, G, place, turn = (np.concatenate(part) if part else np.zeros(0) for part in parts)
    known = np.isfinite(V) & np.isfinite(G)
    whole = np.nan_to_num(turn[known], nan=0.0, posinf=0.0, neginf=0.0)
    return V[known], G[known], place[known].astype(np.int64), whole.astype(np.int64)


def _merged(fits: list[ValueFit], V: NDArray[np.float64], G: NDArray[np.float64], place: _Integers) -> list[ValueFit]:
    """`fits` with the tokens [N] of each place added."""
    errors, targets = _moments(G - V, place, len(fits)), _moments(G, place, len(fits))
    return [fit.merge(ValueFit(e, t)) for fit, e, t in zip(fits, errors, targets, strict=True)]


def _moments(values: NDArray[np.float64], place: _Integers, places: int) -> list[Moments]:
    """Moments of the values [N] of each place, in two passes as `Moments.of` takes them."""
    counts = np.bincount(place, minlength=places)
    means = np.bincount(place, weights=values, minlength=places) / np.maximum(counts, 1)
    squares = np.bincount(place, weights=np.square(values - means[place]), minlength=places)
    return [Moments(int(n), float(mean), float(m2)) for n, mean, m2 in zip(counts, means, squares, strict=True)]


def _joined(column: _PerToken, masks: _PerToken, rows: list[int]) -> NDArray[np.float64] | None:
    """The column's action tokens over the segments of an episode, None when a segment has none saved."""
    parts = []
    for row in rows:
        values, mask = column[row], masks[row]
        if values is None or mask is None:
            return None
        parts.append(values[mask == 1])
    return np.concatenate(parts)
