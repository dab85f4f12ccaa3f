"""From rollouts to trajectories: what was given is off the action mask, what was sampled is on it."""

from __future__ import annotations

import numpy as np

from lecritique.core.rollout import Rollout
from lecritique.core.trajectory import Trajectory


def trajectory_of(rollout: Rollout) -> Trajectory:
    """The token-level record of a rollout with a reward; sampled ids are taken as they are."""
    if rollout.reward is None:
        raise ValueError(f"rollout {rollout.rollout_id} failed ({rollout.status}) and has no trajectory")
    ids, mask, logprobs, turns, versions = [], [], [], [], []
    for index, turn in enumerate(rollout.turns):
        given, sampled = len(turn.given_ids), len(turn.completion.token_ids)
        ids += [turn.given_ids, turn.completion.token_ids]
        mask += [np.zeros(given, dtype=np.bool_), np.ones(sampled, dtype=np.bool_)]
        logprobs += [np.zeros(given), turn.completion.logprobs]
        turns.append(np.full(given + sampled, index))
        versions += [np.full(given, -1), turn.completion.policy_version]
    closing = len(rollout.closing_ids)
    ids.append(rollout.closing_ids)
    mask.append(np.zeros(closing, dtype=np.bool_))
    logprobs.append(np.zeros(closing))
    turns.append(np.full(closing, len(rollout.turns)))
    versions.append(np.full(closing, -1))
    return Trajectory(
        rollout_id=rollout.rollout_id,
        token_ids=np.concatenate(ids),
        action_mask=np.concatenate(mask),
        sampler_logprobs=np.concatenate(logprobs),
        turn_index=np.concatenate(turns),
        policy_version=np.concatenate(versions),
        episode_return=rollout.reward,
        truncated=rollout.truncated,
    )
