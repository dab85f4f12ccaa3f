"""Which policy loss and which value loss."""

from __future__ import annotations

from typing import Annotated, Literal, Self

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


class Clipped(Config):
    """What the losses with a clipped surrogate share; rho = exp(lp - lp_old), u = min(exp(lp_old - lq), cap)."""

    eps_low: float = Field(0.2, gt=0, le=1)
    """How far rho may fall below 1 where A < 0."""
    eps_high: float = Field(0.2, gt=0)
    """How far rho may rise above 1 where A > 0."""
    rollout_weight: bool = True
    """Weigh each token by u, which corrects for the sampler: other precision, or top-p and top-k."""
    rollout_weight_cap: float = Field(2.0, gt=0)
    """The largest u."""


class Ppo(Clipped):
    """-u min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A) (VP eq. 4 and 20)."""

    type: Literal["ppo"] = "ppo"
    reduction: Reduction = "response_mean"
    """Over tokens of the whole batch, or over tokens of a response and then over responses."""


class Dapo(Clipped):
    """PPO's surrogate with more room upwards, per token of the batch (arXiv:2503.14476).

    DAPO's advantage is the estimator `mean` with `scale = "std"` and its penalty on overlong responses.
    """

    type: Literal["dapo"] = "dapo"
    eps_high: float = Field(0.28, gt=0)
    """How far rho may rise above 1 where A > 0."""
    rollout_weight: bool = False
    """Weigh each token by u, which corrects for the sampler; not part of DAPO as published."""
    reduction: Reduction = "token_mean"
    """Over tokens of the whole batch, or over tokens of a response and then over responses."""


class Opsd(Config):
    """Distance of the whole next-token distributions from the teacher's; reads no advantages (VP eq. 6, 2601.18734).

    Its estimator is `none`. The teacher is asked at each forward pass, as it is then: distributions are not kept.
    """

    type: Literal["opsd"] = "opsd"
    kind: Literal["forward_kl", "reverse_kl", "jsd"] = "forward_kl"
    """KL(teacher, student), KL(student, teacher), or a mixture of both."""
    beta: float = Field(0.5, gt=0, lt=1)
    """Weight of the teacher in `jsd`."""
    reduction: Reduction = "response_mean"
    """Over tokens of the whole batch, or over tokens of a response and then over responses."""


PolicyLoss = Annotated[Dppo | Reinforce | Ppo | Dapo | Opsd, Field(discriminator="type")]


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


class Atoms(Config):
    """What the losses over evenly spaced atoms share."""

    low: float = 0.0
    """Lowest atom."""
    high: float = 1.0
    """Highest atom."""
    atoms: int = Field(51, ge=2)
    """Number of atoms."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
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


class Categorical(Atoms):
    """Cross-entropy over evenly spaced atoms, the target projected on the two adjacent ones."""

    type: Literal["categorical"] = "categorical"


class HlGauss(Atoms):
    """Cross-entropy over evenly spaced atoms, the target spread as a Gaussian (arXiv:2403.03950).

    Next to an end of the support the Gaussian is cut and the value learnt lies up to 0.45 atom spacings further
    inside: let the support reach beyond the rewards.
    """

    type: Literal["hl_gauss"] = "hl_gauss"
    sigma_bins: float = Field(0.75, gt=0)
    """Standard deviation of the Gaussian in spacings of the atoms."""


class Linear(Config):
    """What the losses of a linear head without sigmoid share."""

    @property
    def support(self) -> tuple[float, float]:
        """Unbounded."""
        return -float("inf"), float("inf")

    @property
    def outputs(self) -> int:
        """Width of the value head."""
        return 1


class Mse(Linear):
    """0.5 (v - G)^2."""

    type: Literal["mse"] = "mse"


class ClippedMse(Linear):
    """0.5 max((v - G)^2, (v_clip - G)^2), v_clip within eps_v of the value that credited the rollout (VP eq. 8-9)."""

    type: Literal["clipped_mse"] = "clipped_mse"
    eps_v: float = Field(0.5, gt=0)
    """How far the value may move from the one that credited the rollout, in reward units."""


ValueLoss = Annotated[Bce | Categorical | HlGauss | Mse | ClippedMse, Field(discriminator="type")]
