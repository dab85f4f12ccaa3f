"""Names of published weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WeightManifest:
    """One published version of one role's weights. `digest` is of the tensors' bytes."""

    role: str
    version: int
    digest: str
