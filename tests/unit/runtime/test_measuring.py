"""Micro-benchmarks give back the constants of a machine that is made up, and find sound ones on this one."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest

from lecritique.cli.plan_tables import cpu_table
from lecritique.planning.cpu import CpuConstants, PassCost
from lecritique.planning.memory import activation_numbers
from lecritique.runtime import measuring

FLOPS, COST = 5e10, PassCost(call=2e-3, layer=5e-4, number=3e-9)


@pytest.fixture
def clock(monkeypatch):
    """CPU seconds that pass only when told to."""
    now = [0.0]
    monkeypatch.setattr(measuring.time, "thread_time", lambda: now[0])
    return now


@pytest.fixture(scope="module")
def references():
    return measuring._Reference(1), measuring._Reference(4)


@pytest.mark.parametrize("passes", [1, 3])
def test_the_cost_of_a_pass_is_found(clock, references, passes):
    def take_time(reference, rows):
        numbers, flops = reference.numbers(rows), passes * reference.flops(rows)
        clock[0] += COST.call + reference.shape.layers * COST.layer + numbers * COST.number + flops / FLOPS

    found = measuring._pass_cost(take_time, *references, flops=FLOPS, passes=passes)
    # Calls are timed with two tokens, whose own work is in them.
    assert asdict(found) == pytest.approx(asdict(COST), rel=0.08)


def test_the_cost_of_a_decode_step_is_found(monkeypatch, references):
    row, cached = 1e-5, 4e-10

    def seconds(reference, *, rows, context):
        shape = reference.shape
        numbers = activation_numbers(shape) * shape.layers + shape.vocabulary
        one = row + numbers * COST.number + reference.flops(measuring._token_rows(1, 1)) / FLOPS
        return COST.call + shape.layers * COST.layer + rows * (one + shape.cache_numbers(context) * cached)

    monkeypatch.setattr(measuring, "_decode_seconds", seconds)
    found, found_row, found_cached = measuring._decode_costs(*references, flops=FLOPS)
    assert (found_row, found_cached) == (pytest.approx(row, rel=0.05), pytest.approx(cached))
    assert asdict(found) == pytest.approx(asdict(COST), rel=0.08)


def test_a_median_is_taken_after_a_first_time_that_does_not_count(clock):
    durations = iter([100.0, 1.0, 9.0, 2.0])

    def take_time():
        clock[0] += next(durations)

    assert measuring.typical_seconds(take_time, repeats=3) == 2.0


def test_each_constant_has_the_median_of_its_rounds():
    rounds = [
        CpuConstants(
            flops=flops, forward=COST, train=COST, decode=replace(COST, layer=layer), row=0.0, cached=0.0,
            parameter=0.0, rollout=0.0,
        )
        for flops, layer in ((1.0, 9.0), (3.0, 7.0), (2.0, 8.0))
    ]  # fmt: skip
    found = measuring._medians(rounds)
    assert (found.flops, found.decode.layer, found.train) == (2.0, 8.0, COST)


@pytest.mark.slow
def test_this_machine_has_sound_constants():
    found = measuring.measured_constants(rounds=2)
    assert 1e9 < found.flops < 1e13
    for cost in (found.forward, found.train, found.decode):
        assert 1e-6 < cost.layer < 0.1 and cost.number < 1e-6
    assert found.train.layer > found.forward.layer and 0 < found.rollout < 0.1
    assert all(math.isfinite(each) for each in (found.row, found.cached, found.parameter))


def test_the_table_adds_up():
    cells = [list(column.cells) for column in cpu_table({"rollout": 0.5, "actor": 0.25}).columns]
    assert cells == [["rollout", "actor", "step"], ["0.500", "0.250", "0.750"]]
