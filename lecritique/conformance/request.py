"""What a GAE implementation is asked for. B rows, T row length; rewards and values are in reward units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Unsupported(Exception):
    """Raised by an adapter for a request that its function has no way to take; the text says what is missing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GaeRequest:
    """One call: a padded batch of rows.

    Args:
        rewards_BT: [B, T], per token; anything off the mask.
        values_BT: [B, T], V(state before token t); anything off the mask.
        action_mask_BT: [B, T] bool, True on tokens that the policy sampled.
        gamma: discount per action token.
        gae_lambda: of the advantages.
        value_target_lambda: of the targets.
        bootstrap_B: V of the state after each row's last action token, 0 where the episode ended; None: all ended.
        episodes: row numbers of each episode's segments in order of generation; None: every row is an episode.
        packed_lengths: lengths of the sequences that are packed into each row; None: one sequence a row.
    """

    rewards_BT: Tensor
    values_BT: Tensor
    action_mask_BT: Tensor
    gamma: float
    gae_lambda: float
    value_target_lambda: float
    bootstrap_B: Tensor | None = None
    episodes: tuple[tuple[int, ...], ...] | None = None
    packed_lengths: tuple[tuple[int, ...], ...] | None = None


class GaeCallable(Protocol):
    """Anyone's GAE behind one signature."""

    def __call__(self, request: GaeRequest, /) -> tuple[Tensor, Tensor]:
        """Advantages and value targets, [B, T] each; off the mask anything may stand.

        Advantages are those of the equation: an implementation that also normalises them has to undo it, most
        easily as target minus value.
        """
        ...
