"""How many engine replicas a run has replaced, by its events: a process that goes on with it counts on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lecritique.actors.seats import ENGINE


def replacements_in(run: Path) -> int:
    """Replicas that were started in place of failed ones, in all processes that have written the run so far."""
    file = run / "events.jsonl"
    if not file.is_file():
        return 0
    return sum(_is_replacement(line) for line in file.read_text(encoding="utf-8", errors="replace").splitlines())


def _is_replacement(line: str) -> bool:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:  # cut off by a kill
        return False
    match event.get("kind"):
        case "replica_lost":
            return event["replacement"] is not None
        case "actor_lost":
            return bool(event["replaced"]) and event["role"].startswith(f"{ENGINE} ")
    return False
