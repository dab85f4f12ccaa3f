"""How numbers, times, progress and tables are written."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from lecritique.cli import compare as compare_command
from lecritique.cli import output, progress
from lecritique.cli.compare import _latest, _state, summary_table
from lecritique.cli.describe import arithmetic, memory, size_text
from lecritique.cli.output import duration, fail, number
from lecritique.cli.progress import TrainProgress
from lecritique.cli.tasks import parsed
from lecritique.config.load import compose, load_recipe
from lecritique.config.resolve import Facts, resolve
from lecritique.planning.memory import activation_bytes, role_memory, stored_weights
from lecritique.planning.shapes import shape_of
from lecritique.planning.weights import joined_numbers

METRICS = {"reward": 0.25, "tokens_per_second": 12345.6}
FACTS = Facts(device="cpu", context_length=128, reward_range=(0.0, 1.0))
# Of 2**20 parameters, a multiple of which each role holds.
SHAPE = replace(shape_of("tiny"), parameters=2**20)


@pytest.mark.parametrize(
    ("value", "text"), [(0.12345, "0.123"), (-2.0, "-2.000"), (None, "-"), (math.nan, "-"), (math.inf, "-")]
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.9, "1:01"), (3600, "1:00:00"), (86399, "23:59:59")])
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_failure_is_one_line_whatever_its_text_holds(capsys):
    with pytest.raises(SystemExit) as ended:
        fail("two\nlines  and\ttabs.", 3)
    assert (ended.value.code, capsys.readouterr().err) == (3, "lecritique: two lines and tabs.\n")


def described(arm: str, *overrides: str) -> str:
    size = ("rollout.batch_size=16", "rollout.group_size=4")
    config = resolve(compose(load_recipe("demo"), arm=arm, overrides=[*size, *overrides]), FACTS)
    return "\n".join([*arithmetic(config), *memory(config, SHAPE)])


def test_a_plan_says_which_critic_and_which_teacher():
    minibatches = "policy.minibatch_size=4"
    vaspo = described("vaspo", minibatches)
    assert "Critic: 4 updates of 4 rollouts a step, one epoch of the batch before it is scored" in vaspo
    assert "Teacher: ema, told answer." in vaspo and "Memory: teacher 4.0 MiB (a copy)" in vaspo
    usual = described("ppo", minibatches, "critic.schedule.pre_update=false")
    assert "of the batch after the policy" in usual and "eacher" not in usual
    assert "Critic: none, the teacher stands in for advantages." in described("opsd")
    assert "up to 10 rounds a step, so at most 176 rollouts" in described("dapo")
    assert "Critic: none, the baseline comes from the group." in described("rlsd")


def test_a_step_shows_what_its_arm_has():
    assert TrainProgress.text(METRICS, 61) == "reward 0.250  12,346 tok/s  1:01 left"
    critic = {**METRICS, "value_updates": 3.0, "explained_variance": math.nan, "rho": 0.5}
    assert TrainProgress.text(critic, 0) == "reward 0.250  EV -  rho 0.500  12,346 tok/s  0:00 left"


def test_a_long_run_tells_some_twenty_steps_and_always_the_first_and_the_last(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=out, width=40))
    with TrainProgress("pvf", 1003) as shown:
        for step in range(1003):
            shown.step(step, METRICS)
    lines = out.getvalue().splitlines()
    assert 20 <= len(lines) <= 23
    assert "step 1/1003" in lines[0] and "step 1003/1003" in lines[-1]
    assert all(line.startswith("pvf  step ") and line.endswith("left") for line in lines)


def test_a_narrow_terminal_is_enough(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=out, width=40, force_terminal=True))
    with TrainProgress("[an arm with brackets]", 3) as shown:
        shown.step(0, METRICS)
    assert "1/3" in out.getvalue() and "brackets" in out.getvalue()


class Planned:
    """What the live table needs of a plan."""

    def __init__(self, folder):
        jobs = tuple(Ran(folder, name) for name in ("tether seed 0", "mean seed 0", "pvf seed 0"))
        self.out, self.finished, self.jobs = folder, jobs[:1], jobs[1:]


class Ran:
    """What it needs of a job."""

    def __init__(self, folder, name):
        self.name, self.path = name, folder / name
        self.config = compose(load_recipe("demo"), overrides=["run.steps=3"])
        self.path.mkdir()
        (self.path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.25, "rho": null}\n')
        (self.path / "status.json").write_text('{"state": "finished", "step": 3, "steps": 3, "message": null}')


@pytest.mark.parametrize("width", [20, 40, 120])
def test_a_comparison_is_watched_live_on_any_terminal(tmp_path, monkeypatch, width):
    out = io.StringIO()
    monkeypatch.setattr(compare_command, "console", Console(file=out, width=width, force_terminal=True))
    plan = Planned(tmp_path)
    with compare_command._Watch(plan) as watch:
        watch.show([plan.jobs[0]], [])
        watch.show([], [plan.jobs[0]])
    if width == 120:
        assert all(text in out.getvalue() for text in ("tether seed 0", "2/3", "0.250", "1 more to start"))


def test_elsewhere_an_ended_run_is_told_once(tmp_path, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(compare_command, "console", Console(file=out, width=40))
    plan = Planned(tmp_path)
    with compare_command._Watch(plan) as watch:
        watch.show([plan.jobs[0]], [])
        watch.show([plan.jobs[1]], [plan.jobs[0]])
        watch.show([], list(plan.jobs))
    assert out.getvalue().splitlines() == [f"{job.name}: finished at step 3/3, reward 0.250, EV -" for job in plan.jobs]


def test_the_table_of_a_comparison_has_a_row_for_every_arm():
    summary = {
        "base_reward": None,
        "arms": {
            "mean": {"reward_last": [0.5, None], "explained_variance_last": [None, None], "rho_last": [None, None]},
            "tether": {"reward_last": [0.75, 0.25], "explained_variance_last": [0.1, -3.0], "rho_last": [0.5, 0.0]},
        },
    }
    out = io.StringIO()
    Console(file=out, width=100).print(summary_table(summary))
    text = out.getvalue()
    mean, tether = [line for line in text.splitlines() if "mean " in line or "tether" in line]
    assert "0.500  -" in mean and "0.750  0.250" in tether and "-3.000" in tether


def test_the_latest_whole_row_is_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert _latest(path) is None
    path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2, "rew')
    assert _latest(path) == {"step": 1}
    path.write_text("".join(f'{{"step": {i}, "reward": 0.5}}\n' for i in range(2000)))
    assert _latest(path) == {"step": 1999, "reward": 0.5}


def test_the_state_of_a_run_is_told(tmp_path):
    assert _state(tmp_path) == "did not start"
    (tmp_path / "status.json").write_text('{"state": "diverged", "step": 3, "steps": 9, "message": "the loss is nan."}')
    assert _state(tmp_path) == "diverged at step 3/9 (the loss is nan.), reward -, EV -"


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2), ("float64", 8)])
def test_memory_counts_the_copies_of_every_role(dtype, width):
    config = resolve(compose(load_recipe("demo"), arm="value", overrides=[f"runtime.dtype={dtype}"]), FACTS)
    held = {role.role: (role.weights + role.states) / 2**20 for role in role_memory(config, SHAPE)}
    engine = width * (1 + joined_numbers(config, SHAPE) / 2**20)
    assert held == {"engine": engine, "policy trainer": 4 * width, "evaluator": width, "value trainer": 4 * width}
    assert stored_weights(config, SHAPE) == 2 * width * 2**20
    lines = list(memory(config, SHAPE))
    everything = sum(role.total for role in role_memory(config, SHAPE)) + stored_weights(config, SHAPE)
    assert any(line.endswith(f"all roles {size_text(everything)}") for line in lines)
    assert any("16 bytes a parameter" in line for line in lines) == (dtype == "bfloat16")
    assert activation_bytes(config, SHAPE, checkpointing=True) < activation_bytes(config, SHAPE)
    group = resolve(compose(load_recipe("demo"), arm="mean", overrides=[f"runtime.dtype={dtype}"]), FACTS)
    assert [role.role for role in role_memory(group, SHAPE)] == ["engine", "policy trainer"]


def test_the_arithmetic_is_of_the_resolved_configuration():
    overrides = ["rollout={batch_size=24,group_size=8}", "run.steps=1000", "critic.replay.batch_size=6"]
    config = resolve(compose(load_recipe("demo"), arm="tether", overrides=overrides), FACTS)
    batch, tokens, policy, critic, warmup = arithmetic(config)
    assert batch == "Batch: 24 rollouts = 3 groups of 8; 1000 steps = 24,000 rollouts of sudoku."
    assert tokens == "Tokens: at most 128 a rollout with its prompt and 3,072 a batch, 20 a turn."
    assert policy == "Policy: 1 optimizer step of 24 rollouts a batch, 1,000 in all; loss dppo, warm-up over 0."
    assert "1 update of 6 rollouts a step, each rollout at most 2 times, 12 held, context none." in critic
    assert "before critic version 20 are credited by leave-one-out" in warmup


def test_task_options_are_given_as_overrides():
    assert parsed(["size=9", "dataset_options.max_terms=3"]) == {"size": 9, "dataset_options": {"max_terms": 3}}
    assert parsed(None) == {}


def test_brackets_and_colons_of_a_path_are_printed_as_they_are():
    with output.console.capture() as captured:
        output.console.print("run: a/[/x] [b] :smile:", soft_wrap=True)
    assert captured.get() == "run: a/[/x] [b] :smile:\n"
