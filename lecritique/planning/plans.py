"""A plan: how long a step of a recipe takes on given GPUs, and who waits meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lecritique.config.cluster import Cluster
from lecritique.config.engines import Embedded
from lecritique.config.resolve import uses_critic
from lecritique.config.schema import RunConfig, SiblingsContext, TrainThenScore
from lecritique.core.errors import ConfigurationError
from lecritique.planning.lengths import Lengths
from lecritique.planning.memory import longest_row
from lecritique.planning.placement import GpuMemory, Placement, memory_on_gpus, usable_memory
from lecritique.planning.roofline import Efficiency, Roofline
from lecritique.planning.shapes import ModelShape
from lecritique.planning.simulation import AsynchronousRun, AsynchronousSettings, Outcome, rollout_seconds
from lecritique.planning.weights import WIDTH
from lecritique.planning.work import Work


@dataclass(frozen=True, kw_only=True)
class SynchronousPlan:
    """Seconds of each phase of a step, one after the other; tokens/s of the step; idle share of the engines' time."""

    seconds: Mapping[str, float]
    tokens_per_second: float
    rollout_idle: float

    @property
    def step_seconds(self) -> float:
        """All phases."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class Planner:
    """One arm of a recipe on one placement.

    Raises:
        ConfigurationError: a role does not fit its GPUs, or leaves no room for the cache of one row.
    """

    config: RunConfig
    shape: ModelShape
    cluster: Cluster
    placement: Placement
    efficiency: Efficiency = field(default_factory=Efficiency)

    @property
    def response_tokens(self) -> int:
        """Mean number of tokens that a rollout samples."""
        return self.cluster.response_tokens or max(1, self.config.sampling.max_turn_tokens // 2)

    @property
    def work(self) -> Work:
        """How long each piece takes."""
        return Work(
            config=self.config,
            placement=self.placement,
            roofline=self.roofline,
            prompt_tokens=self.cluster.prompt_tokens,
            response_tokens=self.response_tokens,
            told_to_critic=self.cluster.context_tokens,
        )

    @property
    def roofline(self) -> Roofline:
        """The model on these GPUs."""
        return Roofline(
            shape=self.shape, gpu=self.placement.gpu, dtype=self.config.runtime.dtype, efficiency=self.efficiency
        )

    @property
    def lengths(self) -> Lengths:
        """Of rollouts."""
        limit = longest_row(self.config) - self.cluster.prompt_tokens
        if limit < 1:
            raise ConfigurationError(
                f"'cluster.prompt_tokens' = {self.cluster.prompt_tokens} leaves nothing of "
                f"'sampling.max_total_tokens' = {longest_row(self.config)} for a response."
            )
        return Lengths(
            mean=float(self.response_tokens),
            spread=self.cluster.spread,
            limit=limit,
            prompt=self.cluster.prompt_tokens,
        )

    @property
    def most_rows(self) -> int:
        """Rows of mean length for which one engine has room beside the weights; the embedded one decodes a number."""
        held = self._fitting()[0]
        width = WIDTH[self.config.runtime.dtype]
        row = self.shape.cache_numbers(self.cluster.prompt_tokens + self.response_tokens) * width
        rows = int((usable_memory(self.placement.gpu) - held.fixed) / max(1, row))
        if rows < 1:
            raise ConfigurationError(f"a {self.placement.gpu.name} has no room for the cache of one rollout.")
        runtime = self.config.runtime
        return min(rows, runtime.decode_rows) if isinstance(runtime.engine, Embedded) else rows

    @property
    def chunk_tokens(self) -> int:
        """Tokens between which rows of an engine join and leave; 0 at any."""
        runtime = self.config.runtime
        return runtime.decode_chunk_tokens if isinstance(runtime.engine, Embedded) else 0

    def synchronous(self) -> SynchronousPlan:
        """One thing after the other."""
        rollout, rows = self.config.rollout, self.most_rows
        played, idle = rollout_seconds(
            self.roofline,
            self.lengths,
            groups=rollout.batch_size // rollout.group_size,
            group_size=rollout.group_size,
            gpus=self.placement.of("inference"),
            most_rows=rows,
            chunk_tokens=self.chunk_tokens,
        )
        tokens = [float(self.response_tokens)] * rollout.batch_size
        work = self.work
        seconds = {
            "rollout": played + work.publish_seconds,
            "log_probs": work.old_logprob_seconds(tokens),
            "teacher": work.teacher_seconds(tokens),
        }
        if uses_critic(self.config):
            schedule, critic = self.config.critic.schedule, self.config.critic
            first = isinstance(schedule, TrainThenScore) and schedule.pre_update
            seconds["values"] = work.score_value_seconds(tokens) * (2 if first else 1)
            trained = (
                float(rollout.batch_size)
                if isinstance(schedule, TrainThenScore)
                else critic.updates_per_policy_step * float(critic.replay.batch_size or rollout.batch_size)
            )
            seconds["critic"] = work.train_value_seconds(tokens) * trained / rollout.batch_size
        seconds["actor"] = work.train_policy_seconds(tokens)
        return SynchronousPlan(
            seconds={phase: taken for phase, taken in seconds.items() if taken},
            tokens_per_second=sum(tokens) / sum(seconds.values()),
            rollout_idle=idle,
        )

    def asynchronous(self, *, steps: int, skip: int, seed: int = 0) -> Outcome:
        """Everything at once, as the runtime's rules let it."""
        settings = asynchronous_settings(self.config)
        run = AsynchronousRun(
            settings,
            self.work,
            self.roofline,
            self.lengths,
            gpus=self.placement.of("inference"),
            most_rows=self.most_rows,
            chunk_tokens=self.chunk_tokens,
            seed=seed,
        )
        return run.run(steps, skip=skip)

    def _fitting(self) -> list[GpuMemory]:
        """What each role holds, the engine first."""
        held = memory_on_gpus(self.config, self.shape, self.placement)
        for role in held:
            if not role.fits(self.placement.gpu):
                raise ConfigurationError(
                    f"{role.role} needs {(role.fixed + role.activations) / 1e9:.0f} GB on each GPU, a "
                    f"{self.placement.gpu.name} has {self.placement.gpu.memory / 1e9:.0f}: use more GPUs, or a smaller "
                    "'runtime.micro_batch_tokens'."
                )
        return held


def asynchronous_settings(config: RunConfig) -> AsynchronousSettings:
    """What the rules of an asynchronous run read of a resolved configuration."""
    rollout, critic = config.rollout, config.critic
    assert rollout.in_flight is not None
    return AsynchronousSettings(
        group_size=rollout.group_size,
        groups_per_step=rollout.batch_size // rollout.group_size,
        groups_in_flight=rollout.in_flight // rollout.group_size,
        max_staleness=rollout.max_staleness,
        has_critic=uses_critic(config),
        colocated=config.runtime.placement == "colocated",
        score_with_group=isinstance(critic.context, SiblingsContext),
        score_tokens=config.runtime.micro_batch_tokens,
        updates_per_step=critic.updates_per_policy_step,
        update_rollouts=critic.replay.batch_size or rollout.batch_size,
        cancel_stale=rollout.on_stale == "cancel",
    )
