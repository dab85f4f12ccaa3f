"""`diagnose audit` and `diagnose gradients` on the bundled model: a recipe, a run, a planted leak, bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from lecritique.analysis import audit as audit_module
from lecritique.analysis.study_subject import Critic, is_clean, open_subject
from lecritique.cli.diagnose import diagnose
from lecritique.cli.train import train
from lecritique.core.errors import ConfigurationError, DataError
from tests.integration.short_runs import SMALL

SHORT = SMALL
app = typer.Typer()
app.add_typer(diagnose, name="diagnose")
app.command("train")(train)


class Leaky(Critic):
    """A critic that says what the rollout will earn."""

    def scored(self, groups):
        return [
            replace(
                group,
                predictions=tuple(
                    replace(p, values=np.where(t.action_mask, t.episode_return, 0.0))
                    for p, t in zip(group.predictions, group.trajectories, strict=True)
                ),
            )
            for group in super().scored(groups)
        ]


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["diagnose", *arguments])


def assert_no_nan(path) -> dict:
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in {path}"))


@pytest.fixture(scope="module")
def subject():
    found = open_subject("demo", SHORT, arm=None, critics=("value", "pvf"), warmup_batches=1)
    yield found
    found.parts.engine.close()


def test_a_recipe_has_a_clean_and_a_privileged_critic_trained_on_its_rollouts(subject):
    assert [is_clean(critic) for critic in subject.critics.values()] == [True, False]
    assert all(critic.values.trainer.updates == 1 for critic in subject.critics.values())
    assert subject.parts.learner.policy.steps == 0
    groups = subject.problems(9)
    assert len({group.group_id.row for group in groups}) == len(groups) == 9
    assert len(subject.problems(1000)) <= 16


def test_the_audit_passes_every_context_of_the_demo_and_flags_a_planted_leak(subject):
    found = audit_module.audit(subject, problems=10)
    assert not found["flagged"]
    assert {"siblings", "env, system_prefix", "reference answer, user_suffix"} <= set(found["contexts"])
    assert all(record["checked"]["own response"] for record in found["contexts"].values())
    honest = subject.critics["pvf"]
    assert found["critics"]["pvf"]["values"]["checked"]["values"] > 0
    leaky = Leaky(name="pvf", config=honest.config, context=honest.context, values=honest.values)
    caught = audit_module.audit(replace(subject, critics={"pvf": leaky}), problems=10)
    assert caught["flagged"] and caught["critics"]["pvf"]["values"]["flagged"]
    of_leak = caught["critics"]["pvf"]["gradients"]
    assert of_leak["p_value"] == of_leak["outcome_control_p_value"]


def test_an_audit_needs_a_critic(subject):
    with pytest.raises(DataError, match="no critic"):
        audit_module.audit(replace(subject, critics={}), problems=8)


def test_the_commands_on_a_recipe(tmp_path):
    audited = invoke(
        "audit", "demo", *SHORT, "--problems", "8", "--warmup-batches", "0", "--out", str(tmp_path / "a.json")
    )
    assert audited.exit_code == 0, audited.output
    assert "No leak found" in audited.output
    record = assert_no_nan(tmp_path / "a.json")
    assert record["critics"]["pvf"]["gradients"]["problems"] == 8
    studied = invoke(
        "gradients", "demo", *SHORT, "--problems", "4", "--warmup-batches", "1", "--out", str(tmp_path / "g.json")
    )
    assert studied.exit_code == 0, studied.output
    record = assert_no_nan(tmp_path / "g.json")
    names = ["none", "none_centred", "mean", "leave_one_out", "value", "pvf", "tether", "evpo"]
    assert list(record["estimators"]) == names and record["critics"] == ["value", "pvf"]
    assert record["estimators"]["none"]["trajectory"]["ratio"]["estimate"] == 1
    traces = {name: of["trajectory"]["trace"] for name, of in record["estimators"].items()}
    assert len(record["contrasts"]) == 28
    for pair in record["contrasts"]:
        assert pair["trajectory"]["estimate"] == pytest.approx(traces[pair["a"]] / traces[pair["b"]])
    # The group mean of four holds a quarter of its own return.
    assert traces["mean"] == pytest.approx((3 / 4) ** 2 * traces["leave_one_out"], rel=1e-5)
    (pair,) = (p["trajectory"] for p in record["contrasts"] if (p["a"], p["b"]) == ("pvf", "value"))
    assert f"{pair['estimate']:.3f}" in studied.output.split("pvf / value")[1]
    assert "none, rewards centred" in studied.output
    html = (tmp_path / "g.html").read_text()
    assert "pvf over value" in html and "none, rewards centred" in html
    assert 'id="gradients-trajectory-' in html and 'id="gradients-group-' in html
    assert record["relative_error_of_a_norm"] == 0 and record["tether"]["critic"] == "value"


def test_the_commands_on_a_run(tmp_path):
    run = tmp_path / "run"
    trained = CliRunner().invoke(app, ["train", "demo", *SHORT, "--arm", "tether", "--out", str(run)])
    assert trained.exit_code == 0, trained.output
    studied = invoke("gradients", str(run), "--problems", "4", "--out", str(tmp_path / "g.json"))
    assert studied.exit_code == 0, studied.output
    assert {"critic of tether", "tether", "evpo"} <= set(assert_no_nan(tmp_path / "g.json")["estimators"])
    audited = invoke("audit", str(run), "--problems", "8")
    assert audited.exit_code == 0, audited.output


def test_bad_input_is_one_sentence(tmp_path):
    absent = invoke("audit", "no-such-recipe")
    assert isinstance(absent.exception, ConfigurationError)
    without = invoke("audit", "demo", *SHORT, "--arm", "mean", "--warmup-batches", "0")
    assert isinstance(without.exception, DataError) and "no critic" in str(without.exception)
    (tmp_path / "config.json").write_text("{}")
    unfinished = invoke("gradients", str(tmp_path))
    assert isinstance(unfinished.exception, ConfigurationError) and "no final weights" in str(unfinished.exception)
    assert isinstance(invoke("gradients", str(tmp_path / "absent")).exception, ConfigurationError)
