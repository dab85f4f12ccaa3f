"""Which device a run works on when its configuration names none."""

from __future__ import annotations

import torch

# Sampling adds up probabilities in float64, which these do not compute in.
_WITHOUT_FLOAT64 = ("mps",)


def default_device() -> str:
    """The kind of the machine's accelerator, or `cpu` without one that can do all that a run needs."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None or found.type in _WITHOUT_FLOAT64 else found.type
