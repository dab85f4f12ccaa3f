"""What a resumed run did again supersedes what was written after its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from lecritique.analysis.history import surviving_outcomes, surviving_versions


def written(folder: Path, name: str, rows: list[dict[str, object]], tail: str = "") -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def outcome(resume: int, position: int, step: int) -> dict[str, object]:
    return {"resume": resume, "row": position, "attempt": 0, "position": position, "outcome": "trained", "step": step}


def test_outcomes_after_the_checkpoint_that_was_resumed_are_superseded(tmp_path: Path) -> None:
    written(tmp_path, "events.jsonl", [{"kind": "resumed", "resume": 1, "step": 1, "versions": {"policy": 1}}])
    rows = [outcome(0, 0, 0), outcome(0, 2, 1), outcome(1, 1, 1), outcome(1, 2, 2)]
    written(tmp_path, "ledger.jsonl", rows, tail='{"resume": 1, "posi')
    assert [(o["position"], o["resume"]) for o in surviving_outcomes(tmp_path)] == [(0, 0), (1, 1), (2, 1)]


def test_a_second_resume_from_an_older_checkpoint_supersedes_the_first(tmp_path: Path) -> None:
    resumed = [
        {"kind": "resumed", "resume": 1, "step": 4, "versions": {"policy": 4, "critic": 6}},
        {"kind": "resumed", "resume": 2, "step": 2, "versions": {"policy": 2, "critic": 3}},
    ]
    written(tmp_path, "events.jsonl", resumed)
    versions = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 5), (1, 6), (2, 3), (2, 4)]
    rows = [{"resume": resume, "role": "policy", "version": version} for resume, version in versions]
    written(tmp_path, "versions.jsonl", rows)
    assert surviving_versions(tmp_path, "policy") == [1, 2, 3, 4]
    assert surviving_versions(tmp_path, "critic") == []


def test_a_run_without_these_files_has_no_history(tmp_path: Path) -> None:
    assert surviving_outcomes(tmp_path) == []
    assert surviving_versions(tmp_path, "policy") == []
