"""The order in which a run asks for rows: position in, group identity out, nothing to checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lecritique.core.ids import GroupId
from lecritique.core.seeds import derive_seed, uniforms


class DataStream:
    """Endless epochs over rows. The attempt of a group is its epoch, so no identity occurs twice.

    Every epoch is a permutation of its own (the identity when not shuffled), fixed by (seed, epoch).

    Args:
        rows: their number, for all rows of a task, or the rows themselves, for some of them.
        seed: of the order.
        shuffle: off for the order in which the rows were given.
    """

    def __init__(self, rows: int | Sequence[int], seed: int, shuffle: bool = True) -> None:
        self._chosen = None if isinstance(rows, int) else tuple(rows)
        self.rows = rows if isinstance(rows, int) else len(rows)
        if self.rows < 1:
            raise ValueError(f"a data stream over {self.rows} rows is empty, expected at least 1")
        if self._chosen is not None and len(set(self._chosen)) != self.rows:
            raise ValueError("a data stream holds a row twice, expected each row once")
        self.seed = seed
        self.shuffle = shuffle

    def group(self, position: int) -> GroupId:
        """The group at `position`, counted from 0 over all epochs."""
        if position < 0:
            raise ValueError(f"position {position} is negative, expected 0 or more")
        epoch, place = divmod(position, self.rows)
        if self.shuffle:
            place = int(_permutation(self.rows, self.seed, epoch)[place])
        return GroupId(row=place if self._chosen is None else self._chosen[place], attempt=epoch)

    def groups(self, start: int, count: int) -> tuple[GroupId, ...]:
        """The groups at positions `start` to `start + count - 1`."""
        return tuple(self.group(position) for position in range(start, start + count))


@lru_cache(maxsize=8)
def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    keys = uniforms(derive_seed(seed, "tasks.stream", attempt=epoch), np.arange(rows))
    return np.argsort(keys, kind="stable")
