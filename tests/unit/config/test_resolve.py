"""Resolving derives what was left open, refuses what makes no sense, and changes nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lecritique.config.estimators import AdaptiveLambda, LengthLambda
from lecritique.config.load import Recipe, compose
from lecritique.config.presets import PRESETS
from lecritique.config.resolve import Facts, differences, resolve, uses_critic
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.critic.budget import UpdateBudget
from lecritique.critic.replay import ReplayBuffer

FACTS = Facts(device="cpu", context_length=128, reward_range=(0.0, 1.0))
RECIPE = Recipe(name="r", text="", tree={"task": {"type": "sudoku", "size": 4}}, arms={}, default_arm=None)


def configured(*overrides: str, arm: str = "value") -> RunConfig:
    return compose(RECIPE, arm=arm, overrides=overrides)


def resolved(*overrides: str, arm: str = "value", facts: Facts = FACTS) -> RunConfig:
    return resolve(configured(*overrides, arm=arm), facts)


def refused(*overrides: str, names: tuple[str, ...], arm: str = "value", facts: Facts = FACTS) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved(*overrides, arm=arm, facts=facts)
    message = str(caught.value)
    assert all(f"'{name}'" in message for name in names), message
    assert "\n" not in message and message.endswith(".")


def nones(tree: Any, path: str = "") -> list[str]:
    if isinstance(tree, dict):
        return [found for key, value in tree.items() for found in nones(value, f"{path}.{key}")]
    return [path] if tree is None else []


@pytest.mark.parametrize("arm", sorted(PRESETS))
def test_nothing_is_left_open_and_a_second_time_changes_nothing(arm):
    config = configured(arm=arm)
    before = config.model_dump_json()
    once = resolve(config, FACTS)
    assert config.model_dump_json() == before
    assert nones(once.model_dump()) == []
    assert resolve(once, FACTS) == once
    assert RunConfig.model_validate_json(once.model_dump_json()) == once
    assert RunConfig.model_validate(json.loads(json.dumps(once.model_dump(mode="json")))) == once


def test_what_is_derived():
    config = resolved("rollout.batch_size=64", "critic.replay.max_uses=3")
    replay = config.critic.replay
    assert (replay.batch_size, replay.capacity, replay.refill_size) == (64, 192, 192)
    assert (config.runtime.device, config.sampling.max_total_tokens) == ("cpu", 128)
    assert resolve(compose(RECIPE), FACTS).preset == "custom"


@pytest.mark.parametrize(
    ("device", "takes_packed", "layout", "tokens"),
    [("cpu", True, "packed", 2048), ("cpu", False, "padded", 2048), ("cuda:1", True, "padded", 16384)],
)
def test_rows_lie_as_is_best_where_they_are_read(device, takes_packed, layout, tokens):
    facts = Facts(device=device, context_length=128, reward_range=(0.0, 1.0), takes_packed=takes_packed)
    runtime = resolved(facts=facts).runtime
    assert (runtime.layout, runtime.micro_batch_tokens) == (layout, tokens)
    other = "padded" if layout == "packed" else "packed"
    said = resolved(f"runtime.layout={other}", "runtime.micro_batch_tokens=77", facts=facts).runtime
    assert (said.layout, said.micro_batch_tokens) == (other, 77)


def test_what_is_said_is_kept():
    config = resolved(
        "critic.replay={batch_size=8,capacity=40,refill_size=16}",
        "sampling.max_total_tokens=100",
        "runtime.device=cuda",
    )
    replay = config.critic.replay
    assert (replay.batch_size, replay.capacity, replay.refill_size) == (8, 40, 16)
    assert (config.runtime.device, config.sampling.max_total_tokens) == ("cuda", 100)


def test_a_calibrated_lambda_becomes_a_number():
    # LC's setting, to the last bit; also in the critic's targets.
    both = "{retained=0.4,length=8192}"
    config = resolved(f"estimator.gae_lambda={both}", f"critic.value_target_lambda={both}")
    assert config.estimator.gae_lambda == config.critic.value_target_lambda == 0.9998881543592094


def test_a_lambda_of_the_responses_or_the_batchs_own_stays_what_it_is():
    config = resolved("estimator.gae_lambda={alpha=0.05}", "critic.value_target_lambda={alpha=0.1}")
    assert config.estimator.gae_lambda == LengthLambda(alpha=0.05)
    assert config.critic.value_target_lambda == LengthLambda(alpha=0.1)
    adapting = resolved("estimator.gae_lambda={bias_weight=2.0}")
    assert adapting.estimator.gae_lambda == AdaptiveLambda(bias_weight=2.0)
    for each in (config, adapting):
        assert resolve(each, FACTS) == each == RunConfig.model_validate_json(each.model_dump_json())


def test_targets_never_adapt():
    with pytest.raises(ConfigurationError, match=r"unknown key 'critic\.value_target_lambda\.bias_weight'"):
        configured("critic.value_target_lambda={bias_weight=1.0}")


def test_an_adapting_lambda_needs_gamma_one_and_groups():
    adapting = "estimator.gae_lambda={bias_weight=1.0}"
    refused(adapting, "estimator.gamma=0.9", names=("estimator.gae_lambda", "estimator.gamma"))
    refused(adapting, "rollout.group_size=1", names=("estimator.gae_lambda", "rollout.group_size"))
    assert resolved("estimator.gae_lambda={alpha=0.05}", "estimator.gamma=0.9", "rollout.group_size=1")


def test_fault_53_a_batch_is_whole_minibatches():
    assert resolved().policy.minibatch_size == 128
    assert resolved("policy.minibatch_size=32").policy.minibatch_size == 32
    for batch, minibatch in ((10, 4), (8, 16)):
        refused(
            "rollout.group_size=2",
            f"rollout.batch_size={batch}",
            f"policy.minibatch_size={minibatch}",
            names=("rollout.batch_size", "policy.minibatch_size"),
        )


@pytest.mark.parametrize(("key", "value"), [("policy.minibatch_size", 32), ("policy.epochs", 2)])
def test_the_log_prob_alone_is_on_policy_for_one_step_only(key, value):
    refused("policy.loss.type=reinforce", f"{key}={value}", names=("policy.loss.on_policy", key))
    for loss in ("{type='reinforce',on_policy=false}", "{type='dppo'}", "{type='ppo'}", "{type='dapo'}"):
        assert resolved(f"policy.loss={loss}", f"{key}={value}")


@pytest.mark.parametrize("arm", ["mean", "leave_one_out", "tether", "evpo"])
def test_a_group_estimator_needs_a_group(arm):
    # Known fault 18.
    refused("rollout.group_size=1", arm=arm, names=("estimator.type", "rollout.group_size", arm))


def test_a_critic_alone_works_without_a_group_unless_its_warm_up_needs_one():
    assert resolved("rollout.group_size=1").rollout.group_size == 1
    refused("rollout.group_size=1", "critic.warmup=leave_one_out", names=("critic.warmup", "rollout.group_size"))


@pytest.mark.parametrize(("batch", "group"), [(10, 4), (2, 4), (129, 128)])
def test_a_batch_is_whole_groups(batch, group):
    refused(
        f"rollout.batch_size={batch}", f"rollout.group_size={group}", names=("rollout.batch_size", "rollout.group_size")
    )


@pytest.mark.parametrize("loss", ["policy.loss.type=dppo", "policy.loss={type='reinforce',on_policy=false}"])
@pytest.mark.parametrize(("key", "value"), [("sampling.top_p", 0.9), ("sampling.top_k", 5)])
def test_a_ratio_needs_the_full_softmax(loss, key, value):
    refused(loss, f"{key}={value}", names=("policy.loss.type", key))


def test_the_log_prob_alone_may_be_cut():
    assert resolved("policy.loss.type=reinforce", "sampling.top_p=0.9", "sampling.top_k=5").sampling.top_k == 5


@pytest.mark.parametrize("loss", ["ppo", "dapo"])
def test_a_rollout_weight_corrects_for_a_cut_softmax(loss):
    assert resolved(f"policy.loss.type={loss}", "sampling.top_p=0.95", "sampling.top_k=20").sampling.top_k == 20


@pytest.mark.parametrize(
    "sizes",
    [
        "{batch_size=64,capacity=32}",
        "{batch_size=64,refill_size=32}",
        "{batch_size=64,refill_size=200,capacity=128}",
        "{batch_size=300}",
    ],
)
def test_replay_sizes_fit_into_each_other(sizes):
    if sizes == "{batch_size=300}":
        # Derived from its own batch size, everything fits.
        assert resolved(f"critic.replay={sizes}").critic.replay.capacity == 600
        return
    refused(f"critic.replay={sizes}", names=("critic.replay",))


@pytest.mark.parametrize("rewards", [(-1.0, 1.0), (0.0, 2.0)])
def test_the_critic_covers_the_tasks_rewards(rewards):
    facts = Facts(device="cpu", context_length=128, reward_range=rewards)
    refused(names=("critic.loss.type", "task.type", "bce"), facts=facts)
    for kind in ("categorical", "hl_gauss"):
        wide = f"critic.loss={{type='{kind}',low=-1.0,high=2.0}}"
        assert resolved(wide, facts=facts).critic.loss.high == 2.0
        refused(f"critic.loss.type={kind}", names=("critic.loss.type", "task.type", kind), facts=facts)
    for kind in ("mse", "clipped_mse"):
        assert resolved(f"critic.loss.type={kind}", facts=facts).critic.loss.type == kind
    assert not uses_critic(resolved(arm="mean", facts=facts))  # no critic, nothing to cover


def test_an_episode_fits_the_model():
    refused("sampling.max_total_tokens=129", names=("sampling.max_total_tokens", "model.name"))
    assert resolved("sampling.max_total_tokens=128").sampling.max_total_tokens == 128


def test_warm_up_without_updates_never_ends():
    refused("critic.updates_per_policy_step=0", names=("critic.warmup_updates", "critic.updates_per_policy_step"))


def first_warm_step(steps: int, warmup: int, batch: int, config: RunConfig) -> int | None:
    """By the replay itself: the first step whose batch is scored by a warm critic."""
    section = config.critic.replay
    replay = ReplayBuffer(
        batch_size=section.batch_size,
        capacity=section.capacity,
        refill_size=section.refill_size,
        max_uses=section.max_uses,
    )
    updates, waiting, number = 0, 0, 0
    budget = UpdateBudget(config.critic.updates_per_policy_step)
    for step in range(steps):
        if updates >= warmup:
            return step
        waiting += batch
        for _ in range(min(replay.wanted, waiting)):
            replay.add(number, number)
            number, waiting = number + 1, waiting - 1
        for _ in range(budget.due()):
            if not replay.ready:
                break
            replay.sample()
            updates += 1
    return None


@pytest.mark.parametrize(
    ("overrides", "first"),
    [
        ((), 21),
        (("critic.replay.max_uses=1",), 20),
        (("critic.replay.refill_size=128",), 20),
        (("critic.warmup_updates=1",), 2),
        (("critic.warmup_updates=0",), 0),
        (("critic.updates_per_policy_step=0.5",), 40),
        (("critic.updates_per_policy_step=0.3", "critic.warmup_updates=3"), 10),
    ],
)
def test_a_run_that_ends_in_warm_up_is_refused_and_one_that_just_gets_through_is_not(overrides, first):
    config = resolved("run.steps=100", *overrides)
    assert first_warm_step(100, config.critic.warmup_updates, config.rollout.batch_size, config) == first
    assert resolved(f"run.steps={first + 1}", *overrides).run.steps == first + 1
    if first:
        refused(f"run.steps={first}", *overrides, names=("run.steps", "critic.warmup_updates"))
        resolved(f"run.steps={first}", *overrides, "critic.warmup=leave_one_out")


@given(
    steps=st.integers(1, 30),
    warmup=st.integers(1, 20),
    updates=st.sampled_from([0.3, 0.5, 0.75, 1, 1.5, 2, 3]),
    uses=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 8), st.integers(0, 8)),
)
def test_no_run_that_would_train_is_refused(steps, warmup, updates, uses, sizes):
    groups, batch, more, room = sizes
    overrides = (
        f"run.steps={steps}",
        f"rollout={{batch_size={groups * 2},group_size=2}}",
        f"critic.replay={{max_uses={uses},batch_size={batch},refill_size={batch + more}}}",
        f"critic.replay.capacity={batch + more + room}",
        f"critic.warmup_updates={warmup}",
        f"critic.updates_per_policy_step={updates}",
    )
    try:
        config = resolved(*overrides)
    except ConfigurationError:
        free = resolved(*overrides, "critic.warmup=leave_one_out")
        assert first_warm_step(steps, warmup, groups * 2, free) is None
    else:
        assert config.run.steps == steps


def test_differences_name_the_keys():
    a, b = resolved("run.seed=1"), resolved("run.seed=2", "critic.loss.type=mse")
    assert differences(a, a) == {}
    assert differences(a, b) == {"run.seed": (1, 2), "critic.loss.type": ("bce", "mse")}
    other = resolved("critic.loss={type='categorical',atoms=11}")
    assert differences(resolved(), other)["critic.loss.atoms"] == (None, 11)
