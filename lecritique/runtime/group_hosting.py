"""What the actors of a trainer on several ranks hold, built inside their processes; see `hosting.py`.

Every maker takes the resolved configuration as JSON, what is this rank's, and the file where the ranks meet.
"""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from lecritique.actors.group_hosts import FollowingHost, LeadingHost
from lecritique.actors.hosts import policy_figures, value_figures
from lecritique.config.schema import RunConfig
from lecritique.distributed.leading import Follower, Leader
from lecritique.runtime.build import new_critic, policy_trainer, trained_policy
from lecritique.runtime.hosting import loaded, policy_store, value_store
from lecritique.runtime.sharded_trainers import CRITIC, POLICY, FollowingModels, joined


def leading_policy_host(config_json: str, folder: str, ranks: int, meeting: str) -> LeadingHost:
    """Rank 0 of the policy trainer."""
    config, language = loaded(config_json)
    trained, length = trained_policy(language.model, config), language.context_length
    del language
    leader, store = Leader(), policy_store(folder)
    rank = joined(config, 0, ranks, Path(meeting), leader=leader)
    trainer = policy_trainer(trained, config, store, length, make=rank.policy_trainer)
    del trained
    gc.collect()  # recomputed layers refer to themselves
    return LeadingHost(trainer, store, policy_figures, role=POLICY, leader=leader, ranks=rank.ranks)


def leading_value_host(config_json: str, folder: str, ranks: int, meeting: str) -> LeadingHost:
    """Rank 0 of the value trainer."""
    config, language = loaded(config_json)
    critic = new_critic(language.model, config)
    del language
    leader, store = Leader(), value_store(folder)
    rank = joined(config, 0, ranks, Path(meeting), leader=leader)
    trainer = rank.value_trainer(critic, config.critic.optimizer, store, max_tokens=config.runtime.micro_batch_tokens)
    del critic
    gc.collect()
    return LeadingHost(trainer, store, value_figures, role=CRITIC, leader=leader, ranks=rank.ranks)


def following_host(config_json: str, role: str, number: int, ranks: int, meeting: str) -> FollowingHost:
    """Another rank of the trainer of `policy` or `critic`."""
    config = RunConfig.model_validate_json(config_json)
    models = FollowingModels(config, torch.device(config.runtime.device or "cpu"), (role,))
    rank = joined(config, number, ranks, Path(meeting))
    return FollowingHost(Follower(models.into_shards(rank), ranks=rank.ranks, mesh=rank.mesh))
