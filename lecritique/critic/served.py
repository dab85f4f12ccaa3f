"""The weights that the evaluator thread serves: copies of its own (`DoubleBuffered`), or the trainer's (`Colocated`).

The service leases a model for a whole batch. While a lease is held its weights and its version do not change, however
many forward passes the batch takes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

from lecritique.core.weights import WeightManifest
from lecritique.models.adapters import copied, load_own_weights
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import WeightStore


class Leased(NamedTuple):
    """A critic that does not change while it is leased."""

    model: ValueModel
    version: int


class ServedModel(Protocol):
    """Where the evaluator thread gets its weights from."""

    @property
    def version(self) -> int:
        """The version that a lease taken now would have, or an older one; it never falls."""
        ...

    @property
    def swaps(self) -> int:
        """How often the served weights have changed."""
        ...

    def leased(self) -> AbstractContextManager[Leased]:
        """The model for one batch; one lease at a time."""
        ...

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve this version after the batch that is being scored."""
        ...

    def on_change(self, call: Callable[[], None]) -> None:
        """Have `call` called, without a lock held, after each change of version."""
        ...


class DoubleBuffered:
    """Placement `dedicated`: one copy serves while the other is loaded; then they change places between batches.

    A load that fails leaves the served copy and its version as they were (known fault 41).

    Args:
        model: the copy that serves first; the spare is made from it. Neither is shared with the trainer.
        store: where `adopt` opens published versions; not needed by those who only `load`.
        version: of the weights in `model`; -1 before anything was adopted.
        spare: in place of a copy, where copies live elsewhere.
    """

    def __init__(
        self,
        model: ValueModel,
        store: WeightStore | None = None,
        *,
        version: int = -1,
        spare: ValueModel | None = None,
    ) -> None:
        self._serving = model
        self._spare = copied(model) if spare is None else spare
        self._store = store
        self._version = version
        self._ready: int | None = None
        self._leases = 0
        self._swaps = 0
        self._changed = threading.Condition()
        self._loading = threading.Lock()
        self._tell: Callable[[], None] = lambda: None

    @property
    def version(self) -> int:
        """The version that serves."""
        return self._version

    @property
    def swaps(self) -> int:
        """How often the two copies have changed places."""
        return self._swaps

    def on_change(self, call: Callable[[], None]) -> None:
        """Have `call` called after each swap."""
        self._tell = call

    @contextmanager
    def leased(self) -> Iterator[Leased]:
        """The serving copy; no swap happens inside."""
        with self._changed:
            self._leases += 1
            leased = Leased(self._serving, self._version)
        try:
            yield leased
        finally:
            with self._changed:
                self._leases -= 1
                swapped = self._swap_if_possible()
                self._changed.notify_all()
            if swapped:
                self._tell()

    def adopt(self, manifest: WeightManifest) -> None:
        """Load a published version into the spare and serve it after the batch being scored.

        Returns when it is loaded; a version that is not newer than one adopted before is left aside.

        Raises:
            KeyError: the store no longer holds it; what served goes on serving.
        """
        if self._store is None:
            raise ValueError("this evaluator was built without a weight store: load its weights instead")
        state = self._store.open(manifest)
        self.load(manifest.version, lambda spare: load_own_weights(spare, state))

    def load(self, version: int, fill: Callable[[ValueModel], object]) -> None:
        """Let `fill` write version `version` into the spare copy, and serve it after the batch being scored.

        What `fill` raises is passed on, and the old version goes on serving under its number.
        """
        with self._loading:
            with self._changed:
                # A spare that is full and not yet serving would be lost: at most one batch to wait.
                self._changed.wait_for(lambda: self._ready is None)
            if version <= self._version:
                return
            fill(self._spare)
            with self._changed:
                self._ready = version
                swapped = self._swap_if_possible()
        if swapped:
            self._tell()

    def _swap_if_possible(self) -> bool:
        if self._ready is None or self._leases:
            return False
        self._serving, self._spare = self._spare, self._serving
        self._version, self._ready = self._ready, None
        self._swaps += 1
        return True


class Colocated:
    """Placement `colocated`: the trainer's own weights serve; whole steps alternate with whole batches.

    Turns are given in the order in which they were asked for, so neither side starves.

    Args:
        model: the trainer's.
        version: what the trainer's version is now; read between steps.
    """

    def __init__(self, model: ValueModel, version: Callable[[], int]) -> None:
        self._model = model
        self._version_now = version
        self._version = version()
        self._swaps = 0
        self._turns = _Turns()
        self._tell: Callable[[], None] = lambda: None

    @property
    def version(self) -> int:
        """The trainer's version after its latest whole step."""
        return self._version

    @property
    def swaps(self) -> int:
        """How many of the trainer's turns made a new version."""
        return self._swaps

    def on_change(self, call: Callable[[], None]) -> None:
        """Have `call` called after each of the trainer's turns that made a new version."""
        self._tell = call

    @contextmanager
    def leased(self) -> Iterator[Leased]:
        """The trainer's model, while the trainer waits."""
        with self._turns.turn():
            yield Leased(self._model, self._version)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """The trainer's turn: no batch is scored inside, so a step is whole for every reader."""
        with self._turns.turn():
            try:
                yield
            finally:
                # Before the turn is over: the next batch must not name the version before.
                changed = self._refreshed()
        if changed:
            self._tell()

    def adopt(self, manifest: WeightManifest) -> None:
        """Nothing to load, the trainer's model holds what it published; by the trainer, between or inside its turns."""
        if self._refreshed():
            self._tell()

    def _refreshed(self) -> bool:
        now = self._version_now()
        changed = now != self._version
        self._version = now
        self._swaps += changed
        return changed


class _Turns:
    """A lock that is handed on in the order of asking."""

    def __init__(self) -> None:
        self._asked: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self) -> Iterator[None]:
        mine = object()
        with self._changed:
            self._asked.append(mine)
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._asked[0] is mine)
            yield
        finally:
            # Also when the wait itself was interrupted: a turn that nobody takes would block all others.
            with self._changed:
                self._asked.remove(mine)
                self._changed.notify_all()
