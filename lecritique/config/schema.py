"""The configuration of a run. Importing it loads no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from lecritique.config.actors import ActorsSection
from lecritique.config.adapters import Adapter, Backbone, CopyBackbone, NoAdapter
from lecritique.config.base import Config
from lecritique.config.engines import Embedded, EngineChoice
from lecritique.config.estimators import Estimator, OptimizerConfig, TargetLambda, Tether
from lecritique.config.evaluation import EvalSection
from lecritique.config.losses import Bce, Dppo, PolicyLoss, ValueLoss
from lecritique.config.teachers import AnyTeacher, EmaTeacher, Modulation, NoModulation, TeacherContent


class BudgetSection(Config):
    """What a run may spend: it ends after the step that reaches one of these. 0 is no limit."""

    rollouts: int = Field(0, ge=0)
    """Rollouts that have ended: failed, replaced and stale ones too."""
    tokens: int = Field(0, ge=0)
    """Sampled tokens, those of such rollouts too."""
    flops: float = Field(0.0, ge=0)
    """Estimated arithmetic of all roles; see `numerics.flops`."""
    seconds: float = Field(0.0, ge=0)
    """Wall time of the steps, without evaluation between them and without the time that a run lay still."""


class RunSection(Config):
    """How long, and with which seed."""

    steps: int = Field(100, ge=1)
    """Rollout batches to collect at most; each ends in one policy step unless critic warm-up withholds it."""
    budget: BudgetSection = BudgetSection()
    """What may be spent; the step that reaches it is the last. Every limit needs `steps` to be large enough."""
    seed: int = 0
    """Root of every random choice of the run: data order, sampling, initialisation."""
    save_rollouts_every: int = Field(10, ge=0)
    """Save sampled rollouts with their per-token columns every so many steps; 0 never."""
    saved_rollouts: int = Field(64, ge=1)
    """Rollouts saved at such a step (whole groups, from the front of the batch)."""
    checkpoint_every: int = Field(25, ge=0)
    """Save everything that `train --resume` needs every so many steps; 0 only at the end and when interrupted."""
    keep_checkpoints: int = Field(2, ge=1)
    """Checkpoints that stay; older ones are removed once a new one is complete."""
    eval_every: int = Field(0, ge=0)
    """Evaluate the policy every so many steps and after the last, as the section `eval` says; 0 never. Training is the
    same to the last bit with and without. Needs the synchronous loop."""
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
    adapter: Adapter = NoAdapter()
    """Train all weights, or an adapter on frozen ones (needs the extra `lora`)."""


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
    dynamic_sampling: int = Field(0, ge=0)
    """Rounds in which a step may ask for other groups in place of those whose rollouts all earned the same, the penalty
    on overlong responses apart (DAPO); those that are left after the last round stay. 0 is off."""
    max_failed_fraction: float = Field(0.5, ge=0, le=1)
    """Stop when more than this share of a batch's rollouts failed."""
    in_flight: int | None = Field(None, ge=1)
    """Rollouts that an asynchronous run keeps open at once; by default two batches, one with `max_staleness` = 0."""
    max_staleness: int = Field(8, ge=0)
    """Policy versions that a trained rollout may be behind, counted from its oldest token. 0 makes an asynchronous run
    wait for policy and critic after each batch: it then equals the synchronous loop."""
    on_stale: Literal["cancel", "withhold"] = "cancel"
    """What happens to rollouts that have become too old: cut off and forgotten, or finished and shown to the critic
    alone. Cutting costs nothing and takes long responses away; see `groups_stale` among the metrics."""


class PolicySection(Config):
    """How the policy is updated."""

    loss: PolicyLoss = Dppo()
    """The policy loss."""
    modulation: Modulation = NoModulation()
    """What a teacher does to the advantages, whatever estimator made them."""
    teacher: AnyTeacher = EmaTeacher()
    """The teacher; not built unless modulation or loss read one."""
    whiten: bool = False
    """Take the batch's mean off the advantages and divide by its standard deviation, after credit and modulation."""
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


class RubricContext(Config):
    """The task's rubric: what a grader looks for."""

    type: Literal["rubric"] = "rubric"
    placement: Literal["system_prefix", "user_suffix"] = "system_prefix"
    """One system message in front (LC's code), or inside the last opening user message (VASPO)."""


class EnvContext(Config):
    """What the environment declares before the first action, such as a solved grid."""

    type: Literal["env"] = "env"
    placement: Literal["system_prefix", "user_suffix"] = "system_prefix"
    """One system message in front (LC's code), or inside the last opening user message (VASPO)."""


class SiblingsContext(Config):
    """The other responses of the group with their returns, never the rollout's own."""

    type: Literal["siblings"] = "siblings"
    placement: Literal["system_prefix", "user_suffix"] = "system_prefix"
    """One system message in front (LC's code), or inside the last opening user message (VASPO)."""
    on_overflow: Literal["error", "trim_context", "skip"] = "error"
    """When they are too long for the critic: end the run, cut the responses shown, or leave the group out, counted."""
    max_tokens: int | None = Field(None, ge=1)
    """Token limit of the context; by default what the model's context length leaves beside sampling.max_total_tokens,
    or its whole length when nothing is left and nothing is to be trimmed."""


Context = Annotated[
    NoContext | ReferenceContext | RubricContext | EnvContext | SiblingsContext, Field(discriminator="type")
]


class ScoreThenTrain(Config):
    """LC: values that credit a batch never come from a critic that has trained on it."""

    type: Literal["score_then_train"] = "score_then_train"


class TrainThenScore(Config):
    """VASPO: one epoch of critic updates on the batch, over the policy's minibatches, then values, advantages and the
    policy's update. No replay; `replay` and `updates_per_policy_step` are not read. Needs the synchronous loop.
    """

    type: Literal["train_then_score"] = "train_then_score"
    pre_update: bool = True
    """False trains the critic after the policy instead: PPO's usual order, for ablation."""


Schedule = Annotated[ScoreThenTrain | TrainThenScore, Field(discriminator="type")]


class ReplaySection(Config):
    """The critic's replay buffer (LC appendix B): FIFO by admission, unit = rollout. Of `score_then_train` only."""

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

    backbone: Backbone = CopyBackbone()
    """What its values are read from: a full copy of the policy, a frozen one with an adapter, or the policy's own."""
    context: Context = NoContext()
    """What the critic may see and the policy may not."""
    schedule: Schedule = ScoreThenTrain()
    """The order of scoring and critic training within a rollout batch."""
    loss: ValueLoss = Bce()
    """The value loss."""
    value_target_lambda: TargetLambda = 1.0
    """Lambda of the value targets; 1 gives the return."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
    """The critic's optimizer."""
    replay: ReplaySection = ReplaySection()
    """The replay buffer."""
    updates_per_policy_step: float = Field(1.0, ge=0)
    """Critic updates after each rollout batch, as far as replay is ready; 0.5 is one after every second batch. Of
    `score_then_train` only."""
    shadow: bool = False
    """Train and measure the critic, and credit the policy by leave-one-out all the same."""
    init: str | None = None
    """Start from the critic of another run: its directory, or a folder with a saved value model. The optimizer starts
    afresh, and versions are counted from 0."""
    warmup_updates: int = Field(20, ge=0)
    """A policy batch ships only if the critic that scored it had at least so many updates."""
    warmup: Literal["discard", "leave_one_out"] = "discard"
    """What happens to policy batches before that: discarded (LC), or shipped with the group baseline."""


class DataSection(Config):
    """Which rows of the task are trained on. Decided when a run is built, alike for all arms of a recipe."""

    evaluation_fraction: float = Field(0.0, ge=0, lt=1)
    """Share of the rows kept out of training, chosen by a hash of what they ask: the same on every machine."""
    max_prompt_tokens: int | None = Field(None, ge=1)
    """Token limit of a prompt, template included; by default what sampling.max_total_tokens leaves for one token."""
    on_long_prompt: Literal["error", "drop", "truncate"] = "error"
    """A prompt over the limit ends the run before it starts, is left out, or loses the end of its last user message."""
    contexts: tuple[Context, ...] | None = None
    """Contexts that must fit into the critic, or the row is left out; by default those of all arms of the recipe."""
    teachers: tuple[TeacherContent, ...] | None = None
    """What teachers are told that must fit into them, or the row is left out; likewise."""


class RuntimeSection(Config):
    """Where and in which precision; the only keys that differ between a laptop and a cluster."""

    type: Literal["local", "ray"] = "local"
    """All roles in one process, or each model in an actor of a Ray cluster (needs the extra `ray`)."""
    address: str = "local"
    """Of the Ray cluster: `local` starts one on this machine for the run alone, `auto` finds one, or where it is."""
    actors: ActorsSection = ActorsSection()
    """What the actors of each role ask of the Ray cluster."""
    device: str | None = None
    """`cpu`, `cuda`, ...; by default the machine's accelerator, or the CPU."""
    loop: Literal["asynchronous", "synchronous"] = "asynchronous"
    """Rollouts, scoring, policy and critic training at the same time, or one after the other (the same numbers again
    on the same seed)."""
    placement: Literal["dedicated", "colocated"] = "dedicated"
    """Of the critic's evaluator: copies of its own (two in an asynchronous run), or the value trainer's weights between
    its steps, on several processes in their shards."""
    evaluator_wait_seconds: float = Field(0.005, ge=0)
    """How long a value request may wait for others to be scored with it."""
    evaluator_queue_tokens: int | None = Field(None, ge=1)
    """Tokens that may wait for the evaluator; by default those of all rollouts that may be in flight."""
    ranks: int = Field(1, ge=1)
    """Processes that train together, each with a shard of policy and critic (torch FSDP2); on GPUs one for each. The
    first of them does all else. With `runtime.type` = `local`, and with a critic in the synchronous loop only; on Ray
    each trainer has a number of its own, `runtime.actors.policy.ranks` and `runtime.actors.critic.ranks`."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of weights and arithmetic; float64 is for equality tests."""
    micro_batch_tokens: int | None = Field(None, ge=1)
    """Tokens of one forward pass in training and scoring, padding included; by default 16,384, and 2,048 on CPUs, whose
    caches longer passes do not fit into."""
    layout: Literal["padded", "packed"] | None = None
    """How the rows of a forward pass lie: side by side, those of similar length together, or end to end without
    padding. By default packed on CPUs with models that can, else padded; on GPUs in half precision packed rows are
    attended to by torch's kernel for them (not run yet)."""
    recompute_activations: bool = False
    """Keep only what goes into each layer, and compute the rest again for the gradient: less memory, a third more
    arithmetic in training, the same numbers."""
    engine: EngineChoice = Embedded()
    """What generates tokens."""
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
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    sampling: SamplingSection = SamplingSection()
    rollout: RolloutSection = RolloutSection()
    estimator: Estimator = Tether()
    critic: CriticSection = CriticSection()
    policy: PolicySection = PolicySection()
    eval: EvalSection = EvalSection()
    runtime: RuntimeSection = RuntimeSection()
