"""Balance and the order of what a critic is pretrained on, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lecritique.runtime.pretraining_data import balanced_indices


@pytest.mark.parametrize(("right", "wrong"), [(3, 1), (7, 2), (9, 4), (1, 1), (2, 7)])
def test_wrong_ones_become_as_many_as_right_ones(right, wrong):
    flags = np.array([True] * right + [False] * wrong)
    counts = np.bincount(balanced_indices(flags, seed=1), minlength=right + wrong)
    assert (counts[flags] == 1).all() and counts[~flags].min() >= 1
    assert counts[~flags].sum() == max(right, wrong) and np.ptp(counts[~flags]) <= 1


def test_by_hand():
    assert balanced_indices(np.array([True, False, True]), seed=5).tolist() == [0, 1, 1, 2]


def test_right_ones_are_never_repeated():
    assert balanced_indices(np.array([True, False, False]), seed=5).tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", [True, False])
def test_one_kind_alone_stays_as_it_is(kind):
    assert balanced_indices(np.full(3, kind), seed=0).tolist() == [0, 1, 2]


def test_the_draw_comes_from_the_seed_alone():
    flags = np.array([True] * 8 + [False] * 5)
    draws = [balanced_indices(flags, seed=seed).tolist() for seed in (1, 1, 2, 3)]
    assert draws[0] == draws[1] and len({tuple(draw) for draw in draws}) > 1
