"""The other responses of a group, told so that what a model wrote cannot pose as anything else.

A response is decoded once, for this purpose: the ids that the policy sampled are never made from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lecritique.core.errors import DataError
from lecritique.core.trajectory import Trajectory
from lecritique.critic.templates import SIBLINGS_HEADING, sibling_block
from lecritique.models.chat import ChatRenderer

# Every "<" that begins something like a delimiter gets a backslash behind it, more or fewer of them before included:
# so no response holds a delimiter, and what was escaped can be told from what a model wrote that way.
_LIKE_A_DELIMITER = re.compile(r"<(?=[\\\s]*/?[\\\s]*sibling)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """Another member of the group, as far as a critic may know it: what it said and what it earned."""

    text: str
    episode_return: float

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise DataError(f"a sibling's response must be text, got {type(self.text).__name__}")
        if not math.isfinite(self.episode_return):
            raise DataError(f"a sibling's return must be finite, got {self.episode_return}")


def sibling_of(segments: Sequence[Trajectory], renderer: ChatRenderer) -> Sibling:
    """One rollout as the critics of its siblings see it: what was sampled in all its segments, a blank line between."""
    turns = []
    for segment in segments:
        for turn in np.unique(segment.turn_index[segment.action_mask]):
            sampled = segment.token_ids[segment.action_mask & (segment.turn_index == turn)]
            turns.append(renderer.decode(sampled))
    return Sibling(text="\n\n".join(turns), episode_return=segments[0].episode_return)


def siblings_text(siblings: Sequence[Sibling], *, most_characters: int | None = None) -> str:
    """All siblings in canonical order, best return first, then by text; each cut to `most_characters`.

    Raises:
        DataError: no sibling.
    """
    if not siblings:
        raise DataError("'critic.context.type' = 'siblings' has no other response to show")
    ordered = sorted(siblings, key=lambda sibling: (-sibling.episode_return, sibling.text))
    return "\n".join([SIBLINGS_HEADING, *(_block(sibling, most_characters) for sibling in ordered)])


def _block(sibling: Sibling, most_characters: int | None) -> str:
    cut = most_characters is not None and len(sibling.text) > most_characters
    text = sibling.text[:most_characters] if cut else sibling.text
    return sibling_block(escaped(text), sibling.episode_return, cut=cut)


def escaped(text: str) -> str:
    """`text` without anything that reads like a delimiter of siblings."""
    return _LIKE_A_DELIMITER.sub(r"<\\", text)
