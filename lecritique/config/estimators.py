"""Which advantage estimator: what is subtracted from the return of a token."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lecritique.config.base import Config


class GaeLambda(Config):
    """A lambda given by the share of the terminal signal that survives `length` action tokens."""

    retained: float = Field(gt=0, le=1)
    """Share of the terminal reward's weight left at the first token."""
    length: int = Field(ge=1)
    """Action tokens between the first token and the reward."""


Lambda = Annotated[float, Field(ge=0, le=1)] | GaeLambda


class GroupMean(Config):
    """A = R - mean of the group's returns (LC eq. 3)."""

    type: Literal["mean"] = "mean"
    scale: Literal["none", "std"] = "none"
    """`std` divides by the group's sample standard deviation + 1e-6, as GRPO implementations do."""


class LeaveOneOut(Config):
    """A = R - mean of the other members' returns."""

    type: Literal["leave_one_out"] = "leave_one_out"


class Discounting(Config):
    """What every estimator with a critic shares."""

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per action token."""
    gae_lambda: Lambda = 1.0
    """Lambda of the advantages; 1 gives A = R - V at gamma 1."""


class Value(Discounting):
    """A = GAE with the critic's values (LC eq. 12 with a privileged context)."""

    type: Literal["value"] = "value"


class Tether(Discounting):
    """Leave-one-out mixed with the token value by a fitted coefficient rho (LC section 5, eq. 15)."""

    type: Literal["tether"] = "tether"
    decay: float = Field(0.95, ge=0, lt=1)
    """rho <- decay * rho + (1 - decay) * fit."""
    ridge: float = Field(1e-6, ge=0)
    """Relative ridge of the fit."""
    clip: bool = True
    """Clip each fit to [0, 1]."""


class Evpo(Discounting):
    """The critic where its explained variance is positive, else the group mean (arXiv:2604.19485)."""

    type: Literal["evpo"] = "evpo"
    lagged: bool = False
    """Decide by the previous batch's explained variance instead of this one's."""


Estimator = Annotated[GroupMean | LeaveOneOut | Value | Tether | Evpo, Field(discriminator="type")]

USES_GROUP = ("mean", "leave_one_out", "tether", "evpo")
USES_CRITIC = ("value", "tether", "evpo")


class OptimizerConfig(Config):
    """AdamW with an optional linear warm-up, constant afterwards."""

    learning_rate: float = Field(gt=0)
    """Step size after warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moment."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps of linear warm-up."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""

    @model_validator(mode="after")
    def _betas_in_range(self) -> OptimizerConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), got {self.betas}")
        return self
