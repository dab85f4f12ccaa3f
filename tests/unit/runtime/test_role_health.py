"""What the orchestrator makes of a role that is not running."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lecritique.core.errors import RoleFailure
from lecritique.runtime.local_runtime import LocalRuntime
from lecritique.runtime.roles import ThreadRole
from lecritique.runtime.timeline import Timeline


def watched(health: str) -> SimpleNamespace:
    return SimpleNamespace(roles=[SimpleNamespace(name="policy trainer", health=health)], evaluator=None)


def test_a_role_that_ended_without_a_word_ends_the_run():
    with pytest.raises(RoleFailure, match="policy trainer has stopped in the middle"):
        LocalRuntime.require_health(watched("stopped"))


@pytest.mark.parametrize("health", ["running", "failed"])
def test_a_failed_role_speaks_for_itself(health):
    """Its event is on the way and has the reason, and with it the exit code."""
    LocalRuntime.require_health(watched(health))


def test_a_role_is_not_seen_failed_before_it_has_reported():
    seen = []

    class Failing(ThreadRole):
        def _work(self) -> bool:
            raise ValueError("no")

    role = Failing("failing", on_failure=lambda name, error: seen.append(role.health), timeline=Timeline())
    role.start()
    role.stop()
    assert seen == ["running"] and role.health == "failed"
