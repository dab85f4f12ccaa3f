"""The order of rows: epochs without repeats or omissions, identities that never come twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lecritique.core.ids import GroupId
from lecritique.tasks.stream import DataStream

rows = st.integers(1, 50)
seeds = st.integers(0, 2**63 - 1)


@given(rows, seeds, st.booleans(), st.integers(0, 3))
def test_every_epoch_holds_every_row_once(rows, seed, shuffle, epoch):
    groups = DataStream(rows, seed, shuffle).groups(epoch * rows, rows)
    assert sorted(group.row for group in groups) == list(range(rows))
    assert {group.attempt for group in groups} == {epoch}


@given(rows, seeds, st.integers(0, 100), st.integers(0, 100))
def test_identities_do_not_repeat_and_a_resumed_stream_continues(rows, seed, done, more):
    whole = DataStream(rows, seed).groups(0, done + more)
    assert len(set(whole)) == done + more
    assert whole[done:] == DataStream(rows, seed).groups(done, more)


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=30), seeds, st.integers(0, 3))
def test_chosen_rows_are_each_met_once_in_an_epoch_in_the_order_of_their_places(chosen, seed, epoch):
    given_rows = sorted(chosen)
    groups = DataStream(given_rows, seed).groups(epoch * len(chosen), len(chosen))
    assert sorted(group.row for group in groups) == given_rows and {group.attempt for group in groups} == {epoch}
    places = DataStream(len(chosen), seed).groups(epoch * len(chosen), len(chosen))
    assert [group.row for group in groups] == [given_rows[place.row] for place in places]


def test_epochs_and_seeds_differ_in_order_and_unshuffled_is_the_order_of_rows():
    stream = DataStream(40, 1)
    first, second = ([g.row for g in stream.groups(start, 40)] for start in (0, 40))
    assert first != second
    assert first != list(range(40))
    assert first != [g.row for g in DataStream(40, 2).groups(0, 40)]
    assert DataStream(3, 1, shuffle=False).groups(2, 3) == (GroupId(2, 0), GroupId(0, 1), GroupId(1, 1))


def test_first_rows_are_spread_evenly_over_seeds():
    counts = [0] * 4
    for seed in range(2000):
        counts[DataStream(4, seed).group(0).row] += 1
    # Binomial(2000, 1/4): standard deviation 19.
    assert all(abs(count - 500) < 100 for count in counts)


def test_an_empty_stream_and_a_negative_position_are_refused():
    with pytest.raises(ValueError, match="0 rows"):
        DataStream(0, 1)
    with pytest.raises(ValueError, match="0 rows"):
        DataStream([], 1)
    with pytest.raises(ValueError, match="a row twice"):
        DataStream([3, 4, 3], 1)
    with pytest.raises(ValueError, match="-1"):
        DataStream(3, 1).group(-1)
