"""The report's section on roles: there for asynchronous runs, absent for others."""

from __future__ import annotations

import json
from pathlib import Path

from lecritique.analysis.read import load_comparison
from lecritique.analysis.report import report_html
from tests.unit.analysis.make_runs import make_run


def with_roles(path: Path) -> Path:
    make_run(path, steps=4)
    config = json.loads((path / "config.json").read_text())
    config["runtime"] = {"loop": "asynchronous"}
    (path / "config.json").write_text(json.dumps(config))
    spans = [
        {"resume": 0, "step": step, "role": role, "kind": "work", "start": step + 0.1, "end": step + 0.9}
        for step in range(4)
        for role in ("rollout engine", "policy trainer")
    ]
    (path / "timeline.jsonl").write_text("".join(json.dumps(span) + "\n" for span in spans))
    outcomes = [
        {"resume": 0, "position": n, "outcome": kind, "step": n, "staleness": age}
        for n, (kind, age) in enumerate((("trained", 0), ("trained", 2), ("stale", None)))
    ]
    (path / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in outcomes))
    return path


def test_an_asynchronous_run_shows_who_worked_when_and_how_groups_ended(tmp_path: Path) -> None:
    html = report_html(load_comparison(with_roles(tmp_path / "run")))
    assert "<h2>Roles</h2>" in html
    assert "3 groups, 2 trained, 1 stale" in html
    assert 'aria-label="Who worked when"' in html
    assert 'aria-label="Staleness of what was trained on"' in html
    assert "No utilisation was recorded." in html


def test_a_synchronous_run_has_no_such_section(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=4)
    assert "<h2>Roles</h2>" not in report_html(load_comparison(tmp_path / "run"))
