"""The critic's replay buffer (LC appendix B): first in, first out; at most N uses of each rollout."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from lecritique.core.errors import CheckpointError

T = TypeVar("T")


@dataclass(frozen=True)
class ReplayCounts:
    """What has happened so far. `attempts` counts how often entries were handed out."""

    admitted: int = 0
    attempts: int = 0
    retired: int = 0
    evicted: int = 0


class ReplayBuffer(Generic[T]):
    """Holds rollouts (with all their segments) in order of admission.

    Admission beyond `capacity` evicts the oldest. It is filling until `refill_size` are held, then
    hands out batches while a batch remains, then fills again. A batch is drawn uniformly without
    replacement and handed out in order of admission; being drawn does not refresh an entry's age;
    after `max_uses` draws it retires.

    Args:
        batch_size: rollouts of a batch.
        capacity: rollouts held at most; by default max_uses * batch_size.
        refill_size: rollouts held before sampling starts; by default the capacity.
        max_uses: how often a rollout is trained on at most (N).
        seed: of the draws.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        capacity: int | None = None,
        refill_size: int | None = None,
        max_uses: int = 1,
        seed: int = 0,
    ) -> None:
        self.batch_size = batch_size
        self.capacity = max_uses * batch_size if capacity is None else capacity
        self.refill_size = self.capacity if refill_size is None else refill_size
        self.max_uses = max_uses
        if not batch_size <= self.refill_size <= self.capacity:
            raise ValueError(
                f"replay needs batch_size <= refill_size <= capacity, "
                f"got {batch_size}, {self.refill_size} and {self.capacity}"
            )
        self.counts = ReplayCounts()
        self._entries: OrderedDict[Hashable, T] = OrderedDict()
        self._uses: dict[Hashable, int] = {}
        self._sampling = False
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def ready(self) -> bool:
        """Whether a batch can be handed out now."""
        return self._sampling and len(self) >= self.batch_size

    @property
    def wanted(self) -> int:
        """How many rollouts to admit in one turn: a batch when ready, else what is missing to be."""
        return self.batch_size if self.ready else max(0, self.refill_size - len(self))

    def add(self, key: Hashable, entry: T) -> None:
        """Admit one rollout; ValueError when its key is held already."""
        if key in self._entries:
            raise ValueError(f"rollout {key} is already in replay")
        self._entries[key] = entry
        self._uses[key] = 0
        self.counts = replace(self.counts, admitted=self.counts.admitted + 1)
        if len(self) > self.capacity:
            self._drop(next(iter(self._entries)))
            self.counts = replace(self.counts, evicted=self.counts.evicted + 1)
        self._sampling = self._sampling or len(self) >= self.refill_size

    def sample(self) -> tuple[T, ...]:
        """One batch, in order of admission; ValueError when not ready."""
        if not self.ready:
            raise ValueError(f"replay is not ready: {len(self)} rollouts held, {self.refill_size} needed to start")
        chosen = np.sort(self._rng.choice(len(self), size=self.batch_size, replace=False))
        keys = list(self._entries)
        batch = tuple(self._entries[keys[index]] for index in chosen)
        for index in chosen:
            self._use(keys[index])
        self._sampling = len(self) >= self.batch_size
        return batch

    def state(self, encode: Callable[[Sequence[T]], Any]) -> dict[str, Any]:
        """Everything that a resumed run needs: entries in order of admission, their uses, counts, and the draws' state.

        Args:
            encode: makes the entries fit for a checkpoint.
        """
        return {
            "entries": encode(tuple(self._entries.values())),
            "uses": [self._uses[key] for key in self._entries],
            "sampling": self._sampling,
            "counts": asdict(self.counts),
            "random": self._rng.bit_generator.state,
        }

    def restore(
        self, state: Mapping[str, Any], decode: Callable[[Any], Sequence[T]], key_of: Callable[[T], Hashable]
    ) -> None:
        """Take over a saved state.

        Args:
            state: of a buffer with the same settings.
            decode: undoes `encode`.
            key_of: the key that an entry was admitted under.

        Raises:
            CheckpointError: more entries than fit, or entries and uses that do not belong together.
        """
        entries, uses = decode(state["entries"]), state["uses"]
        if len(entries) != len(uses) or len(entries) > self.capacity:
            raise CheckpointError(
                f"the saved replay holds {len(entries)} rollouts with {len(uses)} counts of use, this run has room for "
                f"{self.capacity}"
            )
        self._entries = OrderedDict((key_of(entry), entry) for entry in entries)
        self._uses = dict(zip(self._entries, (int(count) for count in uses), strict=True))
        self._sampling = bool(state["sampling"])
        self.counts = ReplayCounts(**state["counts"])
        self._rng.bit_generator.state = state["random"]

    def _use(self, key: Hashable) -> None:
        self._uses[key] += 1
        self.counts = replace(self.counts, attempts=self.counts.attempts + 1)
        if self._uses[key] >= self.max_uses:
            self._drop(key)
            self.counts = replace(self.counts, retired=self.counts.retired + 1)

    def _drop(self, key: Hashable) -> None:
        del self._entries[key]
        del self._uses[key]
