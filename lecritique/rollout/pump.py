"""Plays any number of groups over one engine; groups complete in any order and a straggler holds nobody."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait

from lecritique.core.errors import EngineFailure
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import Completion, GenerateRequest, GroupRequest, Rollout
from lecritique.models.chat import ChatRenderer
from lecritique.rollout.driver import GroupDriver
from lecritique.rollout.engine import Engine
from lecritique.tasks.protocol import Environment


class RolloutPump:
    """Feeds completions to group drivers and their next requests to the engine, on the caller's thread."""

    def __init__(self, *, environment: Environment, renderer: ChatRenderer, engine: Engine) -> None:
        self._environment = environment
        self._renderer = renderer
        self.engine = engine
        self._drivers: dict[GroupId, GroupDriver] = {}
        self._pending: dict[Future[Completion], GenerateRequest] = {}
        self._ended_early: list[Rollout] = []
        # The oldest policy version in the turns that a group's members have completed.
        self._oldest: dict[GroupId, int] = {}

    @property
    def open(self) -> tuple[GroupId, ...]:
        """Groups that have started and were not handed out, in order of their start."""
        return tuple(self._drivers)

    def start(self, requests: Sequence[GroupRequest]) -> None:
        """Begin groups; ValueError when one of them is being played already."""
        for request in requests:
            if request.group_id in self._drivers:
                raise ValueError(f"group {request.group_id} is being played already")
            driver = GroupDriver(request, self._environment, self._renderer)
            self._drivers[request.group_id] = driver
            self._submit(driver.start())

    def cancel(self, group_id: GroupId) -> None:
        """Give up what a group still waits for; it then finishes with those members failed."""
        for request in [request for request in self._pending.values() if request.sequence_id.group == group_id]:
            self.engine.cancel(request.request_id)

    def oldest_versions(self) -> dict[GroupId, int]:
        """The oldest policy version in each open group's tokens, as far as any were sampled."""
        oldest = {group_id: version for group_id, version in self._oldest.items() if group_id in self._drivers}
        for request in self._pending.values():
            version = self.engine.oldest_version(request.request_id)
            if version is not None:
                group_id = request.sequence_id.group
                oldest[group_id] = min(version, oldest.get(group_id, version))
        return oldest

    def pump(self, *, wait_seconds: float | None = None) -> list[tuple[Rollout, ...]]:
        """Let the engine work for a bounded while; the groups that are complete now, in order of their start.

        Args:
            wait_seconds: how long to wait for an engine that works by itself; None waits for its next completion.
        """
        if self._pending and not self.engine.advance():
            wait(self._pending, timeout=wait_seconds, return_when=FIRST_COMPLETED)
        # In order of submission, not of completion, so that a run does not depend on timing.
        for future in [future for future in self._pending if future.done()]:
            self._feed(self._pending.pop(future).sequence_id, future)
        finished = [group_id for group_id, driver in self._drivers.items() if driver.finished]
        for group_id in finished:
            self._oldest.pop(group_id, None)
        return [self._drivers.pop(group_id).rollouts for group_id in finished]

    def ended_early(self) -> list[Rollout]:
        """Rollouts that got their reward in the last `pump` while others of their group go on."""
        ended = [rollout for rollout in self._ended_early if rollout.rollout_id.group in self._drivers]
        self._ended_early = []
        return ended

    def _submit(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            self._pending[self.engine.submit(request)] = request

    def _feed(self, sequence_id: RolloutId, future: Future[Completion]) -> None:
        driver = self._drivers[sequence_id.group]
        try:
            completion = future.result()
        except EngineFailure as error:
            driver.fail(sequence_id, error)
            return
        except CancelledError:
            driver.fail(sequence_id, EngineFailure("the engine closed before the request was served"))
            return
        if len(completion.policy_version):
            version = int(completion.policy_version.min())
            self._oldest[sequence_id.group] = min(version, self._oldest.get(sequence_id.group, version))
        self._submit(driver.feed(sequence_id, completion))
        rollout = driver.rollout(sequence_id.member)
        if rollout is not None and rollout.reward is not None:
            self._ended_early.append(rollout)
