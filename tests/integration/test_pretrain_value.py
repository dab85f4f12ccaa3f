"""`lecritique pretrain-value`: no epochs are no pretraining, and what comes out starts any run."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lecritique.config.schema import NoContext
from lecritique.models.scoring import token_row
from lecritique.models.scoring import values as values_of
from lecritique.numerics.explained_variance import explained_variance
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.build import build, load_base
from lecritique.runtime.pretraining import fit_critic, measure_critic
from lecritique.runtime.pretraining_plan import PretrainWishes, _alike, plan_pretraining, responses_of
from lecritique.runtime.training import train
from tests.integration.command_line import Answer, call
from tests.integration.short_runs import small_config, small_parts, trained, without_clocks

SMALL = ("task.rows=40", "task.min_empty=6", "task.max_empty=10", "rollout.batch_size=16")
FEW = ("--rollouts-per-prompt", "2", "--measurements", "2", "--epochs", "1")


@pytest.fixture
def pretrain(capfd, monkeypatch, tmp_path):
    def command(*arguments: str, out: str = "p", recipe: str = "demo") -> Answer:
        return call(capfd, monkeypatch, "pretrain-value", recipe, *SMALL, *arguments, "--out", str(tmp_path / out))

    return command


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "critic" / "value_model.safetensors")


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def test_no_epochs_are_no_pretraining(pretrain, tmp_path):
    assert pretrain(*FEW[:4], "--epochs", "0").code == 0
    folder = tmp_path / "p" / "privileged"
    parts = small_parts("critic.warmup=leave_one_out", arm="pvf")
    own = {name: tensor.clone() for name, tensor in parts.learner.values.trainer.model.state_dict().items()}
    assert same(weights(folder), own) and same(weights(tmp_path / "p" / "clean"), own)
    started = small_parts("critic.warmup=leave_one_out", f"critic.init={folder}", arm="pvf")
    assert without_clocks(trained(parts)) == without_clocks(trained(started))
    summary = json.loads((tmp_path / "p" / "summary.json").read_text())
    assert summary["variants"]["clean"]["updates"] == 0 and len(summary["variants"]["clean"]["curve"]) == 1


def test_what_comes_out_starts_every_estimator_with_a_critic(pretrain, tmp_path):
    answer = pretrain(*FEW)
    assert answer.code == 0, answer.err
    for arm, variant in (("value", "clean"), ("pvf", "privileged"), ("tether", "clean"), ("evpo", "clean")):
        folder = tmp_path / "p" / variant
        parts = small_parts(f"critic.init={folder}", arm=arm)
        assert same(weights(folder), parts.learner.values.trainer.model.state_dict()), arm
        assert all(math.isfinite(row["reward"]) for row in trained(parts, 1)), arm
    clean, privileged = (weights(tmp_path / "p" / name) for name in ("clean", "privileged"))
    assert not same(clean, privileged)


def test_vaspo_starts_from_a_plain_square_loss(pretrain, tmp_path):
    assert pretrain(*FEW, "--arm", "vaspo", "--variants", "privileged").code == 0
    folder = tmp_path / "p" / "privileged"
    assert json.loads((folder / "critic" / "value_loss.json").read_text())["type"] == "mse"
    summary = json.loads((tmp_path / "p" / "summary.json").read_text())
    assert summary["config"]["critic"]["context"]["placement"] == "user_suffix"
    parts = small_parts(f"critic.init={folder}", arm="vaspo")
    assert same(weights(folder), parts.learner.values.trainer.model.state_dict())
    assert math.isfinite(trained(parts, 1)[0]["explained_variance"])


def test_a_second_call_goes_on(pretrain, tmp_path):
    """A part that is missing is collected again, and everything comes out as before."""
    assert pretrain(*FEW).code == 0
    wanted = {name: weights(tmp_path / "p" / name) for name in ("clean", "privileged")}
    part = tmp_path / "p" / "collection" / "policy-0-part-00000"
    held = (part / "arrays.npz").read_bytes()
    (tmp_path / "p" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "p" / "privileged")
    shutil.rmtree(part)
    (part.parent / ".writing-policy-0-part-00000").mkdir()
    assert pretrain(*FEW).code == 0
    assert (part / "arrays.npz").read_bytes() == held and not list(part.parent.glob(".writing-*"))
    assert all(same(weights(tmp_path / "p" / name), one) for name, one in wanted.items())
    assert "complete" in pretrain(*FEW).out


def test_several_policies_and_a_run(pretrain, tmp_path):
    base = load_base(small_config("run.steps=1", *SMALL[:3], arm="mean"))
    train(build(base), RunDirectory.create(tmp_path / "run", base.config))
    assert pretrain(*FEW, "--policies", f"tiny,{tmp_path / 'run'}", "--rows", "5", "--held-out-rows", "3").code == 0
    summary = json.loads((tmp_path / "p" / "summary.json").read_text())
    assert summary["responses"]["rollouts"] == 2 * 2 * 8 and len(summary["policies"]) == 2
    assert len(set(summary["policies"].values())) == 2


def test_saved_rollouts_of_a_run(pretrain, tmp_path):
    base = load_base(small_config("run.steps=4", *SMALL[:3], "run.save_rollouts_every=1", arm="mean"))
    train(build(base), RunDirectory.create(tmp_path / "run", base.config))
    run = ("--rollouts", str(tmp_path / "run"), "--held-out", "0.4")
    answer = pretrain(*FEW, *run, "--rows", "0")
    assert answer.code == 0, answer.err
    assert json.loads((tmp_path / "p" / "summary.json").read_text())["responses"]["rollouts"] == 32
    other = pretrain(*FEW, *run, "task.rows=39", out="q")
    assert other.code == 2 and "'task.rows' = 40, the recipe has 39" in other.err
    changed = pretrain(*FEW, *run, "sampling.temperature=1.0", out="r")
    assert changed.code == 0


def test_held_out_problems_are_none_that_were_fitted_on():
    plan = plan_pretraining(small_config(*SMALL, "critic.replay.refill_size=16"), PretrainWishes(size=1, held_out=0.3))
    tasks = [
        {plan.base.environment.task(row).messages for row in rows} for rows in (plan.train_rows, plan.held_out_rows)
    ]
    assert tasks[0] and tasks[1] and not tasks[0] & tasks[1]


def test_figures_are_of_the_natural_distribution(tmp_path):
    """EV of the held-out responses against all their tokens at once, and a variant differs by its context alone."""
    plan = plan_pretraining(small_config(*SMALL, "critic.replay.refill_size=16"), PretrainWishes(size=2))
    responses = responses_of(plan, tmp_path / "c")
    parts = _alike(plan.base, responses.held_out, ("clean", "privileged"))
    assert [s.rollout_id for s in parts["clean"]] == [s.rollout_id for s in parts["privileged"]]
    assert all(s.contexts == (None,) for s in parts["clean"]) and all(s.contexts[0] for s in parts["privileged"])
    assert len(parts["clean"]) == sum(len(group.trajectories) for group in responses.held_out)
    fitted = fit_critic(plan.base, parts["clean"], parts["clean"], epochs=1, measurements=1)
    values, returns = [], []
    rows = [token_row(s.trajectories[0]) for s in parts["clean"]]
    for column, sample in zip(values_of(fitted.model, rows, max_tokens=512), parts["clean"], strict=True):
        values += column.tolist()
        returns += [sample.trajectories[0].episode_return] * len(column)
    literal = explained_variance(torch.tensor(values), torch.tensor(returns))
    assert fitted.curve[-1].explained_variance == pytest.approx(literal, abs=1e-5)
    measured = measure_critic(fitted.model, parts["clean"], max_tokens=256)
    assert measured.fit.value() == pytest.approx(literal, abs=1e-5)
    assert fitted.curve[-1].bias == pytest.approx(np.mean(values) - np.mean(returns), abs=1e-5)


def test_rows_have_room_for_the_privileged_critic_whatever_the_arm():
    plan = plan_pretraining(small_config(*SMALL, "critic.replay.refill_size=16", arm="value"), PretrainWishes())
    assert not isinstance(plan.base.config.critic.context, NoContext)


def test_a_limit_of_time_ends_the_fit(pretrain, tmp_path):
    assert pretrain(*FEW[:4], "--epochs", "50", "--max-seconds", "0").code == 0
    summary = json.loads((tmp_path / "p" / "summary.json").read_text())
    assert all(figures["updates"] == 1 for figures in summary["variants"].values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--variants", "clean,privy"), "no variant 'privy'"),
        (("--variants", ""), "each variant once"),
        (("--variants", "clean,clean"), "each variant once"),
        (("--arm", "mean"), "trains no critic"),
        (("estimator.gamma=0.9",), "'estimator.gamma' = 0.9"),
        (("--policies", "tiny", "--rollouts", "x"), "two sources"),
        (("--policies", "no-such-model"), "no-such-model"),
        (("--rollouts", "no-such-run"), "not a run directory"),
        (("--epochs", "-1"), "'--epochs'"),
        (("critic.context.type=rubric",), "rubric"),
        (("task.rows=1",), "no problem is left"),
        (("nonsense",), "expected key.path=value"),
    ],
)
def test_bad_input_is_one_sentence(pretrain, arguments, said):
    answer = pretrain(*arguments)
    assert answer.code == 2 and said in answer.err and answer.err.strip().count("\n") == 0


def test_other_settings_are_refused_by_name(pretrain):
    assert pretrain(*FEW, "--variants", "clean").code == 0
    answer = pretrain(*FEW, "--variants", "clean", "--no-balance")
    assert answer.code == 2 and "'wanted.balance' = True, this call has False" in answer.err


def test_a_damaged_part_is_named(pretrain, tmp_path):
    assert pretrain(*FEW, "--variants", "clean").code == 0
    (tmp_path / "p" / "summary.json").unlink()
    (tmp_path / "p" / "collection" / "policy-0-part-00000" / "arrays.npz").write_bytes(b"junk")
    answer = pretrain(*FEW, "--variants", "clean")
    assert answer.code == 2 and "policy-0-part-00000" in answer.err
