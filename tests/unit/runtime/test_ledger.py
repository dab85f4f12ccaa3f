"""Exactly one outcome for every group that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from lecritique.core.ids import GroupId
from lecritique.runtime.ledger import Ledger

A, B = GroupId(row=4, attempt=0), GroupId(row=1, attempt=0)


def test_groups_are_issued_in_order_of_the_stream_and_closed_once() -> None:
    records: list[dict[str, Any]] = []
    ledger = Ledger()
    ledger.write_with(lambda record: records.append(dict(record)))
    ledger.issue(A, 0)
    ledger.issue(B, 1)
    with pytest.raises(ValueError, match="expected position 2"):
        ledger.issue(GroupId(row=0, attempt=0), 3)
    ledger.close(B, "trained", step=7, staleness=2)
    assert records == [{"row": 1, "attempt": 0, "position": 1, "outcome": "trained", "step": 7, "staleness": 2}]
    with pytest.raises(KeyError):
        ledger.close(B, "stale", step=8)
    assert ledger.open == {A: 0}
    assert ledger.next_position == 2


def test_a_restored_ledger_knows_what_was_open() -> None:
    ledger = Ledger()
    ledger.issue(A, 0)
    ledger.issue(B, 1)
    ledger.close(A, "failed", step=0)
    other = Ledger()
    other.restore(ledger.state())
    assert other.open == {B: 1}
    assert other.next_position == 2
    assert other.counts == {"failed": 1}
    other.close(B, "trained", step=1)
    assert ledger.open == {B: 1}
