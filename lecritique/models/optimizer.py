"""AdamW with linear warm-up and a gradient norm that must be finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lecritique.config.estimators import OptimizerConfig
from lecritique.core.errors import DivergenceError


class Optimizer:
    """One optimizer with its schedule, clipping and step count."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], config: OptimizerConfig) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._config = config
        self.steps = 0
        self._adamw = torch.optim.AdamW(
            self._parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )

    @property
    def learning_rate(self) -> float:
        """Step size of the latest step."""
        return float(self._adamw.param_groups[0]["lr"])

    def zero_grad(self) -> None:
        """Forget gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def step(self, role: str) -> float:
        """Clip, step, and return the gradient norm before clipping.

        Raises:
            DivergenceError: the norm is not finite; the weights are left as they were.
        """
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        if not torch.isfinite(norm):
            raise DivergenceError(f"the gradient norm of {role} step {self.steps + 1} is {norm.item()}.")
        share = min(1.0, (self.steps + 1) / self._config.warmup_steps) if self._config.warmup_steps else 1.0
        for group in self._adamw.param_groups:
            group["lr"] = self._config.learning_rate * share
        self._adamw.step()
        self.steps += 1
        return float(norm)
