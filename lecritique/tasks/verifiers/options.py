"""Options of the verifiers environment."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from lecritique.tasks.options import TaskOptions


class VerifiersOptions(TaskOptions):
    """Which taskset of `verifiers`, and how far an episode may go."""

    taskset: str
    """The id of the taskset: an installed module (or one in the working directory) that exports a `Taskset`."""

    environment: str | None = None
    """The id of an `Env` to play it with. Default: the taskset's own, or a single turn."""

    taskset_options: dict[str, Any] = Field(default_factory=dict)
    """Fields of the taskset's own config."""

    rows: int | None = Field(default=None, ge=1)
    """Use only the first so many tasks. Default: all; needed for an infinite taskset."""

    max_turns: int = Field(default=32, ge=1)
    """After so many turns of the policy an episode is over and scored as it stands."""

    limit_seconds: float = Field(default=120.0, gt=0)
    """Wall limit of the taskset's own code between two turns, scoring included."""

    answer_field: str = "answer"
    """Field of the task's data with the reference answer, where there is one."""

    reward_low: float = 0.0
    """The lowest sum of weighted rewards; a reward below is a failure of the verifier."""

    reward_high: float = 1.0
    """The highest sum of weighted rewards; a reward above is a failure of the verifier."""
