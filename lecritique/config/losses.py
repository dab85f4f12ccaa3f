"""Which policy loss and which value loss."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lecritique.config.base import Config

Reduction = Literal["token_mean", "response_mean"]


class Dppo(Config):
    """LC's default: an unclipped ratio, tokens dropped where the probability moved too far."""

    type: Literal["dppo"] = "dppo"
    mask_low: float = Field(0.2, gt=0)
    """Drop where A <= 0 and the probability fell by more than this."""
    mask_high: float = Field(0.2, gt=0)
    """Drop where A > 0 and the probability rose by more than this."""
    kl_coef: float = Field(1e-3, ge=0)
    """Weight of (trainer - sampler log-prob)^2."""
    reduction: Reduction = "token_mean"
    """Over tokens of the whole batch, or over tokens of a response and then over responses."""


class Reinforce(Config):
    """-A log p (on-policy) or -A r."""

    type: Literal["reinforce"] = "reinforce"
    on_policy: bool = True
    """Use the log-prob; False uses the ratio to the sampler."""
    reduction: Reduction = "token_mean"
    """Over tokens of the whole batch, or over tokens of a response and then over responses."""


PolicyLoss = Annotated[Dppo | Reinforce, Field(discriminator="type")]


class Bce(Config):
    """Cross-entropy on the two atoms 0 and 1 (LC's choice); rewards must lie in [0, 1]."""

    type: Literal["bce"] = "bce"

    @property
    def support(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return 0.0, 1.0

    @property
    def outputs(self) -> int:
        """Width of the value head."""
        return 2


class Categorical(Config):
    """Cross-entropy over evenly spaced atoms, the target projected on the two adjacent ones."""

    type: Literal["categorical"] = "categorical"
    low: float = 0.0
    """Lowest atom."""
    high: float = 1.0
    """Highest atom."""
    atoms: int = Field(51, ge=2)
    """Number of atoms."""

    @model_validator(mode="after")
    def _ordered(self) -> Categorical:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got low={self.low} and high={self.high}")
        return self

    @property
    def support(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return self.low, self.high

    @property
    def outputs(self) -> int:
        """Width of the value head."""
        return self.atoms


class Mse(Config):
    """0.5 (v - G)^2, a linear head without sigmoid."""

    type: Literal["mse"] = "mse"

    @property
    def support(self) -> tuple[float, float]:
        """Unbounded."""
        return -float("inf"), float("inf")

    @property
    def outputs(self) -> int:
        """Width of the value head."""
        return 1


ValueLoss = Annotated[Bce | Categorical | Mse, Field(discriminator="type")]
