"""Structural audit: what a critic is told must stay as it is when the rollout's own future is another.

Admissible (LC eq. 5): the context is independent of token t given the tokens before it. A context that is made before
the first action cannot depend on the rollout's own tokens, its reward, or what the environment said to it later. So
each of the three is changed, the context is built again, and any difference is a leak: no statistics, no threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lecritique.core.trajectory import ContextInsertion, Trajectory
from lecritique.credit.schedules import Group

Contexts = Sequence[ContextInsertion | None]
ContextsOf = Callable[[Group], Contexts | None]
ValuesOf = Callable[[Group], Sequence[NDArray[np.float64]] | None]

RESPONSE, REWARD, FEEDBACK = "own response", "own reward", "later feedback"
# What a batch of another size may change of a float32 value.
VALUE_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class StructuralAudit:
    """For each thing that was changed: how many rollouts were checked, and how many contexts or values moved."""

    checked: dict[str, int]
    changed: dict[str, int]

    @property
    def flagged(self) -> bool:
        """Whether anything moved."""
        return any(self.changed.values())

    def record(self) -> dict[str, object]:
        """As JSON."""
        return {"checked": self.checked, "changed": self.changed, "flagged": self.flagged}


def audit_contexts(
    contexts_of: ContextsOf, groups: Sequence[Group], *, vocabulary: int, seed: int = 0
) -> StructuralAudit:
    """Whether contexts depend on the rollout's own response, reward or later feedback.

    Args:
        contexts_of: the context of each trajectory of a group, None when the group cannot be scored.
        groups: of real rollouts.
        vocabulary: token ids that a changed response may hold.
        seed: of the changes.
    """
    rng = np.random.default_rng(seed)
    checked, changed = (dict.fromkeys((RESPONSE, REWARD, FEEDBACK), 0) for _ in range(2))
    for group in groups:
        before = contexts_of(group)
        for index, trajectory in enumerate(group.trajectories if before is not None else ()):
            for what, other in changes(trajectory, vocabulary=vocabulary, rng=rng).items():
                after = contexts_of(with_member(group, index, other))
                checked[what] += 1
                changed[what] += after is None or not same_context(before[index], after[index])  # type: ignore[index]
    return StructuralAudit(checked=checked, changed=changed)


def audit_values(values_of: ValuesOf, groups: Sequence[Group], *, vocabulary: int, seed: int = 0) -> StructuralAudit:
    """Whether V(h_t, z) depends on token t or on anything behind it: the whole way from context to value.

    The tokens from an action token on, and the reward, are changed; values up to that token must stay.

    Args:
        values_of: the values [T] of each trajectory of a group, None when the group cannot be scored.
        groups: of real rollouts.
        vocabulary: token ids that a changed tail may hold.
        seed: of the changes.
    """
    rng = np.random.default_rng(seed)
    checked = changed = 0
    for group in groups:
        before = values_of(group)
        for index, trajectory in enumerate(group.trajectories if before is not None else ()):
            actions = np.flatnonzero(trajectory.action_mask)
            if not len(actions):
                continue
            cut = int(rng.choice(actions))
            other = replace(
                trajectory,
                token_ids=_other_ids(trajectory.token_ids, np.arange(len(trajectory)) >= cut, vocabulary, rng),
                episode_return=_other_reward(trajectory.episode_return),
            )
            after = values_of(with_member(group, index, other))
            kept = actions[actions <= cut]
            checked += 1
            changed += after is None or bool(
                np.abs(after[index][kept] - before[index][kept]).max() > VALUE_TOLERANCE  # type: ignore[index]
            )
    return StructuralAudit(checked={"values": checked}, changed={"values": changed})


def changes(trajectory: Trajectory, *, vocabulary: int, rng: np.random.Generator) -> dict[str, Trajectory]:
    """The trajectory with another response, another reward, other feedback; what it does not have is left out."""
    found = {REWARD: replace(trajectory, episode_return=_other_reward(trajectory.episode_return))}
    mask = trajectory.action_mask
    if mask.any():
        found[RESPONSE] = _shortened(
            replace(trajectory, token_ids=_other_ids(trajectory.token_ids, mask, vocabulary, rng))
        )
        said = ~mask & (np.arange(len(mask)) > mask.argmax())
        if said.any():
            found[FEEDBACK] = replace(trajectory, token_ids=_other_ids(trajectory.token_ids, said, vocabulary, rng))
    return found


def with_member(group: Group, index: int, other: Trajectory) -> Group:
    """The group with another trajectory in one place."""
    members = list(group.trajectories)
    members[index] = other
    return replace(group, trajectories=tuple(members))


def same_context(one: ContextInsertion | None, two: ContextInsertion | None) -> bool:
    """Whether a critic reads the same."""
    if one is None or two is None:
        return one is two
    return one.position == two.position and np.array_equal(one.token_ids, two.token_ids)


def _other_ids(
    ids: NDArray[np.int64], chosen: NDArray[np.bool_], vocabulary: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Every chosen id replaced by another one."""
    shift = rng.integers(1, vocabulary, size=len(ids))
    return np.where(chosen, (ids + shift) % vocabulary, ids)


def _shortened(trajectory: Trajectory) -> Trajectory:
    """The trajectory cut behind half of what follows its first action token: its length is its own future too."""
    first = int(trajectory.action_mask.argmax())
    end = first + 1 + (len(trajectory) - first - 1) // 2
    columns = ("token_ids", "action_mask", "sampler_logprobs", "turn_index", "policy_version")
    return replace(trajectory, **{name: getattr(trajectory, name)[:end] for name in columns})


def _other_reward(reward: float) -> float:
    return 0.0 if reward else 1.0
