"""Presets are compositions of parts that are chosen one by one; combinations that make no sense are refused by name."""

from __future__ import annotations

import pytest

from lecritique.config.load import Recipe, compose
from lecritique.config.losses import ClippedMse, Dapo, Opsd, Ppo
from lecritique.config.resolve import Facts, differences, resolve, teacher_content, uses_critic, uses_teacher
from lecritique.config.schema import NoContext, ReferenceContext, RunConfig, ScoreThenTrain, TrainThenScore
from lecritique.config.teachers import EmaTeacher, FrozenTeacher, Fusion, NoModulation, Rlsd, SnapshotTeacher
from lecritique.core.errors import ConfigurationError

FACTS = Facts(device="cpu", context_length=128, reward_range=(0.0, 1.0))
TREE = {"task": {"type": "sudoku", "size": 4}, "runtime": {"loop": "synchronous"}}
TEACHER = "policy.modulation.type=fusion"


def resolved(*overrides: str, arm: str | None = None, tree: dict | None = None) -> RunConfig:
    recipe = Recipe(name="r", text="", tree=TREE if tree is None else tree, arms={}, default_arm=None)
    return resolve(compose(recipe, arm=arm, overrides=overrides), FACTS)


def refused(*overrides: str, names: tuple[str, ...], arm: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved(*overrides, arm=arm)
    message = str(caught.value)
    assert all(f"'{name}'" in message for name in names), message
    assert "\n" not in message and message.endswith(".")


def test_the_three_arms_of_vaspo_differ_in_context_and_teacher_alone() -> None:
    ppo, critic_only, vaspo = (resolved(arm=arm) for arm in ("ppo", "critic_only", "vaspo"))
    assert ppo.critic.schedule == TrainThenScore() and ppo.critic.loss == ClippedMse() and ppo.policy.loss == Ppo()
    assert ppo.critic.warmup_updates == 0 and ppo.policy.loss.rollout_weight
    assert ppo.critic.context == NoContext()
    assert critic_only.critic.context == ReferenceContext(placement="user_suffix")
    changed = differences(ppo, critic_only)
    assert {key for key in changed if not key.startswith("critic.context")} == {"preset"}
    assert vaspo.policy.modulation == Fusion() and vaspo.policy.teacher == EmaTeacher(content="answer")
    changed = differences(critic_only, vaspo)
    assert {key for key in changed if not key.startswith("policy.modulation")} == {"preset"}
    assert [uses_teacher(config) for config in (ppo, critic_only, vaspo)] == [False, False, True]


def test_the_arms_without_a_critic() -> None:
    opsd, rlsd, dapo = (resolved(arm=arm) for arm in ("opsd", "rlsd", "dapo"))
    assert opsd.policy.loss == Opsd() and opsd.estimator.type == "none" and uses_teacher(opsd)
    assert (rlsd.policy.loss, rlsd.policy.modulation, rlsd.estimator.scale) == (Ppo(), Rlsd(), "std")
    assert rlsd.policy.teacher == SnapshotTeacher(content="answer")
    assert (dapo.policy.loss, dapo.estimator.scale, dapo.estimator.overlong.type) == (Dapo(), "std", "soft")
    assert dapo.estimator.overlong.limit == 16384 and dapo.rollout.dynamic_sampling == 10
    assert not any(uses_critic(config) for config in (opsd, rlsd, dapo))


def test_a_recipes_own_word_on_the_same_part_is_kept_and_on_another_part_gives_way() -> None:
    tree = {
        **TREE,
        "policy": {"loss": {"type": "ppo", "eps_high": 0.3}, "teacher": {"type": "ema", "decay": 0.5}},
        "critic": {"context": {"type": "reference", "content": "both"}, "loss": {"type": "bce"}},
    }
    vaspo = resolved(arm="vaspo", tree=tree)
    assert vaspo.policy.loss == Ppo(eps_high=0.3) and vaspo.policy.teacher == EmaTeacher(decay=0.5, content="both")
    assert vaspo.critic.context == ReferenceContext(content="both") and vaspo.critic.loss == ClippedMse()
    dapo = resolved(arm="dapo", tree=tree | {"estimator": {"type": "mean", "overlong": {"type": "none"}}})
    assert dapo.policy.loss == Dapo() and dapo.estimator.scale == "std" and dapo.estimator.overlong.type == "none"
    # Presets that say nothing of a teacher leave the recipe's.
    fused = tree | {"policy": {"modulation": {"type": "fusion"}}}
    assert resolved(arm="tether", tree=fused).policy.modulation == Fusion()


def test_new_combinations_need_no_new_preset() -> None:
    config = resolved(TEACHER, "critic.context.type=reference", "policy.teacher.type=frozen", arm="tether")
    assert config.critic.schedule == ScoreThenTrain() and config.policy.teacher == FrozenTeacher(content="answer")
    assert resolved(TEACHER, "policy.loss.type=dppo", arm="mean").policy.modulation == Fusion()
    assert resolved("critic.schedule.type=train_then_score", arm="evpo").critic.schedule == TrainThenScore()


def test_what_a_teacher_is_told_follows_the_critics_context() -> None:
    assert teacher_content(resolved(TEACHER, arm="value")) == "answer"
    own = "critic.context={type='reference',content='solution'}"
    assert teacher_content(resolved(TEACHER, own, arm="pvf")) == "solution"
    assert teacher_content(resolved(TEACHER, own, "policy.teacher.content=none", arm="pvf")) == "none"
    assert teacher_content(resolved(TEACHER, "critic.context.type=siblings", arm="pvf")) == "answer"


def test_teachers_of_all_arms_are_known_to_each() -> None:
    for arm in ("mean", "pvf", "vaspo"):
        assert resolved(arm=arm).data.teachers == ("answer",)
    assert resolved("data.teachers=[]", arm="vaspo").data.teachers == ()


@pytest.mark.parametrize(
    ("overrides", "names", "arm"),
    [
        (("policy.loss.type=opsd",), ("policy.loss.type", "estimator.type", "opsd", "value"), "value"),
        (("estimator.type=none",), ("policy.loss.type", "estimator.type", "none", "dppo"), "mean"),
        ((TEACHER,), ("policy.modulation.type", "policy.loss.type"), "opsd"),
        (("policy.whiten=true",), ("policy.whiten", "policy.loss.type"), "opsd"),
        (
            ("policy.whiten=true", "policy.modulation.denominator=current"),
            ("policy.whiten", "policy.modulation.denominator"),
            "vaspo",
        ),
        (("policy.whiten=true", "policy.teacher.rescore=true"), ("policy.whiten", "policy.teacher.rescore"), "vaspo"),
        (("runtime.loop=asynchronous",), ("critic.schedule.type", "runtime.loop"), "ppo"),
        (("runtime.loop=asynchronous",), ("rollout.dynamic_sampling", "runtime.loop"), "dapo"),
        (("rollout.dynamic_sampling=1",), ("rollout.dynamic_sampling", "estimator.type", "tether"), "tether"),
        (("rollout.dynamic_sampling=1",), ("rollout.dynamic_sampling", "estimator.type", "value"), "value"),
        (("rollout.dynamic_sampling=1",), ("rollout.dynamic_sampling", "estimator.type", "none"), "opsd"),
        (("critic.warmup_updates=5", "run.steps=4"), ("run.steps", "critic.warmup_updates"), "ppo"),
        (("rollout.group_size=1",), ("estimator.type", "rollout.group_size"), "rlsd"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(overrides, names, arm) -> None:
    refused(*overrides, names=names, arm=arm)


def test_next_to_what_is_refused() -> None:
    assert resolved("policy.whiten=true", arm="vaspo").policy.whiten
    assert resolved("policy.whiten=true", "policy.teacher.rescore=true", arm="ppo").policy.modulation == NoModulation()
    assert resolved("runtime.loop=asynchronous", "critic.schedule.type=score_then_train", arm="ppo")
    # Without a critic the schedule is not read.
    assert resolved("runtime.loop=asynchronous", "critic.schedule.type=train_then_score", arm="mean")
    assert resolved("rollout.dynamic_sampling=1", arm="leave_one_out").rollout.dynamic_sampling == 1
    assert resolved("rollout.group_size=1", arm="opsd").rollout.group_size == 1
    # Four updates of the four steps come before the last scores; without the pre-update, three.
    assert resolved("critic.warmup_updates=4", "run.steps=4", arm="ppo")
    late = "critic.schedule.pre_update=false"
    refused(late, "critic.warmup_updates=4", "run.steps=4", names=("run.steps", "critic.warmup_updates"), arm="ppo")
    assert resolved("critic.warmup_updates=8", "run.steps=4", "policy.minibatch_size=64", arm="ppo")
