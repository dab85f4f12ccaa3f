"""What the roles tell the orchestrator. Each is a fact about something that has happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lecritique.core.ids import GroupId
from lecritique.core.rollout import Rollout
from lecritique.core.trajectory import ValuePrediction, ValueRequest
from lecritique.core.weights import WeightManifest


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupFinished:
    """Every member of a group has ended; `cancelled` ones were given up because they had become too old."""

    rollouts: tuple[Rollout, ...]
    cancelled: bool = False

    @property
    def group_id(self) -> GroupId:
        """Which group."""
        return self.rollouts[0].rollout_id.group


@dataclass(frozen=True, kw_only=True, eq=False)
class MemberEnded:
    """One member of a group has a reward while others of the group go on."""

    rollout: Rollout


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """The evaluator's answer: values of one critic version in the order of `requests`, or what went wrong."""

    requests: tuple[ValueRequest, ...]
    predictions: tuple[ValuePrediction, ...]
    error: BaseException | None


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyStepped:
    """The policy trainer is done with its batch; `manifest` is the new version, None when there is none."""

    metrics: Mapping[str, float]
    manifest: WeightManifest | None


@dataclass(frozen=True, kw_only=True, eq=False)
class CriticTrained:
    """One optimizer step of the critic."""

    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CriticIdle:
    """The value trainer has done all that it owed for the batches that it was told of."""

    batches: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RoleFailed:
    """A role's thread has ended with an exception."""

    role: str
    error: BaseException


Event = GroupFinished | MemberEnded | Scored | PolicyStepped | CriticTrained | CriticIdle | RoleFailed
