"""The warm-up gate: the oldest version that scored a member decides."""

from __future__ import annotations

import pytest

from lecritique.credit.warmup import ships


@pytest.mark.parametrize(
    ("versions", "live", "expected"),
    [
        ([2, 3], 10, True),
        ([2, 2], 2, True),
        # Fault 15: scored while cold, even if the evaluator is warm by now.
        ([0, 1], 10, False),
        ([1, 30], 30, False),
        ([], 1, False),
        ([], 2, True),
    ],
)
def test_fault_15_the_oldest_scoring_version_decides(versions: list[int], live: int, expected: bool) -> None:
    assert ships(versions, live_version=live, warmup_updates=2) is expected
    assert ships(versions, live_version=live, warmup_updates=0) is True
