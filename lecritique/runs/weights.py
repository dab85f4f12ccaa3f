"""A run's final weights, in forms that load again: the policy as a Hugging Face folder, the critic beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lecritique.models.value_model import ValueModel, save_value_model


def save_weights(folder: Path, *, policy: Any, tokenizer: Any, critic: ValueModel | None) -> Path:
    """Write `policy/` (usable as `model.name`) and, with a critic, `critic/`; the folder."""
    policy.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    if critic is not None:
        save_value_model(critic, folder / "critic")
    return folder
