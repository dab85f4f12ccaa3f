"""Notices a run that cannot learn because every rollout earns the same."""

from __future__ import annotations

from collections.abc import Iterable

from lecritique.core.rollout import Rollout

# So many steps without two different rewards are no accident of one batch.
WATCHED_STEPS = 10


class RewardWatch:
    """Follows the rewards of a run's first steps, until two of them differ.

    Args:
        steps: how many are watched.
    """

    def __init__(self, steps: int = WATCHED_STEPS) -> None:
        self._steps_left = steps
        self._rewards: set[float] = set()
        self.steps = 0
        self.rollouts = 0

    @property
    def reward(self) -> float | None:
        """What every rollout so far has earned; None where that differed or none has a reward."""
        return next(iter(self._rewards)) if len(self._rewards) == 1 else None

    def see(self, rollouts: Iterable[Rollout]) -> bool:
        """Take the rollouts of a step.

        Returns:
            whether it was the last watched step and all rewards are still the same.
        """
        if self._steps_left == 0 or len(self._rewards) > 1:
            return False
        known = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        self._rewards.update(known)
        self.steps += 1
        self.rollouts += len(known)
        self._steps_left -= 1
        return self._steps_left == 0 and self.reward is not None

    @property
    def warning(self) -> str:
        """What a person is told."""
        return (
            f"every one of the {self.rollouts} rollouts of the first {self.steps} steps earned {self.reward:g}: equal "
            "rewards teach nothing. The task may be too hard or too easy for this policy, or its verifier wrong; the "
            "saved rollouts show what was answered ('lecritique view')."
        )
