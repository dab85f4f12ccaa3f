"""The roles of an asynchronous run as threads of one process: rollout engine, policy trainer, value trainer.

The value evaluator is a role too and lives in critic/serving.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from lecritique.core.errors import LecritiqueError, RoleFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import GroupRequest
from lecritique.core.trajectory import PolicyBatch, ValueSample
from lecritique.core.weights import WeightManifest
from lecritique.critic.system import ValueSystem
from lecritique.policy.trainer import PolicyTrainer
from lecritique.rollout.pump import RolloutPump
from lecritique.runtime.events import (
    CriticIdle,
    CriticTrained,
    Event,
    GroupFinished,
    MemberEnded,
    PolicyStepped,
    RoleFailed,
)
from lecritique.runtime.roles import ThreadRole
from lecritique.runtime.timeline import Timeline

Emit = Callable[[Event], None]

# How long an engine with threads of its own is left alone before new commands are looked at.
_LISTEN_SECONDS = 0.02


def reported(emit: Emit) -> Callable[[str, Exception], None]:
    """What a role does with the exception that ended it."""
    return lambda role, error: emit(RoleFailed(role=role, error=error))


def as_role_failure(role: str, error: BaseException) -> BaseException:
    """One of our own errors as it is, with its exit code; anything else as a failure of the role."""
    if isinstance(error, LecritiqueError) or not isinstance(error, Exception):
        return error
    return RoleFailure(f"the {role} failed with {type(error).__name__}: {error}")


class RolloutRole(ThreadRole):
    """Plays groups. The engine, the environment and the renderer belong to its thread alone.

    Args:
        pump: over the engine.
        request: the request of a group.
        emit: takes what has happened.
        timeline: where spans of work go.
    """

    def __init__(
        self, pump: RolloutPump, *, request: Callable[[GroupId], GroupRequest], emit: Emit, timeline: Timeline
    ) -> None:
        super().__init__("rollout engine", on_failure=reported(emit), timeline=timeline)
        self._pump = pump
        self._request = request
        self._emit = emit
        self._cancelled: set[GroupId] = set()

    def play(self, group_ids: Sequence[GroupId]) -> None:
        """Begin these groups, all before any of them goes on."""
        self.tell(self._play, tuple(group_ids))

    def adopt(self, manifest: WeightManifest, *, oldest_useful: int) -> None:
        """Sample from these weights; give up groups with tokens of versions before `oldest_useful`."""
        # At once, not in turn: the store holds the version only until the policy's next one.
        self._pump.engine.adopt(manifest)
        self.tell(self._give_up, oldest_useful)

    def _play(self, group_ids: Sequence[GroupId]) -> None:
        self._pump.start([self._request(group_id) for group_id in group_ids])

    def _give_up(self, oldest_useful: int) -> None:
        for group_id, version in self._pump.oldest_versions().items():
            if version < oldest_useful:
                self._pump.cancel(group_id)
                self._cancelled.add(group_id)

    def _work(self) -> bool:
        if not self._pump.open:
            return False
        with self.timeline.span(self.name, "generate"):
            finished = self._pump.pump(wait_seconds=_LISTEN_SECONDS)
        for rollout in self._pump.ended_early():
            self._emit(MemberEnded(rollout=rollout))
        for rollouts in finished:
            group_id = rollouts[0].rollout_id.group
            self._emit(GroupFinished(rollouts=rollouts, cancelled=group_id in self._cancelled))
            self._cancelled.discard(group_id)
        return bool(self._pump.open)

    def _close(self) -> None:
        self._pump.engine.close()

    def _figures(self) -> dict[str, Any]:
        return {"groups_open": len(self._pump.open), "groups_given_up": len(self._cancelled)}


class PolicyRole(ThreadRole):
    """Trains on one policy batch at a time and publishes what comes of it."""

    def __init__(self, trainer: PolicyTrainer, *, emit: Emit, timeline: Timeline) -> None:
        super().__init__("policy trainer", on_failure=reported(emit), timeline=timeline)
        self._trainer = trainer
        self._emit = emit

    def train(self, batch: PolicyBatch) -> None:
        """Train on this batch next."""
        self.tell(self._train, batch)

    def _train(self, batch: PolicyBatch) -> None:
        before = self._trainer.version
        with self.timeline.span(self.name, "train"):
            metrics = self._trainer.step(batch)
        manifest = self._trainer.publish() if self._trainer.version > before else None
        self._emit(PolicyStepped(metrics=metrics, manifest=manifest))

    def _work(self) -> bool:
        return False

    def _figures(self) -> dict[str, Any]:
        return {"version": self._trainer.version, "optimizer_steps": self._trainer.steps}


class ValueTrainingRole(ThreadRole):
    """Trains the critic from replay at its own pace; nobody waits for it.

    Args:
        values: trainer, replay and the queue before it.
        emit: takes what has happened.
        timeline: where spans of work go.
        exclusive: entered for each optimizer step; keeps a colocated evaluator out meanwhile.
        pause: called before each update; a benchmark slows the trainer with it.
    """

    def __init__(
        self,
        values: ValueSystem,
        *,
        emit: Emit,
        timeline: Timeline,
        exclusive: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("value trainer", on_failure=reported(emit), timeline=timeline)
        self._values = values
        self._emit = emit
        self._exclusive = exclusive
        self._pause = pause
        self._batches = 0
        self._lock = threading.Lock()
        self._arrived: list[list[ValueSample]] = []
        self._dropped = 0

    def learn(self, samples: Sequence[ValueSample]) -> None:
        """Take the scored rollouts of one batch, and owe the updates of one batch.

        A trainer that does not keep up finds no more than a full replay of them waiting: the oldest go and are counted.
        """
        with self._lock:
            self._arrived.append(list(samples))
            too_many = sum(map(len, self._arrived)) - self._values.replay.capacity
            for batch in self._arrived:
                dropped = len(batch[: max(0, too_many)])
                del batch[:dropped]
                self._dropped += dropped
                too_many -= dropped
        self.tell(self._take_arrived)

    def _take_arrived(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
            dropped, self._dropped = self._dropped, 0
        self._values.count_dropped(dropped)
        for samples in arrived:
            self._values.take(samples)
        self._batches += len(arrived)

    def _close(self) -> None:
        with self._lock:
            self._values.count_dropped(self._dropped)

    def _figures(self) -> dict[str, Any]:
        return {"batches": self._batches, **self._values.metrics()}

    def _work(self) -> bool:
        if not self._values.owes:
            self._emit(CriticIdle(batches=self._batches))
            return False
        self._pause()
        with self._exclusive(), self.timeline.span(self.name, "train"):
            metrics = self._values.turn()
        if metrics is not None:
            self._emit(CriticTrained(metrics=metrics))
        return True
