"""Hand-offs between tasks, rollout driver and engine: requests, completions, rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lecritique.core.arrays import readonly, require_length
from lecritique.core.errors import RolloutError
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.task import Message, Task

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn: softmax of logits / temperature, cut to top_k, then to top_p, renormalised."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or positive, got {self.top_k}")

    @property
    def full_support(self) -> bool:
        """Whether every token of the vocabulary can be drawn."""
        return self.top_p == 1.0 and self.top_k == 0


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """Ask for K rollouts of one attempt at one task row."""

    group_id: GroupId
    task: Task
    group_size: int
    sampling: Sampling
    max_turn_tokens: int
    max_total_tokens: int
    seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerateRequest:
    """Ask an engine to continue token ids until a stop id or `max_new_tokens`.

    `seed` and the absolute position of a token fix its uniform, so a result does not depend on
    what else is in the batch. Requests with the same `sequence_id` extend each other: an engine
    may keep the cache of the earlier one.
    """

    request_id: str
    sequence_id: RolloutId
    token_ids: NDArray[np.int64]
    max_new_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", readonly(self.token_ids, np.int64))
        if len(self.token_ids) == 0:
            raise ValueError(f"request {self.request_id} has no prompt tokens")
        if self.max_new_tokens < 1:
            raise ValueError(f"request {self.request_id} asks for {self.max_new_tokens} tokens, expected at least 1")


@dataclass(frozen=True, kw_only=True, eq=False)
class Completion:
    """Sampled token ids (the stop id included) with the log-probs in nats that they were drawn with."""

    request_id: str
    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    policy_version: NDArray[np.int64]
    finish_reason: FinishReason

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", readonly(self.token_ids, np.int64))
        object.__setattr__(self, "logprobs", readonly(self.logprobs, np.float64))
        object.__setattr__(self, "policy_version", readonly(self.policy_version, np.int64))
        require_length("logprobs", self.logprobs, len(self.token_ids))
        require_length("policy_version", self.policy_version, len(self.token_ids))


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """One sampled turn: the token ids appended before it (prompt, environment, template) and the completion."""

    given_ids: NDArray[np.int64]
    completion: Completion
    text: str
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "given_ids", readonly(self.given_ids, np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """One episode: its turns, and either a reward or a typed error."""

    rollout_id: RolloutId
    task: Task
    turns: tuple[Turn, ...]
    closing_ids: NDArray[np.int64]
    reward: float | None
    error: RolloutError | None
    truncated: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "closing_ids", readonly(self.closing_ids, np.int64))
        if (self.reward is None) == (self.error is None):
            raise ValueError(f"rollout {self.rollout_id} must have exactly one of reward and error")

    @property
    def status(self) -> str:
        """`ok`, `truncated`, or the kind of the error."""
        if self.error is not None:
            return self.error.kind
        return "truncated" if self.truncated else "ok"

    def summary(self) -> dict[str, Any]:
        """The scalars of the rollout, for records."""
        return {
            "row": self.rollout_id.group.row,
            "attempt": self.rollout_id.group.attempt,
            "member": self.rollout_id.member,
            "task_id": self.task.task_id,
            "status": self.status,
            "reward": self.reward,
            "turns": len(self.turns),
        }
