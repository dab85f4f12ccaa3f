"""Named methods as compositions of estimator x context x schedule x modulation x loss.

What a preset fixes is the method. Learning rates, warm-up, lengths and numbers of rollouts are the recipe's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One named method: the estimator, whether the critic is privileged or clean, and what else it fixes.

    `placement` is where the critic's context goes when the recipe names none. In `unions` each key path leads to a
    table with a `type`: a recipe's own table of that type keeps what it says. `fixed` are plain values.
    """

    text: str
    estimator: str
    context: Literal["clean", "privileged"] | None
    placement: Literal["system_prefix", "user_suffix"] = "system_prefix"
    unions: Mapping[str, Tree] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


# What `ppo`, `critic_only` and `vaspo` share: only the critic's context and the teacher differ. VP pretrains its
# critic, so that no batch waits for one to be warm.
_PPO: Mapping[str, Tree] = {
    "critic.schedule": {"type": "train_then_score"},
    "critic.loss": {"type": "clipped_mse"},
    "policy.loss": {"type": "ppo", "reduction": "response_mean", "rollout_weight": True},
}
_PPO_FIXED: Mapping[str, Any] = {"critic.warmup_updates": 0, "runtime.loop": "synchronous"}

PRESETS: Mapping[str, Preset] = {
    "mean": Preset(text="group mean baseline (GRPO without normalisation)", estimator="mean", context=None),
    "leave_one_out": Preset(text="leave-one-out group baseline (RLOO)", estimator="leave_one_out", context=None),
    "value": Preset(text="critic on the policy's own tokens", estimator="value", context="clean"),
    "pvf": Preset(
        text="privileged value function: the critic reads the reference",
        estimator="value",
        context="privileged",
    ),
    "tether": Preset(
        text="leave-one-out mixed with a clean critic by a fitted rho", estimator="tether", context="clean"
    ),
    "evpo": Preset(
        text="the critic where it explains variance, else the group mean", estimator="evpo", context="clean"
    ),
    "ppo": Preset(
        text="PPO: a clean critic, trained on the batch before it scores it",
        estimator="value",
        context="clean",
        unions={**_PPO, "policy.modulation": {"type": "none"}},
        fixed=_PPO_FIXED,
    ),
    "critic_only": Preset(
        text="the same with a privileged critic",
        estimator="value",
        context="privileged",
        placement="user_suffix",
        unions={**_PPO, "policy.modulation": {"type": "none"}},
        fixed=_PPO_FIXED,
    ),
    "vaspo": Preset(
        text="the same, its advantages modulated by a privileged self-teacher (VASPO)",
        estimator="value",
        context="privileged",
        placement="user_suffix",
        unions={**_PPO, "policy.modulation": {"type": "fusion"}, "policy.teacher": {"type": "ema"}},
        fixed=_PPO_FIXED,
    ),
    "opsd": Preset(
        text="on-policy self-distillation: the teacher alone, no advantages",
        estimator="none",
        context=None,
        unions={
            "policy.loss": {"type": "opsd"},
            "policy.modulation": {"type": "none"},
            "policy.teacher": {"type": "ema"},
        },
        fixed={"policy.whiten": False},
    ),
    "rlsd": Preset(
        text="std-scaled group baseline, modulated by a snapshot teacher (RLSD)",
        estimator="mean",
        context=None,
        unions={
            "estimator": {"type": "mean", "scale": "std"},
            "policy.loss": {"type": "ppo", "reduction": "response_mean", "rollout_weight": True},
            "policy.modulation": {"type": "rlsd"},
            "policy.teacher": {"type": "snapshot"},
        },
    ),
    "dapo": Preset(
        text="std-scaled group baseline, wider clip upwards, groups that say nothing replaced (DAPO)",
        estimator="mean",
        context=None,
        unions={
            "estimator": {"type": "mean", "scale": "std", "overlong": {"type": "soft"}},
            "policy.loss": {"type": "dapo"},
            "policy.modulation": {"type": "none"},
        },
        fixed={"rollout.dynamic_sampling": 10, "runtime.loop": "synchronous"},
    ),
}


def applied(preset: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """`tree` (a configuration as nested dicts) with the preset's keys put in.

    What the recipe says of the same estimator, loss or modulation, or of the privileged context, is kept.
    """
    chosen = PRESETS[preset]
    result = {**tree, "preset": preset}
    result["estimator"] = _union({"type": chosen.estimator}, tree.get("estimator"))
    critic = dict(tree.get("critic", {}))
    context = dict(critic.get("context", {}))
    if chosen.context == "clean":
        critic["context"] = {"type": "none"}
    elif chosen.context == "privileged" and context.get("type", "none") == "none":
        critic["context"] = {"type": "reference"}
        if chosen.placement != "system_prefix":
            critic["context"]["placement"] = chosen.placement
    if critic:
        result["critic"] = critic
    for path, table in chosen.unions.items():
        result = _put(result, path, table, _union)
    for path, value in chosen.fixed.items():
        result = _put(result, path, value, lambda value, own: value)
    return result


def _union(table: Tree, own: Any) -> dict[str, Any]:
    """The preset's table of a union, with what the recipe says of the same type."""
    same = isinstance(own, Mapping) and own.get("type") == table["type"]
    return {**table, **own} if same else dict(table)


def _put(tree: Mapping[str, Any], path: str, value: Any, joined: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    own = tree.get(head)
    if not rest:
        return {**tree, head: joined(value, own)}
    return {**tree, head: _put(own if isinstance(own, Mapping) else {}, rest, value, joined)}
