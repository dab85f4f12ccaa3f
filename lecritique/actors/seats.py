"""Which actors a run has, and what they ask for. Nothing is started and no torch is loaded: `--dry-run` prints it."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator

from lecritique.actors.cluster import ClusterSettings, Seat
from lecritique.config.actors import ActorResources
from lecritique.config.resolve import uses_critic
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError

ENGINE, EVALUATOR, POLICY, CRITIC = "engine", "evaluator", "policy trainer", "value trainer"
# Weights are opened, or copies loaded, while rows are worked on.
_AT_ONCE = {ENGINE: 2, EVALUATOR: 2, POLICY: 1, CRITIC: 1}


def require_runtime(config: RunConfig) -> None:
    """Raise ConfigurationError when Ray is asked for and not installed: before a run has a directory."""
    if config.runtime.type == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigurationError("'runtime.type' = 'ray' needs the extra ray: pip install 'lecritique[ray]'.")


def seats_of(config: RunConfig) -> tuple[Seat, ...]:
    """The seats of a resolved configuration, trainers first: they are the largest."""
    actors = config.runtime.actors
    seats = _seats(POLICY, actors.policy, actors.policy.ranks)
    if uses_critic(config):
        seats += _seats(CRITIC, actors.critic, actors.critic.ranks)
        if not colocates(config):
            seats += _seats(EVALUATOR, actors.evaluators, actors.evaluators.replicas)
    return (*seats, *_seats(ENGINE, actors.engines, actors.engines.replicas))


def ranks_of(config: RunConfig, role: str) -> int:
    """Processes that train a trainer's model together."""
    actors = config.runtime.actors
    return {POLICY: actors.policy, CRITIC: actors.critic}[role].ranks


def colocates(config: RunConfig) -> bool:
    """Whether the value trainer scores itself, and there are no evaluators."""
    return config.runtime.loop == "asynchronous" and config.runtime.placement == "colocated"


def cluster_settings(config: RunConfig) -> ClusterSettings:
    """What is asked of the cluster."""
    actors = config.runtime.actors
    return ClusterSettings(
        address=config.runtime.address,
        seats=seats_of(config),
        strategy=actors.strategy,
        start_seconds=actors.start_seconds,
        object_store_bytes=actors.object_store_mib << 20,
    )


def described(config: RunConfig) -> Iterator[str]:
    """Lines for a person: each role's actors, and what they ask for together."""
    settings = cluster_settings(config)
    counts = Counter(seat.role for seat in settings.seats)
    first = {seat.role: seat for seat in reversed(settings.seats)}
    parts = [f"{_how_many(count, role)} {_asks(first[role])}" for role, count in counts.items()]
    where = {"local": "a cluster that the run starts on this machine", "auto": "the cluster that is found"}
    yield f"Placement: Ray on {where.get(settings.address, settings.address)}, strategy {settings.strategy}."
    yield f"Actors: {'; '.join(parts)}. Together {settings.cpus:g} CPUs and {settings.gpus:g} GPUs."
    actors = config.runtime.actors
    yield (
        f"Actors: up to {actors.restarts} engines and evaluators are replaced, and up to {actors.restores} times the "
        "run goes back to its newest checkpoint for a trainer."
    )


def _seats(role: str, asks: ActorResources, count: int) -> list[Seat]:
    return [
        Seat(role=role, number=number, cpus=asks.cpus, gpus=asks.gpus, concurrent_calls=_AT_ONCE[role])
        for number in range(count)
    ]


def _how_many(count: int, role: str) -> str:
    if count == 1:
        return f"1 {role} of"
    return f"1 {role} in shards on {count} ranks, each of" if role in (POLICY, CRITIC) else f"{count} {role}s, each of"


def _asks(seat: Seat) -> str:
    gpus = f" and {seat.gpus:g} GPU{'s' * (seat.gpus != 1)}" if seat.gpus else ""
    return f"{seat.cpus:g} CPU{'s' * (seat.cpus != 1)}{gpus}"
