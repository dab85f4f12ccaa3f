"""AdamW with linear warm-up and a gradient norm that must be finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from lecritique.config.estimators import OptimizerConfig
from lecritique.core.errors import CheckpointError, DivergenceError
from lecritique.models.ranks import laid_out_like, whole


class Optimizer:
    """One optimizer with its schedule, clipping and step count."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], config: OptimizerConfig) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._config = config
        self.steps = 0
        self._adamw = torch.optim.AdamW(
            self._parameters,
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            # One kernel for each weight instead of ten; torch has it for these devices.
            fused=all(parameter.device.type in ("cpu", "cuda", "mps", "xpu") for parameter in self._parameters),
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
        # The norm of all shards: that of one process's alone would cut each by another factor.
        norm = whole(torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm))
        if not torch.isfinite(norm):
            raise DivergenceError(f"the gradient norm of {role} step {self.steps + 1} is {norm.item()}.")
        share = min(1.0, (self.steps + 1) / self._config.warmup_steps) if self._config.warmup_steps else 1.0
        for group in self._adamw.param_groups:
            group["lr"] = self._config.learning_rate * share
        self._adamw.step()
        self.steps += 1
        return float(norm)

    def state(self) -> dict[str, Any]:
        """Step count and moments, by the index of the parameter among those that learn.

        `updates` is AdamW's own count for each parameter, 0 for one that no gradient has reached yet; such a one has no
        moments. The tensors are those in use: they are to be copied or written before the next step.
        """
        held = {index: self._adamw.state[p] for index, p in enumerate(self._parameters) if self._adamw.state.get(p)}
        return {
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "updates": [float(held[i]["step"]) if i in held else 0.0 for i in range(len(self._parameters))],
            "first_moments": {str(index): entry["exp_avg"] for index, entry in held.items()},
            "second_moments": {str(index): entry["exp_avg_sq"] for index, entry in held.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state.

        Raises:
            CheckpointError: it is of other parameters.
        """
        updates = state["updates"]
        if len(updates) != len(self._parameters):
            raise CheckpointError(
                f"the saved optimizer state is of {len(updates)} parameters, this run trains {len(self._parameters)}"
            )
        restored = {
            index: {
                "step": torch.tensor(float(updates[index]), dtype=torch.float32),
                "exp_avg": self._moment(state["first_moments"], index),
                "exp_avg_sq": self._moment(state["second_moments"], index),
            }
            for index in range(len(updates))
            if updates[index]
        }
        self._adamw.load_state_dict({**self._adamw.state_dict(), "state": restored})
        self.steps = int(state["steps"])
        for group in self._adamw.param_groups:
            group["lr"] = float(state["learning_rate"])

    def _moment(self, moments: Mapping[str, torch.Tensor], index: int) -> torch.Tensor:
        own, saved = self._parameters[index], moments.get(str(index))
        if saved is None or saved.shape != own.shape or saved.dtype != own.dtype:
            found = "nothing" if saved is None else f"{tuple(saved.shape)} in {saved.dtype}"
            raise CheckpointError(
                f"the saved optimizer state holds {found} for parameter {index}, "
                f"expected {tuple(own.shape)} in {own.dtype}"
            )
        # A copy: AdamW would go on in the very tensor that it was given.
        return laid_out_like(own, saved).clone()
