"""Adapters in a configuration: what they are by default, and what is refused by name."""

from __future__ import annotations

import pytest

from lecritique.config.adapters import CopyBackbone, LoraAdapter, NoAdapter, SharedBackbone
from lecritique.config.load import Recipe, compose
from lecritique.config.resolve import Facts, resolve
from lecritique.config.resume import allowed_changes, with_changes
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError

RECIPE = Recipe(name="r", text="", tree={"task": {"type": "sudoku", "size": 4}}, arms={}, default_arm=None)
POLICY, SHARED = "model.adapter.type=lora", "critic.backbone.type=shared"


def resolved(*overrides: str, arm: str = "value") -> RunConfig:
    facts = Facts(device="cpu", context_length=128, reward_range=(0.0, 1.0))
    return resolve(compose(RECIPE, arm=arm, overrides=overrides), facts)


def test_all_weights_train_by_default_and_a_word_chooses_an_adapter():
    assert (resolved().model.adapter, resolved().critic.backbone) == (NoAdapter(), CopyBackbone())
    chosen = resolved("model.adapter={type='lora',rank=4,target_modules=['q_proj']}", SHARED)
    assert chosen.model.adapter == LoraAdapter(rank=4, alpha=32.0, target_modules=("q_proj",))
    assert chosen.critic.backbone == SharedBackbone()
    assert RunConfig.model_validate_json(chosen.model_dump_json()) == chosen


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ((SHARED,), ("'critic.backbone.type' = 'shared'", "'model.adapter.type' = 'none'")),
        ((SHARED, POLICY, "critic.init=other"), ("'critic.backbone.type' = 'shared'", "'critic.init' = 'other'")),
        (
            (SHARED, POLICY, "runtime.ranks=2", "runtime.loop=synchronous"),
            ("'critic.backbone.type' = 'shared'", "'runtime.ranks' = 2"),
        ),
        ((SHARED, POLICY, "runtime.type=ray"), ("'critic.backbone.type' = 'shared'", "'runtime.type' = 'ray'")),
        (("model.adapter={type='lora',rank=0}",), ("'model.adapter.rank'", "greater than or equal to 1")),
        (("model.adapter={type='lora',target_modules=[]}",), ("'model.adapter.target_modules'", "at least 1 item")),
        (("model.adapter.type=qlora",), ("'model.adapter'", "'qlora'")),
        (("model.adapter.rank=4",), ("'model.adapter.rank'",)),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_sentence(overrides, names):
    with pytest.raises(ConfigurationError) as caught:
        resolved(*overrides)
    message = str(caught.value)
    assert all(name in message for name in names), message
    assert "\n" not in message


def test_a_backbone_is_not_looked_at_where_there_is_no_critic():
    assert resolved(SHARED, arm="mean").critic.backbone == SharedBackbone()


def test_a_resumed_run_may_save_memory_and_may_not_become_another():
    own = resolved()
    changed = resolve_again(own, "runtime.recompute_activations=true")
    assert allowed_changes(own, changed) == {"runtime.recompute_activations": (False, True)}
    for override, key in ((POLICY, "model.adapter"), ("critic.backbone.type=lora", "critic.backbone")):
        with pytest.raises(ConfigurationError, match=f"'{key}.* cannot become .*when a run is resumed"):
            allowed_changes(own, resolve_again(own, override))


def resolve_again(own: RunConfig, override: str) -> RunConfig:
    wanted = with_changes(own, [override], machine="cpu")
    return resolve(wanted, Facts(device="cpu", context_length=128, reward_range=(0.0, 1.0)))
