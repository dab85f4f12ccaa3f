"""Balance and the order of what a critic is pretrained on, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lecritique.runtime.pretraining_data import balanced_indices


@pytest.mark.parametrize(("right", "wrong"), [(1, 3), (3, 1), (2, 7), (7, 2), (4, 4), (1, 1)])
def test_right_and_wrong_ones_become_as_many(right, wrong):
    flags = np.array([True] * right + [False] * wrong)
    chosen = balanced_indices(flags, seed=1)
    counts = np.bincount(chosen, minlength=right + wrong)
    assert counts[flags].sum() == counts[~flags].sum() == max(right, wrong)
    frequent = ~flags if wrong >= right else flags
    assert (counts[frequent] == 1).all() and counts[~frequent].min() >= 1
    assert np.ptp(counts[~frequent]) <= 1


def test_by_hand():
    assert balanced_indices(np.array([False, True, False]), seed=5).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("kind", [True, False])
def test_one_kind_alone_stays_as_it_is(kind):
    assert balanced_indices(np.full(3, kind), seed=0).tolist() == [0, 1, 2]


def test_the_draw_comes_from_the_seed_alone():
    flags = np.array([True] * 5 + [False] * 8)
    draws = [balanced_indices(flags, seed=seed).tolist() for seed in (1, 1, 2, 3)]
    assert draws[0] == draws[1] and len({tuple(draw) for draw in draws}) > 1
