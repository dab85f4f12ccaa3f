"""One thread, so that small models are fast and results repeatable."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
