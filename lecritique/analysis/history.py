"""What survives of a run that was killed and resumed: outcomes of groups, and versions of weights.

A resumed run does again what came after its checkpoint. Lines of `ledger.jsonl` and `versions.jsonl` that were written
after it are superseded: those of a step that was done again, and those of a version beyond the one that was restored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def surviving_outcomes(run: Path) -> list[Record]:
    """The outcome of each group (row, attempt), in the order in which they ended."""
    resumed = _resumes(run)
    return [
        record
        for record in _records(run / "ledger.jsonl")
        if all(record["step"] < event["step"] for event in resumed if event["resume"] > record["resume"])
    ]


def surviving_versions(run: Path, role: str) -> list[int]:
    """The versions of a role's weights that led to what the run holds now, in the order of their making."""
    resumed = _resumes(run)
    return [
        record["version"]
        for record in _records(run / "versions.jsonl")
        if record["role"] == role
        and all(
            record["version"] <= event["versions"].get(role, -1)
            for event in resumed
            if event["resume"] > record["resume"]
        )
    ]


def spans(run: Path) -> list[Record]:
    """Pieces of work of the roles, as recorded; `start` and `end` in seconds since their process began the run."""
    return list(_records(run / "timeline.jsonl"))


def _resumes(run: Path) -> Sequence[Record]:
    return [event for event in _records(run / "events.jsonl") if event["kind"] == "resumed"]


def _records(file: Path) -> Iterable[Record]:
    """Whole lines; one that a kill cut off is left out."""
    if not file.is_file():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
