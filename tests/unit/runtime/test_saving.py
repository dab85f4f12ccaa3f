"""A run's checkpoints: when they are due, and that a disk that takes none does not end the run."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.core.errors import CheckpointError, ConfigurationError
from lecritique.runs.checkpoints import FOLDER, Checkpoints, load_checkpoint
from lecritique.runs.directory import RunDirectory, is_being_written, read_config
from lecritique.runtime.saving import Saver, newest_checkpoint

CONFIG = compose(load_recipe("demo"), arm="mean", overrides=["run.checkpoint_every=3", "run.keep_checkpoints=2"])
STATE = {"a": np.arange(3)}


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory.create(tmp_path / "run", CONFIG)
    yield made
    made.close()


def events(directory: RunDirectory) -> list[dict]:
    return [json.loads(line) for line in (directory.path / "events.jsonl").read_text().splitlines()]


def test_due_every_so_many_steps(directory) -> None:
    saver = Saver(directory, CONFIG)
    assert [step for step in range(1, 10) if saver.due(step)] == [3, 6, 9]
    never = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"checkpoint_every": 0})})
    assert not any(Saver(directory, never).due(step) for step in range(1, 10))


def test_saved_once_a_step_and_kept_as_many_as_asked(directory) -> None:
    saver = Saver(directory, CONFIG)
    assert all(saver.save(step, lambda: STATE) for step in (3, 6, 6, 9))
    assert Checkpoints(directory.path / FOLDER).names() == ("step-00000006", "step-00000009") and saver.saved == 9
    assert [(event["kind"], event["step"]) for event in events(directory)] == [
        ("checkpoint", step) for step in (3, 6, 9)
    ]
    path, damaged = newest_checkpoint(directory.path)
    tree = load_checkpoint(path)
    assert (path.name, tree["step"], damaged) == ("step-00000009", 9, ()) and tree["a"].tolist() == [0, 1, 2]
    assert tree["config"] == CONFIG.model_dump(mode="json")


def test_a_full_disk_is_told_counted_and_survived(directory, monkeypatch) -> None:
    told: list[str] = []
    saver = Saver(directory, CONFIG, warn=told.append)
    assert saver.save(3, lambda: STATE)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lecritique.runs.state_files.np.savez", full)
        assert not saver.save(6, lambda: STATE) and not saver.save(9, lambda: STATE)
    assert [path.name for path in (directory.path / FOLDER).iterdir()] == ["step-00000003"]
    assert len(told) == 2 and "after step 6" in told[0] and "No space left" in told[0] and "of step 3" in told[0]
    failed = [event for event in events(directory) if event["kind"] == "checkpoint_failed"]
    assert [(event["step"], event["failed"]) for event in failed] == [(6, 1), (9, 2)]
    assert saver.stopped(9, 20) == (
        f"interrupted after step 9 of 20; 'lecritique train --resume {directory.path}' goes on from step 3."
    )
    assert saver.save(12, lambda: STATE) and saver.saved == 12


def test_without_any_checkpoint_it_says_so(directory, monkeypatch, capsys) -> None:
    saver = Saver(directory, CONFIG)
    monkeypatch.setattr(RunDirectory, "append_event", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
    monkeypatch.setattr(Checkpoints, "save", lambda *_: (_ for _ in ()).throw(OSError("full")))
    assert not saver.save(3, lambda: STATE)
    assert capsys.readouterr().err.startswith("lecritique: warning: the checkpoint after step 3 could not be written")
    assert saver.stopped(3, 20) == "interrupted after step 3 of 20; no checkpoint could be saved."
    with pytest.raises(CheckpointError, match="none was saved"):
        newest_checkpoint(directory.path)


def test_a_run_goes_on_under_its_lock_with_torn_lines_ended(tmp_path) -> None:
    path = tmp_path / "run"
    first = RunDirectory.create(path, CONFIG)
    first.append_metrics(0, {"reward": 0.5})
    first.close()
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 1, "resu')
    assert not is_being_written(path)
    again = RunDirectory.reopen(path)
    assert is_being_written(path) and again.resumes == 0
    with pytest.raises(ConfigurationError, match="still going"):
        RunDirectory.reopen(path)
    longer = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"steps": 999})})
    again.go_on(longer, step=1)
    assert is_being_written(path) and read_config(path).run.steps == 999
    again.append_metrics(1, {"reward": 0.6})
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert lines[1] == '{"step": 1, "resu' and json.loads(lines[2]) == {"step": 1, "resume": 1, "reward": 0.6}
    again.close()
    third = RunDirectory.reopen(path)
    assert third.resumes == 1  # by the metric rows, without a status
    third.go_on(longer, step=1)
    third.set_status("running", step=1, steps=999)
    third.close()
    (path / "metrics.jsonl").write_text("torn")
    fourth = RunDirectory.reopen(path)
    assert fourth.resumes == 2  # by the status
    fourth.close()


def test_files_that_are_no_run(tmp_path) -> None:
    for make in (lambda path: None, lambda path: path.write_text("x"), lambda path: path.mkdir()):
        path = tmp_path / f"x{len(list(tmp_path.iterdir()))}"
        make(path)
        with pytest.raises(ConfigurationError, match="not a run directory"):
            RunDirectory.reopen(path)
        with pytest.raises(ConfigurationError, match="not a run directory"):
            read_config(path)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not a configuration of this version"):
        read_config(Path(bad))
