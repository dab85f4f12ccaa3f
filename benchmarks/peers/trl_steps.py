"""What both of TRL's environments have in common: how many steps are asked for, and who is told of each."""

from __future__ import annotations

from typing import Any

from meter import Meter
from transformers import TrainerCallback

STEPS = 100_000  # more than are ever asked for


class Measured(TrainerCallback):
    """Tells the meter of every step."""

    def __init__(self) -> None:
        self._meter = Meter(warmup_steps=5)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step is done."""
        self._meter.step_done()
