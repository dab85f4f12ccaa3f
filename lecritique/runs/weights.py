"""A run's final weights, in forms that load again: the policy as a Hugging Face folder, the critic beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from lecritique.models.adapters import has_adapter, merged, save_adapter
from lecritique.models.value_model import ValueModel, save_value_model


def save_weights(folder: Path, *, policy: Any, tokenizer: Any, critic: ValueModel | None) -> Path:
    """Write `policy/` (usable as `model.name`) and, with a critic, `critic/`; the folder.

    Adapters are merged in both; that of the policy is in `policy_adapter/` as well, as peft reads it.
    """
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # one for each shard, in the middle of our own output
    try:
        merged(policy).save_pretrained(folder / "policy")
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    tokenizer.save_pretrained(folder / "policy")
    if has_adapter(policy):
        save_adapter(policy, folder / "policy_adapter")
    if critic is not None:
        save_value_model(critic, folder / "critic")
    return folder
