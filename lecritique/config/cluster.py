"""What an experiment of full size runs on: read by `train --dry-run` and `plan`, never by a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from lecritique.config.base import Config
from lecritique.config.explain import configuration_error


class Cluster(Config):
    """The table `[cluster]` of a recipe: whole nodes, and what is assumed of the lengths of its rollouts."""

    gpu: str = "H200"
    """Which GPU."""
    gpus_per_node: int = Field(8, ge=1)
    """GPUs of a node."""
    inference_nodes: int = Field(1, ge=1)
    """Nodes that generate."""
    trainer_nodes: int = Field(1, ge=1)
    """Nodes of the policy trainer; a critic has as many of its own, and its evaluator too (LC)."""
    shared: bool = False
    """All roles take turns on the inference nodes, and there are no others: what VASPO's step times describe."""
    prompt_tokens: int = Field(256, ge=1)
    """Mean length of a prompt."""
    response_tokens: int | None = Field(None, ge=1)
    """Mean number of tokens that the policy samples in a rollout; by default half of what a turn may have."""
    context_tokens: int | None = Field(None, ge=0)
    """Mean number of tokens that the critic reads beside a rollout; by default a guess from what it is told."""
    spread: float = Field(0.6, ge=0)
    """Standard deviation of that number over its mean."""
    published_seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds of a step as the paper printed them, by phase, to compare a plan with."""


def cluster_of(table: Mapping[str, Any]) -> Cluster:
    """The table of a recipe, checked.

    Raises:
        ConfigurationError: an unknown key or an unfit value.
    """
    try:
        return Cluster.model_validate(dict(table))
    except ValidationError as error:
        raise configuration_error(error, Cluster, prefix="cluster.") from error
