"""Keys that a run does not read are named before it starts."""

from __future__ import annotations

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.config.unread import unread


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([], []),
        (["runtime.type=ray", "runtime.address=auto", "runtime.actors.policy.gpus=1"], []),
        (["runtime.actors.policy.gpus=1", "runtime.address=auto"], ["runtime.actors.policy.gpus", "runtime.address"]),
        (["runtime.actors.engines={replicas=2}"], ["runtime.actors.engines.replicas"]),
        (
            ["runtime.address=auto", "runtime.actors.engines={replicas=2, gpus=1}", "runtime.actors.policy.ranks=2"],
            ["runtime.actors", "runtime.address"],
        ),
        (["runtime.actors.engines={replicas=1}", "runtime.dtype=float64"], []),  # nothing of a cluster is changed
    ],
)
def test_keys_of_a_cluster_are_named_where_there_is_none(overrides: list[str], named: list[str]) -> None:
    said = list(unread(compose(load_recipe("demo"), overrides=overrides)))
    if not named:
        assert said == []
        return
    keys = ", ".join(f"'{key}'" for key in named)
    assert said == [f"Not read: {keys}; only 'runtime.type' = 'ray' has actors, and this run's is 'local'."]
