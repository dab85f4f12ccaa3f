"""What the run's process and its actors say to each other. Plain records: no torch, no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lecritique.core.ids import RolloutId
from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.spending import Reading
from lecritique.core.trajectory import Judged
from lecritique.core.weights import WeightManifest
from lecritique.rollout.vllm_supervision import ReplicaLost


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Give up a request; what it has comes back as its completion."""

    request_id: str


# What an engine is told before it works on: requests in order, and those that are given up.
Round = tuple[GenerateRequest | Cancel, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundReport:
    """What came of a round.

    Attributes:
        completions: of requests that ended.
        failures: sentences of what went wrong, by request.
        first_versions: the policy version that sampled the first token of requests that go on, where it is new.
        losses: processes of the engine's own, such as replicas of vLLM, that failed since the round before.
    """

    completions: tuple[Completion, ...]
    failures: Mapping[str, str]
    first_versions: Mapping[str, int]
    losses: tuple[ReplicaLost, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Figures:
    """Where a trainer stands.

    `version` is the policy's, or the critic's number of updates; `read_by_teacher` is None without a teacher.
    """

    version: int
    steps: int
    trained: Reading
    read: Reading = field(default_factory=Reading)
    read_by_teacher: Reading | None = None
    judged: Mapping[tuple[RolloutId, int], Judged] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Done:
    """What a trainer's method returned, what it published meanwhile, and where it stands now."""

    value: Any
    published: tuple[WeightManifest, ...]
    figures: Figures
