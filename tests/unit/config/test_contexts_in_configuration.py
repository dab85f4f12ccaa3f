"""What the configuration says of contexts and rows: refusals that name both keys, and what is derived."""

from __future__ import annotations

import pytest

from lecritique.config.load import Recipe, compose
from lecritique.config.resolve import Facts, resolve
from lecritique.config.schema import EnvContext, ReferenceContext, RunConfig
from lecritique.core.errors import ConfigurationError

FACTS = Facts(device="cpu", context_length=128, reward_range=(0.0, 1.0))
TREE = {"task": {"type": "sudoku", "size": 4}}


def resolved(*overrides: str, arm: str = "value", tree=TREE, arms=None) -> RunConfig:
    recipe = Recipe(name="r", text="", tree=tree, arms=arms or {}, default_arm=None)
    return resolve(compose(recipe, arm=arm, overrides=overrides), FACTS)


def refused(*overrides: str, names: tuple[str, ...], arm: str = "value") -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved(*overrides, arm=arm)
    assert all(f"'{name}'" in str(caught.value) for name in names), str(caught.value)


SIBLINGS = "critic.context.type=siblings"


def test_fault_18_siblings_of_a_group_of_one_name_both_keys() -> None:
    refused(SIBLINGS, "rollout.group_size=1", names=("critic.context.type", "rollout.group_size"))
    assert resolved(SIBLINGS, "rollout.group_size=2").critic.context.type == "siblings"
    # Without a critic nobody reads the context.
    assert resolved("critic.context.type=siblings", arm="mean").rollout.group_size == 4


def test_the_token_limit_of_siblings_is_what_the_rollouts_leave() -> None:
    assert resolved(SIBLINGS, "sampling.max_total_tokens=100").critic.context.max_tokens == 28
    assert resolved(SIBLINGS).critic.context.max_tokens == 128
    assert resolved(SIBLINGS, "critic.context.max_tokens=7").critic.context.max_tokens == 7


def test_trimming_needs_room_that_no_rollout_can_take() -> None:
    trim = (SIBLINGS, "critic.context.on_overflow=trim_context")
    refused(*trim, names=("critic.context.on_overflow", "sampling.max_total_tokens", "critic.context.max_tokens"))
    refused(
        *trim, "sampling.max_total_tokens=100", "critic.context.max_tokens=29", names=("critic.context.max_tokens",)
    )
    assert resolved(*trim, "sampling.max_total_tokens=100").critic.context.max_tokens == 28


def test_a_prompt_limit_leaves_a_token_for_the_response() -> None:
    assert resolved().data.max_prompt_tokens == 127
    assert resolved("sampling.max_total_tokens=50").data.max_prompt_tokens == 49
    assert resolved("data.max_prompt_tokens=9").data.max_prompt_tokens == 9
    refused("data.max_prompt_tokens=128", names=("data.max_prompt_tokens", "sampling.max_total_tokens"))


def test_every_arm_of_a_recipe_knows_the_contexts_of_all() -> None:
    arms = {
        "solved": {"preset": "pvf", "critic": {"context": {"type": "env"}}},
        "others": {"preset": "pvf", "critic": {"context": {"type": "siblings"}}},
    }
    of_arms = [resolved(arm=arm, arms=arms).data.contexts for arm in ("mean", "value", "pvf", "solved", "others")]
    assert of_arms == [of_arms[0]] * 5
    assert {ReferenceContext(), EnvContext()} <= set(of_arms[0])
    assert not any(context.type in ("none", "siblings") for context in of_arms[0])
    suffix = "critic.context.placement=user_suffix"
    contexts = resolved(suffix, arm="pvf", arms=arms).data.contexts
    assert {context.placement for context in contexts} == {"user_suffix"}


def test_contexts_of_ones_own_choice_are_kept() -> None:
    assert resolved("data.contexts=[]", arm="pvf").data.contexts == ()
    assert resolved("data.contexts=[{type='env'}]").data.contexts == (EnvContext(),)
