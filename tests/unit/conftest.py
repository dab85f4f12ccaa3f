"""One thread, so that small models are fast and results repeatable; its folder makes `small_models` importable."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
