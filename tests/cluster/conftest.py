"""One Ray cluster for all tests of a session: starting one takes longer than most runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """A cluster with a seat for every role, two for engines and evaluators and for each trainer's ranks."""
    from lecritique.actors.ray_cluster import ray_cluster
    from lecritique.actors.seats import cluster_settings
    from tests.integration.short_runs import small_config

    two = ("runtime.actors.engines.replicas=2", "runtime.actors.evaluators.replicas=2")
    ranks = ("runtime.actors.policy.ranks=2", "runtime.actors.critic.ranks=2")
    with ray_cluster(cluster_settings(small_config("runtime.type=ray", *two, *ranks, arm="pvf"))) as cluster:
        yield cluster
