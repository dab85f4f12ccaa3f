"""The order in which a run asks for rows: position in, group identity out, nothing to checkpoint."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lecritique.core.ids import GroupId
from lecritique.core.seeds import derive_seed, uniforms


class DataStream:
    """Endless epochs over `rows` rows. The attempt of a group is its epoch, so no identity occurs twice.

    Every epoch is a permutation of its own (the identity when not shuffled), fixed by (seed, epoch).
    """

    def __init__(self, rows: int, seed: int, shuffle: bool = True) -> None:
        if rows < 1:
            raise ValueError(f"a data stream over {rows} rows is empty, expected at least 1")
        self.rows = rows
        self.seed = seed
        self.shuffle = shuffle

    def group(self, position: int) -> GroupId:
        """The group at `position`, counted from 0 over all epochs."""
        if position < 0:
            raise ValueError(f"position {position} is negative, expected 0 or more")
        epoch, place = divmod(position, self.rows)
        if not self.shuffle:
            return GroupId(row=place, attempt=epoch)
        return GroupId(row=int(_permutation(self.rows, self.seed, epoch)[place]), attempt=epoch)

    def groups(self, start: int, count: int) -> tuple[GroupId, ...]:
        """The groups at positions `start` to `start + count - 1`."""
        return tuple(self.group(position) for position in range(start, start + count))


@lru_cache(maxsize=8)
def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    keys = uniforms(derive_seed(seed, "tasks.stream", attempt=epoch), np.arange(rows))
    return np.argsort(keys, kind="stable")
