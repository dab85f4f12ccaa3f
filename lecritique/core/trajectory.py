"""Per-token hand-offs: trajectories, contexts, values, credit and training batches.

Per-token arrays have the trajectory's length T and index: entry t belongs to `token_ids[t]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lecritique.core.arrays import readonly, require_length
from lecritique.core.ids import GroupId, RolloutId


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """The tokens of one segment of a rollout, with what the sampler knew of each.

    `action_mask` is True on tokens that the policy sampled; elsewhere `sampler_logprobs` is 0 and
    `policy_version` is -1. `episode_return` is the reward of the whole episode (gamma apart).
    """

    rollout_id: RolloutId
    segment_index: int = 0
    token_ids: NDArray[np.int64]
    action_mask: NDArray[np.bool_]
    sampler_logprobs: NDArray[np.float64]
    turn_index: NDArray[np.int64]
    policy_version: NDArray[np.int64]
    episode_return: float
    truncated: bool

    def __post_init__(self) -> None:
        for name, dtype in (
            ("token_ids", np.int64),
            ("action_mask", np.bool_),
            ("sampler_logprobs", np.float64),
            ("turn_index", np.int64),
            ("policy_version", np.int64),
        ):
            object.__setattr__(self, name, readonly(getattr(self, name), dtype))
            require_length(name, getattr(self, name), len(self.token_ids))
        if len(self.action_mask) and self.action_mask[0]:
            raise ValueError(f"trajectory {self.rollout_id}: the first token has no state before it to act from")
        if not np.isfinite(self.episode_return):
            raise ValueError(f"trajectory {self.rollout_id}: return {self.episode_return} is not finite")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def group_id(self) -> GroupId:
        """The group that the rollout belongs to."""
        return self.rollout_id.group

    @property
    def action_tokens(self) -> int:
        """Number of sampled tokens."""
        return int(self.action_mask.sum())

    @property
    def oldest_policy_version(self) -> int:
        """The oldest version that sampled any of the tokens (-1 without action tokens)."""
        versions = self.policy_version[self.action_mask]
        return int(versions.min()) if len(versions) else -1


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextInsertion:
    """Token ids put into the policy's own sequence before index `position`; the policy's ids stay as they are.

    For records: `text` is what they say without its frame, `trimmed` whether a limit made it say less.
    """

    position: int
    token_ids: NDArray[np.int64]
    text: str = ""
    trimmed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", readonly(self.token_ids, np.int64))
        if self.position < 0:
            raise ValueError(f"insertion position {self.position} is negative")

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueRequest:
    """A trajectory to be scored, with the context that the critic sees (None: the policy's own tokens)."""

    trajectory: Trajectory
    context: ContextInsertion | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ValuePrediction:
    """V(state before token t) in reward units for every token of a trajectory, all from one critic version."""

    rollout_id: RolloutId
    values: NDArray[np.float64]
    value_version: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", readonly(self.values, np.float64))


@dataclass(frozen=True, kw_only=True, eq=False)
class CreditedTrajectory:
    """A trajectory with its advantages and value targets, and what they were made from.

    Optional columns are None where estimator and loss do not use them. `token_rho` is Tether's coefficient of each
    token where it depends on the position, 1 off the action mask; `rho` is then its mean over action tokens.
    `old_logprobs` are the trainer's log-probs in nats before it was updated on the batch, `teacher_logprobs` those of
    a teacher that read `teacher_prompt` in place of what stands before the first action token (None: that itself).
    """

    trajectory: Trajectory
    advantages: NDArray[np.float64]
    value_targets: NDArray[np.float64]
    values: NDArray[np.float64] | None = None
    baseline: float | None = None
    rho: float | None = None
    token_rho: NDArray[np.float64] | None = None
    old_logprobs: NDArray[np.float64] | None = None
    teacher_prompt: NDArray[np.int64] | None = None
    teacher_logprobs: NDArray[np.float64] | None = None
    estimator: str
    value_version: int | None = None

    def __post_init__(self) -> None:
        if self.teacher_prompt is not None:
            object.__setattr__(self, "teacher_prompt", readonly(self.teacher_prompt, np.int64))
        for name in ("advantages", "value_targets", "values", "token_rho", "old_logprobs", "teacher_logprobs"):
            column = getattr(self, name)
            if column is not None:
                object.__setattr__(self, name, readonly(column, np.float64))
                require_length(name, getattr(self, name), len(self.trajectory))


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """What a teacher made of a trajectory before the policy was updated on it, [T] each, 0 off the action mask.

    Log-probs are in nats. None where there was none: a teacher that is asked again at every forward pass has no score
    from before the update, and an advantage that is modulated there has no single value.
    """

    old_logprobs: NDArray[np.float64] | None
    teacher_logprobs: NDArray[np.float64] | None
    modulated_advantages: NDArray[np.float64] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyBatch:
    """A complete optimizer batch with its global denominators: any split of it gives the same gradient."""

    members: tuple[CreditedTrajectory, ...]
    action_tokens: int
    responses: int
    trained_version: int

    @classmethod
    def of(cls, members: tuple[CreditedTrajectory, ...], *, trained_version: int) -> PolicyBatch:
        """The batch of `members`; trajectories without action tokens are never trained on."""
        kept = tuple(m for m in members if m.trajectory.action_tokens)
        return cls(
            members=kept,
            action_tokens=sum(m.trajectory.action_tokens for m in kept),
            responses=len({m.trajectory.rollout_id for m in kept}),
            trained_version=trained_version,
        )

    @property
    def ages(self) -> tuple[int, ...]:
        """Staleness of each member: version trained on minus the oldest version that sampled it."""
        return tuple(self.trained_version - m.trajectory.oldest_policy_version for m in self.members)


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueSample:
    """One rollout as the critic trains on it: all segments, contexts and frozen targets.

    `value_version` is the critic version that scored it before it was admitted, `old_values` what that version said:
    a clipped loss holds the critic near it.
    """

    rollout_id: RolloutId
    trajectories: tuple[Trajectory, ...]
    contexts: tuple[ContextInsertion | None, ...]
    value_targets: tuple[NDArray[np.float64], ...]
    value_version: int
    old_values: tuple[NDArray[np.float64], ...] | None = None

    def __post_init__(self) -> None:
        if not len(self.trajectories) == len(self.contexts) == len(self.value_targets):
            raise ValueError(f"value sample {self.rollout_id}: segments, contexts and targets differ in number")
        for name in ("value_targets", "old_values"):
            columns = getattr(self, name)
            if columns is None:
                continue
            if len(columns) != len(self.trajectories):
                raise ValueError(f"value sample {self.rollout_id}: segments and {name} differ in number")
            frozen = tuple(readonly(column, np.float64) for column in columns)
            object.__setattr__(self, name, frozen)
            for trajectory, column in zip(self.trajectories, frozen, strict=True):
                require_length(name, column, len(trajectory))


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueBatch:
    """A complete critic optimizer batch with its global denominator."""

    samples: tuple[ValueSample, ...]
    action_tokens: int

    @classmethod
    def of(cls, samples: tuple[ValueSample, ...]) -> ValueBatch:
        """The batch of `samples`."""
        return cls(samples=samples, action_tokens=sum(t.action_tokens for s in samples for t in s.trajectories))
