"""Which advantage estimator: what is subtracted from the return of a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from lecritique.config.base import Config


class GaeLambda(Config):
    """A lambda given by the share of the terminal signal that survives `length` action tokens."""

    retained: float = Field(gt=0, le=1)
    """Share of the terminal reward's weight left at the first token."""
    length: int = Field(ge=1)
    """Action tokens between the first token and the reward."""


class LengthLambda(Config):
    """A lambda of each response's own: max(0, 1 - 1 / (alpha T)) for T action tokens (arXiv:2504.05118)."""

    alpha: float = Field(gt=0)
    """Share of the response over which credit reaches; the source has 0.05."""


class AdaptiveLambda(Config):
    """A lambda for each batch from how accurate the critic was on earlier ones (ours; numerics.adaptive_lambda).

    1 until something is measured. Needs gamma 1 and groups, whose returns say what no critic can know.
    """

    bias_weight: float = Field(gt=0)
    """How much worse bias is than variance; 1 minimises the squared error of one token's credit."""
    open_share: float = Field(0.5, ge=0, le=1)
    """Part of the return's variance within a group that is still open at an average token."""
    decay: float = Field(0.9, ge=0, lt=1)
    """What earlier batches weigh in the running means, per batch."""


def _branch(*tables: type[Config]) -> Callable[[Any], str]:
    """Which form of a lambda is meant: that of `tables` which knows the most of its keys, else the number."""

    def chosen(value: Any) -> str:
        if isinstance(value, Config):
            return type(value).__name__
        if not isinstance(value, Mapping):
            return "number"
        return max(tables, key=lambda table: len(value.keys() & table.model_fields.keys())).__name__

    return chosen


_Number = Annotated[float, Field(ge=0, le=1), Tag("number")]
_Calibrated = Annotated[GaeLambda, Tag("GaeLambda")]
_ByLength = Annotated[LengthLambda, Tag("LengthLambda")]
_Adaptive = Annotated[AdaptiveLambda, Tag("AdaptiveLambda")]
TargetLambda = Annotated[_Number | _Calibrated | _ByLength, Discriminator(_branch(GaeLambda, LengthLambda))]
Lambda = Annotated[
    _Number | _Calibrated | _ByLength | _Adaptive, Discriminator(_branch(GaeLambda, LengthLambda, AdaptiveLambda))
]


class NoPenalty(Config):
    """Returns as they are."""

    type: Literal["none"] = "none"


class SoftPenalty(Config):
    """DAPO's penalty: 0 up to limit - cache action tokens, falling to -1 at the limit (arXiv:2503.14476 eq. 13)."""

    type: Literal["soft"] = "soft"
    limit: int = Field(16384, ge=1)
    """Action tokens at which the penalty is -1."""
    cache: int = Field(4096, ge=1)
    """Action tokens over which it grows."""

    @model_validator(mode="after")
    def _cache_within_limit(self) -> SoftPenalty:
        if self.cache > self.limit:
            raise ValueError(f"cache must be at most limit, got cache={self.cache} and limit={self.limit}")
        return self


class GroupMean(Config):
    """A = R - mean of the group's returns (LC eq. 3)."""

    type: Literal["mean"] = "mean"
    scale: Literal["none", "std"] = "none"
    """`std` divides by the group's sample standard deviation + 1e-6, as GRPO implementations do."""
    overlong: Annotated[NoPenalty | SoftPenalty, Field(discriminator="type")] = NoPenalty()
    """Added to the returns that are compared; rewards, metrics and value targets stay as they are."""


class LeaveOneOut(Config):
    """A = R - mean of the other members' returns."""

    type: Literal["leave_one_out"] = "leave_one_out"


class NoAdvantage(Config):
    """No advantages, for a policy loss that reads none: `opsd`."""

    type: Literal["none"] = "none"


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
    horizon: int = Field(0, ge=0)
    """Most action tokens of a response: one rho for each 1,024 of them, 2 to 128 in all (LC 7.3); 0 is one for all."""


class Evpo(Discounting):
    """The critic where its explained variance is positive, else the group mean (arXiv:2604.19485)."""

    type: Literal["evpo"] = "evpo"
    lagged: bool = False
    """Decide by the previous batch's explained variance instead of this one's."""


Estimator = Annotated[GroupMean | LeaveOneOut | NoAdvantage | Value | Tether | Evpo, Field(discriminator="type")]

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
