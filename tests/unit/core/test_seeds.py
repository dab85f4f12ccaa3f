"""Seeds and uniforms are functions of what they are for, and of nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lecritique.core.seeds import derive_seed, uniforms

SEEDS = st.integers(0, 2**63 - 1)
MASK = 2**64 - 1


def splitmix64_finaliser(x: int) -> int:
    """The published steps in plain integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_known_values_do_not_move():
    # A change here changes every run that was ever recorded.
    assert derive_seed(0, "data") == 4474063036504492740
    assert derive_seed(7, "sample", row=3, attempt=1, member=2, turn=5) == 8027488248438713052
    assert uniforms([0, 1, 2**63 - 1], [0, 0, 9]).tolist() == [
        0.6524484863740322,
        0.36818951565166946,
        0.11603484209870707,
    ]


def test_splitmix_is_the_published_one():
    # First output of the generator with state 0.
    assert splitmix64_finaliser(0) == 0xE220A8397B1DCDAF
    seed, position = 12345, 678
    mixed = splitmix64_finaliser(splitmix64_finaliser(seed) ^ position)
    assert uniforms(seed, position) == (mixed >> 11) * 2.0**-53


def test_seeds_keep_no_state():
    random.seed(0)
    first = derive_seed(3, "sample", row=1)
    random.random(), np.random.default_rng().random(), derive_seed(9, "other")
    assert derive_seed(3, "sample", row=1) == first


def test_seeds_are_distinct_across_everything_they_depend_on():
    seeds = {
        derive_seed(root, purpose, row=row, attempt=attempt, member=member, turn=turn)
        for root in range(4)
        for purpose in ("data", "sample", "replay")
        for row in range(6)
        for attempt in range(3)
        for member in range(5)
        for turn in range(3)
    }
    assert len(seeds) == 4 * 3 * 6 * 3 * 5 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_neighbouring_fields_are_not_confused():
    assert derive_seed(0, "a", row=11) != derive_seed(0, "a", row=1, attempt=1)
    assert derive_seed(1, "1|a") != derive_seed(11, "|a")


@given(st.lists(SEEDS, min_size=1, max_size=20), st.integers(0, 2**40))
def test_uniforms_lie_in_range_and_do_not_depend_on_the_batch(seeds, position):
    together = uniforms(np.array(seeds, dtype=np.uint64), position)
    assert ((together >= 0) & (together < 1)).all()
    assert together.tolist() == [float(uniforms(seed, position)) for seed in seeds]
    assert uniforms(np.array(seeds[::-1], dtype=np.uint64), position).tolist() == together.tolist()[::-1]


def test_uniforms_broadcast_seeds_against_positions():
    grid = uniforms(np.arange(3)[:, None], np.arange(5)[None, :])
    assert grid.shape == (3, 5) and grid[2, 4] == uniforms(2, 4)
    assert len(np.unique(grid)) == 15


@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_uniforms_are_uniform_and_uncorrelated(along):
    n = 200_000
    drawn = uniforms(17, np.arange(n)) if along == "positions" else uniforms(np.arange(n), 17)
    # Five standard errors.
    assert abs(drawn.mean() - 0.5) < 5 * (1 / 12 / n) ** 0.5
    assert abs(drawn.var() - 1 / 12) < 5 * (1 / 180 / n) ** 0.5
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / n**0.5
    counts, _ = np.histogram(drawn, bins=64, range=(0, 1))
    chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert chi2 < 63 + 5 * (2 * 63) ** 0.5


def test_position_and_seed_do_not_play_the_same_part():
    assert uniforms(3, 5) != uniforms(5, 3)
    assert len(np.unique(uniforms(np.arange(50), np.arange(50)))) == 50
