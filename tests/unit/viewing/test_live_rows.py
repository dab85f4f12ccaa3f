"""Metrics of a run that is being written: read on, resumed, replaced, damaged."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from lecritique.analysis.read import load_run
from lecritique.viewing import live
from lecritique.viewing.live import LiveRun
from lecritique.viewing.sources import find_runs
from tests.unit.analysis.make_runs import make_run


class Reader:
    """What a page holds: it only ever asks for what it lacks."""

    def __init__(self, run: LiveRun, names: tuple[str, ...] = ("reward", "rho")) -> None:
        self.run, self.names = run, names
        self.generation, self.held, self.sent = -1, {}, []

    def look(self) -> None:
        more = True
        while more:
            answer = self.run.rows(self.names, after=max(self.held, default=-1), generation=self.generation)
            if answer["drop_from"] is not None:
                self.held = {step: row for step, row in self.held.items() if step < answer["drop_from"]}
            assert not self.held.keys() & set(answer["steps"]), "a step was sent that the page has"
            for index, step in enumerate(answer["steps"]):
                self.held[step] = {name: answer["columns"][name][index] for name in self.names}
            self.generation, more = answer["generation"], answer["more"]
            self.sent.append(len(answer["steps"]))

    def agrees(self, path) -> None:
        """It holds what a reader of the whole file finds."""
        whole = load_run(path)
        assert sorted(self.held) == whole.steps.tolist()
        for name in self.names:
            found = [np.nan if self.held[step][name] is None else self.held[step][name] for step in sorted(self.held)]
            np.testing.assert_array_equal(found, whole.series(name))


@pytest.fixture
def path(tmp_path):
    return make_run(tmp_path / "run", steps=0)


def live_run(path) -> LiveRun:
    (source,) = find_runs(path).runs.values()
    return LiveRun(source)


def append(path, text: str) -> None:
    with open(path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(text)


def line(step: int, resume: int = 0, **metrics: float | None) -> str:
    return json.dumps({"step": step, "resume": resume, **(metrics or {"reward": step / 8 + resume})}) + "\n"


def test_only_new_rows_are_sent(path):
    page = Reader(live_run(path))
    page.look()
    append(path, line(0) + line(1, reward=0.5, rho=None))
    page.look()
    append(path, line(2))
    page.look()
    page.look()
    assert page.sent == [0, 2, 1, 0]
    assert page.held[1] == {"reward": 0.5, "rho": None}
    page.agrees(path)


def test_a_half_written_line_waits_for_its_rest(path):
    page = Reader(live_run(path))
    whole = line(0)
    append(path, whole[:9])
    page.look()
    assert page.held == {}
    append(path, whole[9:])
    page.look()
    assert list(page.held) == [0]


def test_a_resume_takes_back_what_it_does_again(path):
    page = Reader(live_run(path))
    append(path, "".join(line(step) for step in range(6)) + '{"step": 6, "rew')
    page.look()
    append(path, "\n" + line(3, resume=1))
    page.look()
    assert sorted(page.held) == [0, 1, 2, 3] and page.held[3]["reward"] == 3 / 8 + 1
    assert page.sent == [6, 1]
    page.agrees(path)


def test_a_file_that_was_replaced_is_read_from_its_start(path):
    page = Reader(live_run(path))
    append(path, "".join(line(step) for step in range(4)))
    page.look()
    (path / "metrics.jsonl").write_text(line(0, reward=9.0))
    page.look()
    assert page.held == {0: {"reward": 9.0, "rho": None}}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_the_page_ends_with_what_the_file_says(path, seed, monkeypatch):
    monkeypatch.setattr(live, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(live, "_CHUNK_BYTES", 17)
    draw = random.Random(seed)
    page, step, resume, unwritten = Reader(live_run(path)), 0, 0, ""
    for _ in range(40):
        if draw.random() < 0.1 and step:
            resume, step = resume + 1, draw.randrange(step + 1)
        unwritten += line(step, resume, reward=draw.random(), rho=draw.choice([None, 0.5]))
        step += 1
        cut = draw.randrange(len(unwritten) + 1)
        append(path, unwritten[:cut])
        unwritten = unwritten[cut:]
        if draw.random() < 0.5:
            page.look()
    append(path, unwritten)
    page.look()
    page.agrees(path)


def test_a_damaged_line_is_named_and_what_came_before_it_stands(path):
    run = live_run(path)
    page = Reader(run)
    append(path, line(0) + line(1) + "[1, 2]\n" + line(2))
    page.look()
    assert sorted(page.held) == [0, 1]
    (problem,) = run.summary()["problems"]
    assert "metrics.jsonl, line 3" in problem and "JSON object" in problem


def test_the_summary_of_a_run_says_where_it_stands(tmp_path):
    path = make_run(tmp_path / "run", arm="tether", seed=3, steps=5, planned=9, state="running", rho=0.4, save_every=2)
    summary = live_run(path).summary()
    assert (summary["state"], summary["newest"], summary["planned"], summary["seed"]) == ("running", 4, 9, 3)
    assert summary["latest"]["rho"] == pytest.approx(0.4 * (1 - 0.95**5)) and summary["rollout_files"] == 2
    (path / "status.json").write_text("not JSON")
    summary = live_run(path).summary()
    assert summary["state"] == "unknown" and "status.json" in summary["problems"][0] and summary["newest"] == 4
