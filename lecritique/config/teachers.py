"""Which teacher, and what it does to advantages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lecritique.config.base import Config

TeacherContent = Literal["none", "answer", "solution", "both"]


class Teacher(Config):
    """What all teachers share: copies of the policy that read something the policy does not."""

    content: TeacherContent | None = None
    """What of the reference it is told; by default what the critic's reference context has, else the answer. `none`
    makes it read the policy's own tokens."""
    rescore: bool = False
    """Score again before every optimizer step, with the teacher as it is then, instead of once per rollout batch.
    `opsd` always asks the teacher as it is then."""


class EmaTeacher(Teacher):
    """A running mean of the policy's weights, started from the policy (VP)."""

    type: Literal["ema"] = "ema"
    decay: float = Field(0.95, ge=0, lt=1)
    """teacher <- decay teacher + (1 - decay) policy, after every optimizer step of the policy."""


class FrozenTeacher(Teacher):
    """The policy that the run started from."""

    type: Literal["frozen"] = "frozen"


class SnapshotTeacher(Teacher):
    """A copy of the policy, taken again every so often (RLSD)."""

    type: Literal["snapshot"] = "snapshot"
    refresh_every: int = Field(10, ge=1)
    """Rollout batches that the policy is trained on between two copies."""


AnyTeacher = Annotated[EmaTeacher | FrozenTeacher | SnapshotTeacher, Field(discriminator="type")]


class NoModulation(Config):
    """Advantages as the estimator made them; no teacher is built."""

    type: Literal["none"] = "none"


class Modulated(Config):
    """What modulations share: d_t = log-prob of the sampled token under the teacher - under the student."""

    eps_w: float = Field(0.2, ge=0, le=1)
    """How far a weight may be from 1."""
    denominator: Literal["old", "current"] = "old"
    """The student of d_t: the policy before the update, once per rollout batch; or as it is at each forward pass,
    a constant in the loss."""


class Fusion(Modulated):
    """VASPO: A (1 + M (w - 1)) with w = clip(exp(d), 1 - eps_w, 1 + eps_w), where the gate M is open (VP section 3)."""

    type: Literal["fusion"] = "fusion"
    masked: bool = True
    """Open the gate only where A > 0 and |tanh(d / tau)| > delta; False opens it on every action token."""
    tau: float = Field(0.02, gt=0)
    """Width of the gate, nats."""
    delta: float = Field(0.02, ge=0, lt=1)
    """Threshold of the gate."""


class Rlsd(Modulated):
    """RLSD: A ((1 - mix) + mix clip(exp(sign(A) d), 1 - eps_w, 1 + eps_w)) (arXiv:2604.03128)."""

    type: Literal["rlsd"] = "rlsd"
    mix: float = Field(0.5, ge=0, le=1)
    """How much of the teacher is mixed in at the first rollout batch."""
    mix_steps: int = Field(50, ge=1)
    """Rollout batches trained on until it has fallen to 0."""


Modulation = Annotated[NoModulation | Fusion | Rlsd, Field(discriminator="type")]
