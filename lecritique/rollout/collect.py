"""Plays groups until every one of them is complete: the synchronous way to collect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lecritique.core.rollout import GroupRequest, Rollout
from lecritique.models.chat import ChatRenderer
from lecritique.rollout.engine import Engine
from lecritique.rollout.pump import RolloutPump
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
    pump = RolloutPump(environment=environment, renderer=renderer, engine=engine)
    pump.start(requests)
    finished = {}
    while pump.open:
        for rollouts in pump.pump():
            finished[rollouts[0].rollout_id.group] = rollouts
        on_progress()
    return [finished[request.group_id] for request in requests]
