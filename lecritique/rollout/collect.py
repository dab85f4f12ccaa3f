"""Pumps group drivers and an engine until every group is complete: the synchronous way to collect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from lecritique.core.errors import EngineFailure
from lecritique.core.ids import RolloutId
from lecritique.core.rollout import Completion, GenerateRequest, GroupRequest, Rollout
from lecritique.models.chat import ChatRenderer
from lecritique.rollout.driver import GroupDriver
from lecritique.rollout.engine import Engine
from lecritique.tasks.protocol import Environment


def collect(
    requests: Sequence[GroupRequest],
    *,
    environment: Environment,
    renderer: ChatRenderer,
    engine: Engine,
    on_progress: Callable[[], None] = lambda: None,
) -> list[tuple[Rollout, ...]]:
    """The rollouts of each group, in the order of `requests`; failures are in them as data."""
    drivers = {request.group_id: GroupDriver(request, environment, renderer) for request in requests}
    if len(drivers) != len(requests):
        raise ValueError("two requests for the same group (row, attempt)")
    pending: dict[Future[Completion], RolloutId] = {}

    def submit(more: Sequence[GenerateRequest]) -> None:
        for request in more:
            pending[engine.submit(request)] = request.sequence_id

    for driver in drivers.values():
        submit(driver.start())
    while pending:
        if not engine.advance():
            wait(pending, return_when=FIRST_COMPLETED)
        # In order of submission, not of completion, so that a run does not depend on timing.
        for future in [future for future in pending if future.done()]:
            sequence_id = pending.pop(future)
            driver = drivers[sequence_id.group]
            try:
                submit(driver.feed(sequence_id, future.result()))
            except EngineFailure as error:
                driver.fail(sequence_id, error)
        on_progress()
    return [drivers[request.group_id].rollouts for request in requests]
