"""What was read and spent: counts by hand, and shares of limits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.spending import UNITS, Reading, Spent, tokens_read
from lecritique.core.trajectory import ContextInsertion
from lecritique.models.scoring import token_row
from tests.unit.small_trajectories import trajectory


def test_a_reading_counts_tokens_and_the_pairs_that_attend_to_each_other() -> None:
    reading = Reading()
    reading.add([1, 2, 5])
    assert (reading.tokens, reading.pairs) == (8, 1 + 3 + 15)
    reading.add([])
    assert (reading.tokens, reading.pairs) == (8, 19)


@pytest.mark.parametrize("context", [None, 4])
def test_what_is_read_of_a_trajectory_ends_with_its_last_action(context: int | None) -> None:
    whole = trajectory(RolloutId(GroupId(0, 0), 0), prompt=3, actions=6)
    # The last two tokens close the turn: nobody chose them, nobody scores them.
    given = dataclasses.replace(whole, action_mask=whole.action_mask & (np.arange(9) < 7))
    inserted = None if context is None else ContextInsertion(position=1, token_ids=np.arange(context))
    assert tokens_read(given, inserted) == 7 + (context or 0)
    assert tokens_read(given, inserted) == token_row(given, inserted).read_tokens


def test_the_share_is_that_of_the_nearest_limit() -> None:
    spent = Spent(rollouts=10, tokens=300, flops=10**12, seconds=2.0)
    assert spent.share_of({}) == 0.0
    assert spent.share_of({"tokens": 600, "seconds": 100.0}) == 0.5
    assert spent.share_of({"tokens": 600, "seconds": 2.0, "flops": 0}) == 1.0
    assert Spent.of(spent.record()) == spent and list(spent.record()) == list(UNITS)
