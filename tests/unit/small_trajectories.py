"""Trajectories of a few tokens."""

from __future__ import annotations

import numpy as np

from lecritique.core.ids import RolloutId
from lecritique.core.trajectory import Trajectory


def trajectory(rollout_id: RolloutId, *, prompt: int = 2, actions: int = 3, episode_return: float = 1.0) -> Trajectory:
    """A prompt and one turn."""
    length = prompt + actions
    mask = np.arange(length) >= prompt
    return Trajectory(
        rollout_id=rollout_id,
        segment_index=0,
        token_ids=np.arange(length) % 7,
        action_mask=mask,
        sampler_logprobs=np.where(mask, -1.0, 0.0),
        turn_index=np.zeros(length, dtype=np.int64),
        policy_version=np.where(mask, 0, -1),
        truncated=False,
        episode_return=episode_return,
    )
