"""The critic in actors: copies that are loaded and asked together, on the caller's thread or by an evaluator thread.

Requests are queued, batched and bounded in the run's process, as without actors (`critic/serving.py`); token rows go to
the actors and values come back. Several evaluators share the rows of a batch and answer it from one version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.actors.cluster import ActorLost, TrainerLost
from lecritique.actors.crew import Member
from lecritique.core.trajectory import ValuePrediction, ValueRequest
from lecritique.core.weights import WeightManifest
from lecritique.critic.evaluator import predictions, rows_of
from lecritique.critic.served import DoubleBuffered, Leased
from lecritique.models.scoring import TokenRow

Values = list[NDArray[np.float64]]


class RemoteCritic:
    """One copy of the critic on every evaluator.

    Args:
        members: hold a `ScoringHost`.
        slot: which of its copies.
    """

    def __init__(self, members: Sequence[Member], slot: int = 0) -> None:
        self._members = members
        self._slot = slot
        self._manifest: WeightManifest | None = None
        for member in members:
            member.prepare = partial(_both, member.prepare, partial(self._load_into, member))

    def load(self, manifest: WeightManifest) -> None:
        """Put a version into this copy everywhere; nobody may ask it meanwhile."""
        self._manifest = manifest
        self._everywhere([("load", (self._slot, manifest)) for _ in self._members])

    def values(self, rows: Sequence[TokenRow], *, max_tokens: int) -> Values:
        """`scoring.values`, rows shared out by the tokens that are read."""
        parts = shared_out([row.read_tokens for row in rows], len(self._members))
        calls = [("values", (self._slot, [rows[index] for index in part], max_tokens)) for part in parts]
        found: dict[int, NDArray[np.float64]] = {}
        for part, scored in zip(parts, self._everywhere(calls), strict=True):
            found |= dict(zip(part, scored, strict=True))
        return [found[index] for index in range(len(rows))]

    def _everywhere(self, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """What each evaluator answers to its call, all at the same time; one that ends is replaced and asked again.

        Raises:
            RoleFailure: one has ended and no replacement is left.
        """
        begun = [
            (member, member.incarnation, member.call(method, *arguments), method, arguments)
            for member, (method, arguments) in zip(self._members, calls, strict=False)
        ]
        answers = []
        for member, incarnation, future, method, arguments in begun:
            try:
                answers.append(future.result())
            except ActorLost as lost:
                member.replace(incarnation, lost)
                answers.append(member.persistently(partial(member.ask, method, *arguments)))
        return answers

    def _load_into(self, member: Member) -> None:
        if self._manifest is not None:
            # One that is no longer held is of a spare copy, which a newer version is about to be put into.
            with suppress(KeyError):
                member.ask("load", self._slot, self._manifest)


class RemoteEvaluator:
    """Scores on the caller's thread: the synchronous form.

    Args:
        critic: the copy that serves.
        max_tokens: padded tokens of one forward pass.
        context_length: longest sequence, context included, that the critic can read.
    """

    def __init__(self, critic: RemoteCritic, *, max_tokens: int, context_length: int) -> None:
        self._critic = critic
        self._max_tokens = max_tokens
        self._context_length = context_length
        self.version = -1

    def adopt(self, manifest: WeightManifest) -> None:
        """Serve this version from now on."""
        self._critic.load(manifest)
        self.version = manifest.version

    def score(self, requests: Sequence[ValueRequest]) -> list[ValuePrediction]:
        """Values of all requests from the current version, in their order; see `ValueEvaluator.score`."""
        rows = rows_of(requests, context_length=self._context_length)
        scored = self._critic.values(rows, max_tokens=self._max_tokens)
        return predictions(requests, scored, version=self.version)


class RemoteCopies:
    """Two copies on every evaluator, one serving while the other is loaded: `DoubleBuffered` over actors."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._buffered = DoubleBuffered(RemoteCritic(members, 0), spare=RemoteCritic(members, 1))  # type: ignore[arg-type]

    @property
    def version(self) -> int:
        """The version that serves."""
        return self._buffered.version

    @property
    def swaps(self) -> int:
        """How often the two have changed places."""
        return self._buffered.swaps

    def leased(self) -> AbstractContextManager[Leased]:
        """The copy that serves."""
        return self._buffered.leased()

    def adopt(self, manifest: WeightManifest) -> None:
        """Load a version into the other copy and serve it after the batch that is being scored."""
        self._buffered.load(manifest.version, lambda spare: spare.load(manifest))

    def on_change(self, call: Callable[[], None]) -> None:
        """Have `call` called after each swap."""
        self._buffered.on_change(call)


class TrainersCritic:
    """The value trainer's own weights, where the evaluator is colocated with it."""

    def __init__(self, trainer: Member) -> None:
        self._trainer = trainer

    def values(self, rows: Sequence[TokenRow], *, max_tokens: int) -> Values:
        """`scoring.values` of the model that is being trained.

        Raises:
            TrainerLost: its process has ended.
        """
        try:
            # Of `runtime.micro_batch_tokens` each, as all the trainer's forward passes are.
            scored: Values = self._trainer.ask("values", rows)
        except ActorLost as lost:
            raise TrainerLost(f"the process of the {self._trainer.name} has ended ({lost}).") from lost
        return scored


def remote_values(model: Any, rows: Sequence[TokenRow], *, max_tokens: int) -> Values:
    """`scoring.values` of a critic that lives in actors."""
    scored: Values = model.values(rows, max_tokens=max_tokens)
    return scored


def shared_out(tokens: Sequence[int], shares: int) -> list[list[int]]:
    """Indices of rows for each of at most `shares` readers, about as many tokens each; no reader gets nothing.

    With one reader all rows keep their order.
    """
    if shares == 1:
        return [list(range(len(tokens)))]
    parts: list[list[int]] = [[] for _ in range(min(shares, len(tokens)))]
    loads = [0] * len(parts)
    for index in sorted(range(len(tokens)), key=lambda each: (-tokens[each], each)):
        least = loads.index(min(loads))
        parts[least].append(index)
        loads[least] += tokens[index]
    return [sorted(part) for part in parts]


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
