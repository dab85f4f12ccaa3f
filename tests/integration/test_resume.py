"""A run that was interrupted and resumed is the run that was not, to the last bit (faults 26, 42, 43, 56)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from lecritique.core.errors import CheckpointError, ConfigurationError, Interrupted
from lecritique.runs.checkpoints import FOLDER, Checkpoints
from lecritique.runs.directory import RunDirectory, read_status
from lecritique.runtime.build import build, load_base
from lecritique.runtime.resuming import resume
from lecritique.runtime.training import train
from tests.integration.run_files import differences, state_of, tree_differences
from tests.integration.short_runs import small_config

STEPS, STOP = 6, 3
EXACT = (
    "runtime.dtype=float64",
    "runtime.loop=synchronous",
    f"run.steps={STEPS}",
    "run.checkpoint_every=0",
    "run.save_rollouts_every=1",
    "sampling.temperature=1.6",
    "critic.replay.refill_size=16",
    "critic.optimizer.warmup_steps=4",
)
ARMS = {
    "mean": ("mean", ()),
    "pvf": ("pvf", ()),
    "tether": ("tether", ()),
    "tether, window across steps": ("tether", ("rollout.batch_size=12", "critic.replay.refill_size=12")),
    "tether by position": ("tether", ("estimator.horizon=4096",)),
    "evpo lagged": ("evpo", ("estimator.lagged=true",)),
    "adaptive lambda": ("value", ("estimator.gae_lambda={bias_weight=1.0}",)),
    "withheld batches": ("value", ("critic.warmup=discard", "critic.warmup_updates=2")),
    "an update every second step": ("value", ("critic.updates_per_policy_step=0.5",)),
    "two updates a step, clipped": (
        "value",
        ("critic.updates_per_policy_step=2", "critic.loss.type=clipped_mse", "policy.loss.type=ppo"),
    ),
    "several epochs of few rows": ("tether", ("task.rows=3", "policy.minibatch_size=4", "policy.loss.type=ppo")),
    "float32": ("tether", ("runtime.dtype=float32",)),
    "siblings": ("value", ("critic.context.type=siblings",)),
    "ppo": ("ppo", ("policy.minibatch_size=4", "policy.optimizer.warmup_steps=50")),
    "ppo in its usual order": ("ppo", ("critic.schedule.pre_update=false", "policy.minibatch_size=4")),
    "critic_only": ("critic_only", ()),
    "vaspo": ("vaspo", ("policy.minibatch_size=4",)),
    "vaspo, float32, all late": (
        "vaspo",
        ("runtime.dtype=float32", "policy.modulation.denominator=current", "policy.teacher.rescore=true"),
    ),
    "opsd": ("opsd", ("policy.minibatch_size=4",)),
    "rlsd": ("rlsd", ("policy.teacher.refresh_every=2",)),
    "dapo": ("dapo", ("rollout.dynamic_sampling=2",)),
    "adapters on one backbone": ("pvf", ("model.adapter.type=lora", "critic.backbone.type=shared")),
    "adapters and a teacher": (
        "vaspo",
        ("model.adapter.type=lora", "critic.backbone.type=lora", "runtime.dtype=float32"),
    ),
    "tether, privileged, with a teacher": (
        "tether",
        ("critic.context.type=reference", "policy.modulation.type=fusion", "critic.schedule.type=train_then_score"),
    ),
}


def run_to_the_end(path: Path, arm: str, *overrides: str) -> Path:
    base = load_base(small_config(*EXACT, *overrides, arm=arm))
    directory = RunDirectory.create(path, base.config)
    train(build(base), directory)
    directory.close()
    return path


def run_until_interrupted(path: Path, arm: str, *overrides: str, stop: int = STOP) -> Path:
    """Send a signal from within: the step that is then under way is finished."""

    def on_step(step: int, _: object) -> None:
        if step + 2 == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    base = load_base(small_config(*EXACT, *overrides, arm=arm))
    directory = RunDirectory.create(path, base.config)
    with pytest.raises(Interrupted, match=f"after step {stop} of {base.config.run.steps}.*--resume"):
        train(build(base), directory, on_step=on_step)
    directory.close()
    return path


def resumed(path: Path, *overrides: str) -> Path:
    found = resume(path, overrides)
    try:
        train(found.begin(), found.directory, first=found.first)
    finally:
        found.directory.close()
    return path


def events(path: Path, kind: str) -> list[dict]:
    rows = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


# Those that differ most; the others are variants of them and take their turn in `make test-all`.
IN_EVERY_RUN = {
    "mean",
    "tether",
    "evpo lagged",
    "adaptive lambda",
    "an update every second step",
    "siblings",
    "vaspo",
    "dapo",
    "adapters on one backbone",
}
NAMES = [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.slow) for name in ARMS]


@pytest.mark.parametrize("name", NAMES)
def test_fault_43_interrupted_and_resumed_equals_uninterrupted(tmp_path, name):
    arm, overrides = ARMS[name]
    straight = run_to_the_end(tmp_path / "straight", arm, *overrides)
    broken = run_until_interrupted(tmp_path / "broken", arm, *overrides)
    assert read_status(broken) == "interrupted"
    resumed(broken)
    assert read_status(broken) == "finished"
    assert differences(straight, broken) == []
    # What was compared has moved, and the comparison can tell.
    assert state_of(broken)["learner"]["policy"]["optimizer"]["steps"] > 0
    if name == "tether":
        other = run_to_the_end(tmp_path / "other", arm, *overrides, "run.seed=1")
        assert len(differences(straight, other)) > 10


def test_resumed_many_times_and_passing_over_a_damaged_checkpoint(tmp_path):
    straight = run_to_the_end(tmp_path / "straight", "tether")
    broken = run_until_interrupted(tmp_path / "broken", "tether", stop=2)
    for stop in (3, 4):
        found = resume(broken, [f"run.steps={stop}"])
        train(found.begin(), found.directory, first=found.first)
        found.directory.close()
    newest = Checkpoints(broken / FOLDER).latest()
    tensors = newest / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"x")
    found = resume(broken, [f"run.steps={STEPS}"])
    assert (found.first, found.passed_over) == (3, (newest.name,))
    assert any(newest.name in note and "Damaged" in note for note in found.notes)
    train(found.begin(), found.directory, first=found.first)
    found.directory.close()
    assert differences(straight, broken) == []
    assert [event["step"] for event in events(broken, "resumed")] == [2, 3, 3]
    assert events(broken, "resumed")[-1]["changes"] == {"run.steps": [4, STEPS]}
    rows = [json.loads(line) for line in (broken / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["resume"]) for row in rows] == [(0, 0), (1, 0), (2, 1), (3, 2), (3, 3), (4, 3), (5, 3)]


def test_fault_42_at_the_end_of_an_epoch_the_remaining_steps_are_trained(tmp_path):
    """8 rollouts in groups of 4: two rows a step; the third step ends the epoch of six rows."""
    few = ("task.rows=6", "rollout.group_size=4", "rollout.batch_size=8")
    straight = run_to_the_end(tmp_path / "straight", "tether", *few)
    broken = run_until_interrupted(tmp_path / "broken", "tether", *few)
    resumed(broken)
    assert differences(straight, broken) == [] and len((broken / "metrics.jsonl").read_text().splitlines()) == STEPS


def test_fault_42_a_finished_run_is_refused_and_goes_on_with_more_steps(tmp_path):
    straight = run_to_the_end(tmp_path / "straight", "tether")
    short = run_to_the_end(tmp_path / "short", "tether", f"run.steps={STOP}")
    before = {path: path.stat().st_mtime_ns for path in short.rglob("*")}
    with pytest.raises(ConfigurationError, match=rf"all {STOP} steps are done.*run.steps={2 * STOP}"):
        resume(short, [])
    assert {path: path.stat().st_mtime_ns for path in short.rglob("*")} == before
    resumed(short, f"run.steps={STEPS}")
    assert read_status(short) == "finished"
    # Rollouts of the last step of the short run are saved as they would have been.
    assert differences(straight, short) == []
    with pytest.raises(ConfigurationError, match=rf"'run.steps' = 2 lies behind the {STEPS} steps"):
        resume(short, ["run.steps=2"])


def test_a_run_killed_between_its_last_checkpoint_and_its_weights_is_completed(tmp_path):
    run = run_to_the_end(tmp_path / "run", "tether")
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"state": "running"}))
    for path in (run / "weights" / "policy").glob("*.safetensors"):
        path.unlink()
    resumed(run)
    assert read_status(run) == "finished" and list((run / "weights" / "policy").glob("*.safetensors"))
    assert len((run / "metrics.jsonl").read_text().splitlines()) == STEPS


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    return run_until_interrupted(tmp_path_factory.mktemp("resume") / "run", "tether")


REFUSED = [
    ("run.seed=5", ("run.seed", "was 0", "become 5")),
    ("estimator.decay=0.5", ("estimator.decay", "0.95", "0.5")),
    ("rollout.group_size=2", ("rollout.group_size", "4", "2")),
    ("runtime.dtype=float32", ("runtime.dtype", "float64", "float32")),
    ("task.max_empty=9", ("task.max_empty", "10", "9")),
    ("critic.updates_per_policy_step=2", ("critic.updates_per_policy_step", "1.0", "2.0")),
    ("estimator.type=value", ("estimator",)),
    ("run.step=9", ("run.step", "Did you mean 'steps'")),
]


@pytest.mark.parametrize(("override", "words"), REFUSED)
def test_a_change_that_makes_another_run_is_refused_by_name(stopped, override, words):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError) as refused:
        resume(stopped, [override])
    assert all(word in str(refused.value) for word in words), refused.value
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_changes_that_are_allowed_are_named_and_recorded(tmp_path):
    broken = run_until_interrupted(tmp_path / "run", "mean")
    overrides = ["run.steps=5", "run.checkpoint_every=1", "run.keep_checkpoints=5", "runtime.micro_batch_tokens=512"]
    found = resume(broken, overrides)
    assert found.notes[0] == "Resuming after step 3 of 5 from step-00000003."
    assert "Changed: run.steps = 5, it was 6." in found.notes and "last bits" in found.notes[-1]
    train(found.begin(), found.directory, first=found.first)
    found.directory.close()
    (event,) = events(broken, "resumed")
    assert event["changes"]["runtime.micro_batch_tokens"] == [2048, 512] and event["resume"] == 1
    names = Checkpoints(broken / FOLDER).names()
    assert names == ("step-00000003", "step-00000004", "step-00000005")
    assert json.loads((broken / "config.json").read_text())["run"]["steps"] == 5


def test_a_run_that_lives_is_refused(stopped):
    live = RunDirectory.reopen(stopped)
    with pytest.raises(ConfigurationError, match="still going"):
        resume(stopped, [])
    live.close()
    resume(stopped, []).directory.close()


def test_what_is_no_run_or_has_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="not a run directory"):
        resume(tmp_path / "nothing", [])
    (tmp_path / "compare.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is a comparison"):
        resume(tmp_path, [])
    base = load_base(small_config(*EXACT, arm="mean"))
    RunDirectory.create(tmp_path / "new", base.config).close()
    with pytest.raises(CheckpointError, match=r"no checkpoint to resume from \(none was saved"):
        resume(tmp_path / "new", [])
    (tmp_path / "new" / FOLDER / "step-00000002").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="damaged: step-00000002"):
        resume(tmp_path / "new", [])
    (tmp_path / "new" / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match="not a configuration of this version"):
        resume(tmp_path / "new", [])


def test_data_that_have_changed_are_refused(stopped, monkeypatch):
    from lecritique.runtime import run_state

    found = resume(stopped, [])
    monkeypatch.setattr(run_state, "_rows", lambda parts: {"count": 15, "digest": ""})
    with pytest.raises(CheckpointError, match="trained on 16 rows"):
        found.begin()
    found.directory.close()


def test_a_run_without_checkpoint_every_saves_at_the_end_only(tmp_path):
    run = run_to_the_end(tmp_path / "run", "mean", "run.steps=3")
    assert Checkpoints(run / FOLDER).names() == ("step-00000003",)


def test_checkpoints_change_no_number(tmp_path):
    plain = run_to_the_end(tmp_path / "plain", "tether")
    often = run_to_the_end(tmp_path / "often", "tether", "run.checkpoint_every=1")
    assert differences(plain, often) == []
    assert Checkpoints(often / FOLDER).names() == ("step-00000005", "step-00000006")


def test_fault_56_tensorboard_has_one_value_a_step(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = 'run.sinks=["tensorboard"]'
    run = run_to_the_end(tmp_path / "run", "mean", sink, "run.checkpoint_every=2", "run.keep_checkpoints=9")
    for step in ("step-00000006",):
        (run / FOLDER / step / "complete.json").unlink()
    resumed(run)  # from step 4: steps 4 and 5 are done again
    found = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    scalars = found.Scalars("rollout/reward")
    assert [scalar.step for scalar in scalars] == list(range(STEPS))


def test_saved_rollouts_of_steps_that_are_done_again_are_replaced(tmp_path):
    run = run_to_the_end(tmp_path / "run", "mean", "run.checkpoint_every=2", "run.keep_checkpoints=9")
    kept = {p.name: p.read_bytes() for p in (run / "rollouts").iterdir()}
    for name in ("step-00000006", "step-00000004"):
        (run / FOLDER / name / "complete.json").unlink()
    found = resume(run, ["run.steps=3"])
    parts = found.begin()
    assert sorted(p.name for p in (run / "rollouts").iterdir()) == ["step-00000.parquet", "step-00001.parquet"]
    train(parts, found.directory, first=found.first)
    found.directory.close()
    assert (run / "rollouts" / "step-00002.parquet").read_bytes() == kept["step-00002.parquet"]


def test_the_comparison_of_trees_sees_a_bit():
    one = {"a": [np.zeros(2), 1.0], "b": float("nan")}
    assert tree_differences(one, {"a": [np.zeros(2), 1.0], "b": float("nan")}) == []
    assert tree_differences(one, {"a": [np.array([0.0, -0.0]), 1], "b": 1.0}) == ["/a/0", "/a/1", "/b"]
