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


class TrainerResources(ActorResources):
    """A trainer, on one process or with its model in shards on several, each asking for the same."""

    ranks: int = Field(1, ge=1)
    """Processes that train it together, each with a shard (torch FSDP2), on GPUs each with one of its own."""


class ActorsSection(Config):
    """Read with `runtime.type` = `ray`. What decides, data, records and checkpoints stay in the run's own process."""

    engines: ActorGroup = ActorGroup()
    """They generate; groups of rollouts are spread over them."""
    evaluators: ActorGroup = ActorGroup()
    """They score with the published critic; requests are shared out. None of them where `runtime.placement` is
    `colocated`: then the value trainer scores."""
    policy: TrainerResources = TrainerResources()
    """The policy trainer, with its teacher."""
    critic: TrainerResources = TrainerResources()
    """The value trainer."""
    strategy: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    """How Ray lays the actors on nodes: on few or on many of them; the strict forms allow nothing else."""
    start_seconds: float = Field(300.0, gt=0)
    """How long the cluster may take to give the resources, and then each actor to load its model."""
    silent_seconds: float = Field(60.0, gt=0)
    """An actor that owes an answer is asked every few seconds whether it lives. One that leaves that open for so long
    (stopped, or on a machine that is gone) is killed, and counts as ended."""
    stuck_seconds: float = Field(1800.0, gt=0)
    """Likewise one that lives and does not answer a call for so long. Longer than the longest step of a trainer, or
    than writing its state, can take; loading has `start_seconds`."""
    restarts: int = Field(3, ge=0)
    """Engines and evaluators that are replaced in the whole run. What they were asked is asked again; with none left
    the run ends."""
    restores: int = Field(3, ge=0)
    """How often the run goes back to its newest checkpoint because a trainer's process has ended or hung."""
    object_store_mib: int = Field(256, ge=80)
    """Size of the object store of a cluster that the run starts itself. Weights do not go through it."""
