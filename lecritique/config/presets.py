"""Named methods as compositions of estimator x context x loss; later ones add schedule and modulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One named method: the estimator, and whether the critic is privileged or clean."""

    text: str
    estimator: str
    context: Literal["clean", "privileged"] | None


PRESETS: Mapping[str, Preset] = {
    "mean": Preset(text="group mean baseline (GRPO without normalisation)", estimator="mean", context=None),
    "leave_one_out": Preset(text="leave-one-out group baseline (RLOO)", estimator="leave_one_out", context=None),
    "value": Preset(text="critic on the policy's own tokens", estimator="value", context="clean"),
    "pvf": Preset(
        text="privileged value function: the critic reads the reference", estimator="value", context="privileged"
    ),
    "tether": Preset(
        text="leave-one-out mixed with a clean critic by a fitted rho", estimator="tether", context="clean"
    ),
    "evpo": Preset(
        text="the critic where it explains variance, else the group mean", estimator="evpo", context="clean"
    ),
}


def applied(preset: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """`tree` (a configuration as nested dicts) with the preset's keys put in.

    What the recipe says of the same estimator type, or of the privileged context, is kept.
    """
    chosen = PRESETS[preset]
    result = {**tree, "preset": preset}
    own = dict(tree.get("estimator", {}))
    result["estimator"] = own if own.get("type") == chosen.estimator else {"type": chosen.estimator}
    critic = dict(tree.get("critic", {}))
    context = dict(critic.get("context", {}))
    if chosen.context == "clean":
        critic["context"] = {"type": "none"}
    elif chosen.context == "privileged" and context.get("type", "none") == "none":
        critic["context"] = {"type": "reference"}
    if critic:
        result["critic"] = critic
    return result
