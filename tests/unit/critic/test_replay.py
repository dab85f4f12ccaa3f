"""The replay buffer against a literal model of it, and the rules one by one."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lecritique.core.errors import CheckpointError
from lecritique.critic.replay import ReplayBuffer


def filled(count: int, **settings: int) -> ReplayBuffer[int]:
    buffer: ReplayBuffer[int] = ReplayBuffer(**settings)
    for key in range(count):
        buffer.add(key, key)
    return buffer


def test_fault_39_no_repetition_in_a_batch_and_at_most_n_uses() -> None:
    buffer = filled(6, batch_size=4, capacity=6, max_uses=3)
    uses: Counter[int] = Counter()
    while buffer.ready:
        batch = buffer.sample()
        assert len(set(batch)) == 4 and list(batch) == sorted(batch)
        uses.update(batch)
    assert max(uses.values()) <= 3 and len(buffer) < 4
    assert buffer.counts.attempts == sum(uses.values())
    assert buffer.counts.retired == sum(count == 3 for count in uses.values()) == 6 - len(buffer)


def test_fault_39_being_drawn_does_not_refresh_age() -> None:
    buffer = filled(4, batch_size=4, capacity=4, max_uses=5)
    assert buffer.sample() == (0, 1, 2, 3)
    buffer.add(4, 4)
    assert buffer.sample() == (1, 2, 3, 4) and buffer.counts.evicted == 1


def test_fault_39_a_rollout_with_many_segments_is_one_entry_and_retires_as_a_whole() -> None:
    buffer: ReplayBuffer[tuple[str, ...]] = ReplayBuffer(batch_size=2, max_uses=1)
    buffer.add("a", ("a0", "a1", "a2"))
    assert len(buffer) == 1 and not buffer.ready
    buffer.add("b", ("b0",))
    assert buffer.sample() == (("a0", "a1", "a2"), ("b0",)) and len(buffer) == 0


def test_hysteresis_and_what_is_wanted_in_a_turn() -> None:
    buffer: ReplayBuffer[int] = ReplayBuffer(batch_size=2, capacity=6, refill_size=4, max_uses=1)
    assert (buffer.ready, buffer.wanted) == (False, 4)
    for key in range(3):
        buffer.add(key, key)
    assert (buffer.ready, buffer.wanted) == (False, 1)
    buffer.add(3, 3)
    assert (buffer.ready, buffer.wanted) == (True, 2)
    buffer.sample()
    assert (len(buffer), buffer.ready, buffer.wanted) == (2, True, 2)
    buffer.sample()
    # Empty: it fills up again before anything is drawn.
    assert (len(buffer), buffer.ready, buffer.wanted) == (0, False, 4)
    for key in range(4, 7):
        buffer.add(key, key)
    assert not buffer.ready
    with pytest.raises(ValueError, match="3 rollouts held, 4 needed"):
        buffer.sample()


def test_defaults_and_sizes_that_do_not_fit() -> None:
    buffer: ReplayBuffer[int] = ReplayBuffer(batch_size=3)
    assert (buffer.max_uses, buffer.capacity, buffer.refill_size) == (1, 3, 3)
    assert ReplayBuffer(batch_size=3, max_uses=2).capacity == 6
    for settings in ({"capacity": 2}, {"capacity": 6, "refill_size": 2}, {"capacity": 6, "refill_size": 7}):
        with pytest.raises(ValueError, match="batch_size <= refill_size <= capacity"):
            ReplayBuffer(batch_size=3, **settings)


def test_a_key_that_is_held_is_refused_and_a_retired_one_may_return() -> None:
    buffer = filled(2, batch_size=2)
    with pytest.raises(ValueError, match="rollout 0 is already in replay"):
        buffer.add(0, 0)
    buffer.sample()
    buffer.add(0, 0)
    assert len(buffer) == 1


def test_draws_are_uniform_and_fixed_by_the_seed() -> None:
    drawn: Counter[int] = Counter()
    for seed in range(400):
        drawn.update(filled(8, batch_size=2, capacity=8, max_uses=2, seed=seed).sample())
    # 100 expected each, standard deviation below 9.
    assert all(60 < drawn[key] < 140 for key in range(8))
    again = [filled(8, batch_size=2, capacity=8, max_uses=2, seed=3).sample() for _ in range(2)]
    assert again[0] == again[1]


class Literal:
    """The rules of the method sheet, section 7, in lists."""

    def __init__(self, batch: int, refill: int, capacity: int, uses: int) -> None:
        self.batch, self.refill, self.capacity, self.uses = batch, refill, capacity, uses
        self.held: list[list[int]] = []
        self.sampling = False
        self.evicted = self.retired = 0

    @property
    def ready(self) -> bool:
        return self.sampling and len(self.held) >= self.batch

    def add(self, key: int) -> None:
        self.held.append([key, 0])
        if len(self.held) > self.capacity:
            self.held.pop(0)
            self.evicted += 1
        if len(self.held) >= self.refill:
            self.sampling = True

    def drawn(self, keys: tuple[int, ...]) -> None:
        """Check a batch that the buffer drew, and account for it."""
        order = [key for key, _ in self.held]
        assert len(keys) == self.batch == len(set(keys))
        assert list(keys) == [key for key in order if key in keys]
        for entry in self.held:
            entry[1] += entry[0] in keys
        self.retired += sum(used >= self.uses for _, used in self.held)
        self.held = [entry for entry in self.held if entry[1] < self.uses]
        if len(self.held) < self.batch:
            self.sampling = False


@given(st.data())
def test_any_sequence_of_operations_equals_the_literal_model(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 4))
    refill = data.draw(st.integers(batch, 8))
    capacity = data.draw(st.integers(refill, 10))
    uses = data.draw(st.integers(1, 3))
    buffer: ReplayBuffer[int] = ReplayBuffer(
        batch_size=batch, refill_size=refill, capacity=capacity, max_uses=uses, seed=data.draw(st.integers(0, 99))
    )
    model, admitted = Literal(batch, refill, capacity, uses), 0
    for add in data.draw(st.lists(st.booleans(), max_size=60)):
        if add:
            buffer.add(admitted, admitted)
            model.add(admitted)
            admitted += 1
        elif model.ready:
            model.drawn(buffer.sample())
        assert len(buffer) == len(model.held) <= capacity
        assert buffer.ready == model.ready
        assert buffer.wanted == (batch if model.ready else max(0, refill - len(model.held)))
        counts = buffer.counts
        assert (counts.admitted, counts.evicted, counts.retired) == (admitted, model.evicted, model.retired)
    # What is left is what the model holds, in its order.
    assert list(buffer._entries) == [key for key, _ in model.held]


@given(st.data())
def test_resumed_anywhere_it_draws_what_the_uninterrupted_one_draws(data: st.DataObject) -> None:
    settings = {"batch_size": 2, "refill_size": 3, "capacity": 6, "max_uses": data.draw(st.integers(1, 3))}
    straight: ReplayBuffer[int] = ReplayBuffer(**settings, seed=5)
    other: ReplayBuffer[int] = ReplayBuffer(**settings, seed=5)
    operations = data.draw(st.lists(st.booleans(), min_size=4, max_size=40))
    stop = data.draw(st.integers(0, len(operations)))
    for number, add in enumerate(operations):
        if number == stop:
            saved = json.loads(json.dumps(other.state(list)))
            other = ReplayBuffer(**settings, seed=99)
            other.restore(saved, tuple, lambda entry: entry)
        drawn = []
        for buffer in (straight, other):
            if add:
                buffer.add(number, number)
            elif buffer.ready:
                drawn.append(buffer.sample())
        assert drawn[:1] == drawn[1:]
        assert straight.state(list) == other.state(list)


def test_a_state_that_does_not_fit_is_refused() -> None:
    saved = filled(6, batch_size=2, capacity=6).state(list)
    small: ReplayBuffer[int] = ReplayBuffer(batch_size=2, capacity=4)
    with pytest.raises(CheckpointError, match=r"holds 6 rollouts .* room for 4"):
        small.restore(saved, tuple, lambda entry: entry)
    with pytest.raises(CheckpointError, match="6 rollouts with 5 counts"):
        filled(0, batch_size=2, capacity=6).restore(saved | {"uses": [0] * 5}, tuple, lambda entry: entry)
