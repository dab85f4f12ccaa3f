"""The critic's warm-up gate (LC appendix B)."""

from __future__ import annotations

from collections.abc import Sequence


def ships(value_versions: Sequence[int], *, live_version: int, warmup_updates: int) -> bool:
    """Whether a policy batch may be trained on: the oldest version that scored a member is warm enough.

    Args:
        value_versions: critic versions that scored the members; empty when none was scored.
        live_version: the evaluator's version, which counts only when no member was scored.
        warmup_updates: updates that a critic needs.
    """
    oldest = min(value_versions) if value_versions else live_version
    return oldest >= warmup_updates
