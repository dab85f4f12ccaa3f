"""What is measured at intervals while a run trains."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from lecritique.config.base import Config


class EvalSection(Config):
    """How the policy is evaluated every `run.eval_every` steps. Nothing of it changes what is trained."""

    k: int = Field(4, ge=1)
    """Samples of each problem (avg@K)."""
    rows: int = Field(0, ge=0)
    """Problems of each set at most, from its front; 0 is all of them."""
    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Sets by name, each a table of task keys in which it differs from the run's own task, such as
    `{held_out = {split = "held_out"}}`; another `type` starts a table of its own. Without any, the rows of the run's
    task that `data.evaluation_fraction` keeps out of training."""
    temperature: float | None = Field(None, gt=0)
    """Divides the logits; by default as in training."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Nucleus sampling; by default as in training."""
    top_k: int | None = Field(None, ge=0)
    """Top-k sampling, 0 is off; by default as in training."""
