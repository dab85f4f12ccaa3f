"""The processes that train a run together on one machine: this one decides, the others are started and follow.

Each gets a whole model first and keeps its shard of it. Rollouts, values and credit are rank 0's alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.schema import PolicySection, RunConfig
from lecritique.core.errors import ConfigurationError, RoleFailure
from lecritique.critic.trainer import ValueTrainer
from lecritique.distributed.gathering import gathered
from lecritique.distributed.groups import Place, process_group
from lecritique.distributed.leading import Leader, LeadingCheckpoints
from lecritique.distributed.together import Together
from lecritique.models.adapters import load_own_weights, own_weights
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import WeightStore
from lecritique.policy.trainer import PolicyTrainer
from lecritique.runtime.parent import named_parent
from lecritique.runtime.sharded_trainers import CRITIC, POLICY, Rank

CONFIG, MEETING, READY = "config.json", "meeting", "ready-{rank}"
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingGroup(Rank):
    """What rank 0 needs to make trainers that lead the others."""

    leader: Leader
    _own: dict[str, Any] = field(default_factory=dict)

    def policy_trainer(
        self, model: Any, section: PolicySection, store: WeightStore | None, **how: Any
    ) -> PolicyTrainer:
        """As `Rank.policy_trainer`; the model is kept for `whole_model`."""
        self._own[POLICY] = model
        return super().policy_trainer(model, section, store, **how)

    def value_trainer(
        self, model: ValueModel, optimizer: OptimizerConfig, store: WeightStore | None, **how: Any
    ) -> ValueTrainer:
        """Likewise."""
        self._own[CRITIC] = model
        return super().value_trainer(model, optimizer, store, **how)

    def whole_model(self, role: str, trainer: Any) -> Any:
        """The trainer's model in one piece, to be saved; the one that the trainer was made from."""
        with self.leader.calling("group", "gather", role):
            state = gathered(own_weights(trainer.model), keep=True)
        load_own_weights(self._own[role], state)
        return self._own[role]

    def checkpoints(self, folder: Path, keep: int) -> LeadingCheckpoints:
        """The run's checkpoints."""
        return LeadingCheckpoints(folder, keep, ranks=self.ranks, mesh=self.mesh, leader=self.leader)


def device_of(config: RunConfig, place: Place) -> torch.device:
    """What a process computes on: the CPU, or a GPU of its own.

    Raises:
        ConfigurationError: there are fewer GPUs than processes.
    """
    kind = (config.runtime.device or "cpu").split(":")[0]
    if kind != "cpu" and torch.accelerator.device_count() < place.ranks:
        raise ConfigurationError(
            f"'runtime.ranks' = {place.ranks} needs as many GPUs, this machine has {torch.accelerator.device_count()}."
        )
    return place.device(kind)


@contextmanager
def training_group(config: RunConfig) -> Iterator[TrainingGroup | None]:
    """The group for a resolved configuration, None when one process trains; the others end with it.

    Raises:
        ConfigurationError: the processes cannot be joined.
        RoleFailure: one of them ended before the training began.
    """
    from torch.distributed.device_mesh import init_device_mesh

    size = config.runtime.ranks
    if size == 1:
        yield None
        return
    place = Place(rank=0, ranks=size, local_rank=0)
    device = device_of(config, place)
    folder = Path(tempfile.mkdtemp(prefix="lecritique-ranks-"))
    others: list[subprocess.Popen[bytes]] = []
    try:
        (folder / CONFIG).write_text(config.model_dump_json(), encoding="utf-8")
        for rank in range(1, size):
            # In a process group of its own: a person's interrupt is for rank 0, which saves before it ends.
            others.append(subprocess.Popen(_command(folder, rank), env=_environment(), process_group=0))
        _await_ready(folder, others)
        with process_group(place, device, meeting=folder / MEETING):
            leader = Leader(lambda: _ended(others))
            group = TrainingGroup(
                config=config, ranks=Together(device), mesh=init_device_mesh(device.type, (size,)), leader=leader
            )
            try:
                yield group
            except KeyboardInterrupt:
                # Nobody was waited for: the asynchronous loop's policy trainer may be in the middle of a step.
                leader.broken = True
                raise
            finally:
                # A step that was too long to be waited for: no word may come between.
                if leader.broken or leader.busy:
                    for other in others:
                        other.kill()
                else:
                    with suppress(RuntimeError):  # one that is gone needs no word
                        leader.dismiss()
    finally:
        _end(others)
        shutil.rmtree(folder, ignore_errors=True)


def _command(folder: Path, rank: int) -> list[str]:
    return [sys.executable, "-P", "-m", "lecritique.runtime.following", str(folder), str(rank)]


def _environment() -> dict[str, str]:
    """Of the others: as many threads as this process uses, and an end with it however it ends."""
    return {"OMP_NUM_THREADS": str(torch.get_num_threads()), **os.environ, **named_parent()}


def _await_ready(folder: Path, others: list[subprocess.Popen[bytes]]) -> None:
    """Until the others have loaded their models: who fails before they meet would be waited for in vain."""
    waiting = [folder / READY.format(rank=rank) for rank in range(1, len(others) + 1)]
    while not all(path.exists() for path in waiting):
        gone = _ended(others, patience_seconds=0.0)
        if gone:
            raise RoleFailure(f"{gone} before the training began; what it said stands above.")
        time.sleep(_LOOK_SECONDS)


def _ended(others: list[subprocess.Popen[bytes]], *, patience_seconds: float = 1.0) -> str:
    """Which of the others are gone; a process that has just broken a connection takes a moment to be so."""
    deadline = time.monotonic() + patience_seconds
    while True:
        gone = [(rank, other.returncode) for rank, other in enumerate(others, start=1) if other.poll() is not None]
        if gone:
            return ", ".join(f"the training process of rank {rank} has ended (exit code {code})" for rank, code in gone)
        if time.monotonic() >= deadline:
            return ""
        time.sleep(_LOOK_SECONDS)


def _end(others: list[subprocess.Popen[bytes]]) -> None:
    """Wait for the others, not for ever."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for other in others:
        try:
            other.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait()
