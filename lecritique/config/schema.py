"""The configuration of a run. Importing it loads no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from lecritique.config.base import Config
from lecritique.config.estimators import Estimator, OptimizerConfig, TargetLambda, Tether
from lecritique.config.losses import Bce, Dppo, PolicyLoss, ValueLoss


class RunSection(Config):
    """How long, and with which seed."""

    steps: int = Field(100, ge=1)
    """Rollout batches to collect; each ends in one policy step unless critic warm-up withholds it."""
    seed: int = 0
    """Root of every random choice of the run: data order, sampling, initialisation."""
    save_rollouts_every: int = Field(10, ge=0)
    """Save sampled rollouts with their per-token columns every so many steps; 0 never."""
    saved_rollouts: int = Field(64, ge=1)
    """Rollouts saved at such a step (whole groups, from the front of the batch)."""
    sinks: tuple[Literal["tensorboard"], ...] = ()
    """Extra sinks of the metrics; they need their extras installed."""


class TaskSection(Config):
    """Which environment. Other keys are the environment's own options: see `lecritique tasks show NAME`."""

    model_config = ConfigDict(extra="allow")

    type: str
    """A built-in name, or `module:Class` for your own."""

    @property
    def options(self) -> dict[str, Any]:
        """The environment's own options."""
        return dict(self.model_extra or {})


class ModelSection(Config):
    """The policy to start from."""

    name: str = "tiny"
    """`tiny` (bundled), a local folder, or a Hugging Face hub id."""


class SamplingSection(Config):
    """How rollouts are drawn."""

    temperature: float = Field(1.0, gt=0)
    """Divides the logits."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; below 1 only with losses that allow it."""
    top_k: int = Field(0, ge=0)
    """Top-k sampling; 0 is off."""
    max_turn_tokens: int = Field(64, ge=1)
    """Token limit of one turn."""
    max_total_tokens: int | None = Field(None, ge=2)
    """Token limit of an episode, prompts included; by default the model's context length."""


class RolloutSection(Config):
    """How much is collected for one policy step."""

    batch_size: int = Field(128, ge=1)
    """Rollouts of a policy batch (LC's meaning: rollouts, not prompts)."""
    group_size: int = Field(4, ge=1)
    """Rollouts of one attempt at one task row (K)."""
    max_failed_fraction: float = Field(0.5, ge=0, le=1)
    """Stop when more than this share of a batch's rollouts failed."""


class PolicySection(Config):
    """How the policy is updated."""

    loss: PolicyLoss = Dppo()
    """The policy loss."""
    whiten: bool = False
    """Take the batch's mean off the advantages and divide by its standard deviation, after credit."""
    minibatch_size: int | None = Field(None, ge=1)
    """Rollouts of an optimizer step; by default the whole batch, which is then one step."""
    epochs: int = Field(1, ge=1)
    """How often a rollout batch is gone through, with fixed advantages."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-6)
    """The policy's optimizer."""


class NoContext(Config):
    """A clean critic: it reads the policy's own tokens."""

    type: Literal["none"] = "none"


class ReferenceContext(Config):
    """The task's reference, inserted where only the critic reads it."""

    type: Literal["reference"] = "reference"
    content: Literal["answer", "solution", "both"] = "answer"
    """Final answer, worked solution, or both."""
    placement: Literal["system_prefix", "user_suffix"] = "system_prefix"
    """One system message in front (LC's code), or inside the last opening user message (VASPO)."""


Context = Annotated[NoContext | ReferenceContext, Field(discriminator="type")]


class ReplaySection(Config):
    """The critic's replay buffer (LC appendix B): FIFO by admission, unit = rollout."""

    max_uses: int = Field(2, ge=1)
    """How often a rollout is trained on at most (N)."""
    capacity: int | None = Field(None, ge=1)
    """Rollouts held; by default max_uses * batch_size."""
    refill_size: int | None = Field(None, ge=1)
    """Rollouts needed before sampling starts; by default the capacity."""
    batch_size: int | None = Field(None, ge=1)
    """Rollouts of a critic update; by default the policy's batch size."""


class CriticSection(Config):
    """The value function; not built when the estimator does not use one."""

    context: Context = NoContext()
    """What the critic may see and the policy may not."""
    loss: ValueLoss = Bce()
    """The value loss."""
    value_target_lambda: TargetLambda = 1.0
    """Lambda of the value targets; 1 gives the return."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
    """The critic's optimizer."""
    replay: ReplaySection = ReplaySection()
    """The replay buffer."""
    updates_per_policy_step: int = Field(1, ge=0)
    """Critic updates after each rollout batch, as far as replay is ready."""
    warmup_updates: int = Field(20, ge=0)
    """A policy batch ships only if the critic that scored it had at least so many updates."""
    warmup: Literal["discard", "leave_one_out"] = "discard"
    """What happens to policy batches before that: discarded (LC), or shipped with the group baseline."""


class RuntimeSection(Config):
    """Where and in which precision; the only keys that differ between a laptop and a cluster."""

    device: str | None = None
    """`cpu`, `cuda`, ...; by default cuda when there is one."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of weights and arithmetic; float64 is for equality tests."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Padded tokens of one forward pass in training and scoring."""
    decode_rows: int = Field(128, ge=1)
    """Rows that the embedded engine decodes at once."""
    decode_chunk_tokens: int = Field(32, ge=1)
    """Tokens decoded before finished rows leave and new ones join."""


class RunConfig(Config):
    """Everything that fixes a run. Presets are compositions of these keys: see `lecritique train --help`."""

    preset: str | None = None
    """The named arm that this configuration was composed from."""
    run: RunSection = RunSection()
    task: TaskSection
    model: ModelSection = ModelSection()
    sampling: SamplingSection = SamplingSection()
    rollout: RolloutSection = RolloutSection()
    estimator: Estimator = Tether()
    critic: CriticSection = CriticSection()
    policy: PolicySection = PolicySection()
    runtime: RuntimeSection = RuntimeSection()
