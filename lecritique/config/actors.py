"""What the actors of a run on Ray ask of the cluster, and how often they are replaced."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lecritique.config.base import Config


class ActorResources(Config):
    """What one actor asks for."""

    cpus: float = Field(1.0, ge=0)
    """CPUs, and as many torch threads, one at least."""
    gpus: float = Field(0.0, ge=0)
    """GPUs; a fraction shares one."""


class ActorGroup(ActorResources):
    """Several actors of one role, each asking for the same."""

    replicas: int = Field(1, ge=1)
    """How many."""


class ActorsSection(Config):
    """Read with `runtime.type` = `ray`. What decides, data, records and checkpoints stay in the run's own process."""

    engines: ActorGroup = ActorGroup()
    """They generate; groups of rollouts are spread over them."""
    evaluators: ActorGroup = ActorGroup()
    """They score with the published critic; requests are shared out. None of them where `runtime.placement` is
    `colocated`: then the value trainer scores."""
    policy: ActorResources = ActorResources()
    """The policy trainer, with its teacher."""
    critic: ActorResources = ActorResources()
    """The value trainer."""
    strategy: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    """How Ray lays the actors on nodes: on few or on many of them; the strict forms allow nothing else."""
    start_seconds: float = Field(300.0, gt=0)
    """How long the cluster may take to give the resources, and then each actor to load its model."""
    restarts: int = Field(3, ge=0)
    """Engines and evaluators that are replaced in the whole run. What they were asked is asked again; with none left
    the run ends."""
    restores: int = Field(3, ge=0)
    """How often the run goes back to its newest checkpoint because a trainer's process has ended."""
    object_store_mib: int = Field(256, ge=80)
    """Size of the object store of a cluster that the run starts itself. Weights do not go through it."""
