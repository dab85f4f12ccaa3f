"""Trainers over models in shards, as each rank makes them: in a local run (`training_group.py`) and in actors."""

from __future__ import annotations

import copy
import gc
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.resolve import uses_critic, uses_teacher
from lecritique.config.schema import PolicySection, RunConfig
from lecritique.critic.trainer import ValueTrainer
from lecritique.distributed.groups import Place, join
from lecritique.distributed.leading import Leader, LeadingPolicyTrainer, LeadingValueTrainer
from lecritique.distributed.sharding import shard
from lecritique.distributed.together import Together
from lecritique.distributed.weights import GatheredStore
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import WeightStore
from lecritique.policy.trainer import PolicyTrainer
from lecritique.runtime.build import configured_model, new_critic, self_teacher, trained_policy

# What leader and followers call their trainers.
POLICY, CRITIC = "policy", "critic"


@dataclass(frozen=True, kw_only=True, eq=False)
class Rank:
    """One of the processes that train together, as it makes its trainers.

    Attributes:
        config: of the run, resolved.
        ranks: all of them.
        mesh: the same.
        leader: tells the others what to do; rank 0 has it and no other.
    """

    config: RunConfig
    ranks: Together
    mesh: Any
    leader: Leader | None = None

    def policy_trainer(
        self, model: Any, section: PolicySection, store: WeightStore | None, **how: Any
    ) -> PolicyTrainer:
        """In place of `PolicyTrainer(...)`; the model stays as it is, its copy is in shards. Rank 0 has the store."""
        own, gathered = sharded_copy(model, self.config, self.mesh), GatheredStore(store, self.ranks)
        if self.leader is None:
            return PolicyTrainer(own, section, gathered, ranks=self.ranks, **how)
        return LeadingPolicyTrainer(own, section, gathered, leader=self.leader, ranks=self.ranks, **how)

    def value_trainer(
        self, model: ValueModel, optimizer: OptimizerConfig, store: WeightStore | None, **how: Any
    ) -> ValueTrainer:
        """In place of `ValueTrainer(...)`, likewise."""
        own, gathered = sharded_copy(model, self.config, self.mesh), GatheredStore(store, self.ranks)
        if self.leader is None:
            return ValueTrainer(own, optimizer, gathered, ranks=self.ranks, **how)
        return LeadingValueTrainer(own, optimizer, gathered, leader=self.leader, ranks=self.ranks, **how)


class FollowingModels:
    """The whole models that a rank behind rank 0 starts from, until they are in shards.

    Args:
        config: of the run, resolved.
        device: of this process.
        roles: whose trainers it is to have, of `policy` and `critic`.
    """

    def __init__(self, config: RunConfig, device: torch.device, roles: Collection[str] = (POLICY, CRITIC)) -> None:
        language = configured_model(config, device)
        self._config = config
        self._whole: dict[str, Any] = {}
        if CRITIC in roles and uses_critic(config):
            self._whole[CRITIC] = new_critic(language.model, config)
        if POLICY in roles:
            self._whole[POLICY] = trained_policy(language.model, config)
        teaches = POLICY in roles and uses_teacher(config)
        self._teacher = self_teacher(self._whole[POLICY], config, language.context_length) if teaches else None

    def into_shards(self, rank: Rank) -> dict[str, Any]:
        """The trainers by role; nothing whole is left but the teacher."""
        config = self._config
        trainers: dict[str, Any] = {}
        how: dict[str, Any] = {"max_tokens": config.runtime.micro_batch_tokens}
        if POLICY in self._whole:
            trainers[POLICY] = rank.policy_trainer(
                self._whole.pop(POLICY),
                config.policy,
                None,
                temperature=config.sampling.temperature,
                teacher=self._teacher,
                **how,
            )
        if CRITIC in self._whole:
            trainers[CRITIC] = rank.value_trainer(self._whole.pop(CRITIC), config.critic.optimizer, None, **how)
        gc.collect()  # recomputed layers refer to themselves
        return trainers


def sharded_copy(model: Any, config: RunConfig, mesh: Any) -> Any:
    """A copy of the model in shards; with bfloat16 arithmetic its weights are float32."""
    own = copy.deepcopy(model)
    narrow = config.runtime.dtype == "bfloat16"
    shard(
        own.float() if narrow else own,
        mesh,
        compute_dtype=torch.bfloat16 if narrow else None,
        recompute=config.runtime.recompute_activations,
    )
    return own


def joined(config: RunConfig, rank: int, ranks: int, meeting: Path, *, leader: Leader | None = None) -> Rank:
    """An actor that has joined the others of its trainer, for as long as it lives. On GPUs it sees its own alone.

    Raises:
        ConfigurationError: they do not come together.
    """
    place = Place(rank=rank, ranks=ranks, local_rank=0)
    device = place.device((config.runtime.device or "cpu").split(":")[0])
    join(place, device, meeting=meeting)
    mesh = init_device_mesh(device.type, (ranks,))
    return Rank(config=config, ranks=Together(device), mesh=mesh, leader=leader)
