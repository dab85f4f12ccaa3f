"""EVPO's state: whose explained variance decides, and resume."""

from __future__ import annotations

import json
import math

import pytest

from lecritique.core.errors import CheckpointError
from lecritique.credit.evpo import EvpoController

SERIES = [0.4, -0.1, math.nan, 0.2, 0.0]


def test_a_batch_is_decided_by_its_own_explained_variance() -> None:
    controller = EvpoController()
    assert [controller.decide(ev) for ev in SERIES] == [True, False, False, True, False]


def test_lagged_the_batch_before_decides_and_the_first_uses_the_group() -> None:
    controller = EvpoController(lagged=True)
    assert [controller.decide(ev) for ev in SERIES] == [False, True, False, False, True]


@pytest.mark.parametrize("stop", range(len(SERIES)))
def test_resume_equals_the_uninterrupted_run(stop: int) -> None:
    straight = EvpoController(lagged=True)
    expected = [straight.decide(ev) for ev in SERIES]
    first = EvpoController(lagged=True)
    decided = [first.decide(ev) for ev in SERIES[:stop]]
    resumed = EvpoController(lagged=True)
    resumed.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert decided + [resumed.decide(ev) for ev in SERIES[stop:]] == expected


def test_a_changed_contract_or_an_incomplete_state_is_an_error() -> None:
    saved = EvpoController(lagged=True).state()
    with pytest.raises(CheckpointError, match="lagged = True"):
        EvpoController(lagged=False).restore(saved)
    with pytest.raises(CheckpointError, match="previous_ev"):
        EvpoController(lagged=True).restore({"contract": {"lagged": True}})
    with pytest.raises(CheckpointError, match="contract"):
        EvpoController(lagged=True).restore({})
