"""Builds the roles of a run from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lecritique.config.resolve import Facts, gae_lambda, resolve, uses_critic
from lecritique.config.schema import RunConfig, TaskSection
from lecritique.core.rollout import Sampling
from lecritique.core.seeds import derive_seed
from lecritique.credit.crediting import Crediting
from lecritique.credit.schedules import Learner
from lecritique.critic.context import context_builder, context_text
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.critic.replay import ReplayBuffer
from lecritique.critic.system import ValueSystem
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import LanguageModel, load_causal_lm
from lecritique.models.scoring import require_plain_head
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore, WeightStore
from lecritique.policy.trainer import PolicyTrainer
from lecritique.rollout.engine import EmbeddedEngine, Engine
from lecritique.runs.sinks import require_sinks
from lecritique.tasks.protocol import Environment, checked_task
from lecritique.tasks.registry import load_environment, resolve_options
from lecritique.tasks.stream import DataStream


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The roles of a run, and the resolved configuration that they were built from."""

    config: RunConfig
    environment: Environment
    stream: DataStream
    tokenizer: Any
    renderer: ChatRenderer
    engine: Engine
    learner: Learner


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """What can be known before any role exists: environment, model, resolved configuration."""

    config: RunConfig
    environment: Environment
    language: LanguageModel
    renderer: ChatRenderer


def load_base(config: RunConfig) -> Base:
    """Load environment and model, and resolve the configuration against them.

    Raises:
        ConfigurationError: an unknown task or model, a sink that is not installed, or keys that contradict each other.
        DataError: the first task lacks the reference that the critic's context needs.
    """
    require_sinks(config.run.sinks)
    environment = load_environment(config.task.type, config.task.options, seed=config.run.seed)
    device = config.runtime.device or ("cuda" if torch.cuda.is_available() else "cpu")
    language = load_causal_lm(config.model.name, dtype=getattr(torch, config.runtime.dtype), device=device)
    require_plain_head(language.model, language.name)
    return Base(
        config=resolved_against(config, environment, language),
        environment=environment,
        language=language,
        renderer=ChatRenderer(language.tokenizer),
    )


def resolved_against(config: RunConfig, environment: Environment, language: LanguageModel) -> RunConfig:
    """The configuration without None, the environment's own options included, checked against task and model."""
    options = resolve_options(config.task.type, config.task.options, seed=config.run.seed)
    section = {**options.model_dump(mode="json", exclude_none=True), "type": config.task.type}
    filled = config.model_copy(update={"task": TaskSection.model_validate(section)})
    resolved = resolve(filled, facts_of(environment, language))
    if uses_critic(resolved):
        context_text(checked_task(environment, 0), resolved.critic.context)
    return resolved


def facts_of(environment: Environment, language: LanguageModel) -> Facts:
    """What resolving a configuration needs to know of model and task."""
    return Facts(
        device=str(language.model.device),
        context_length=language.context_length,
        reward_range=environment.reward_range,
    )


def build(base: Base) -> Parts:
    """The roles, all with version 0 of the weights."""
    config, store = base.config, MemoryWeightStore()
    model = base.language.model
    engine = embedded_engine(model, store, config)
    policy = PolicyTrainer(
        model,
        config.policy,
        store,
        temperature=config.sampling.temperature,
        max_tokens=config.runtime.micro_batch_tokens,
    )
    # The critic starts as a copy of the policy's first weights.
    values = value_system(model, store, config, base.language.context_length) if uses_critic(config) else None
    engine.adopt(policy.publish())
    critic = config.critic
    learner = Learner(
        policy=policy,
        crediting=Crediting(
            config.estimator,
            value_target_lambda=gae_lambda(critic.value_target_lambda),
            batch_size=config.rollout.batch_size,
            warmup_updates=critic.warmup_updates,
        ),
        values=values,
        context=context_builder(critic.context, base.renderer) if values else (lambda task: None),
        warmup_updates=critic.warmup_updates,
        ship_while_cold=critic.warmup == "leave_one_out",
    )
    return Parts(
        config=config,
        environment=base.environment,
        stream=DataStream(len(base.environment), derive_seed(config.run.seed, "data")),
        tokenizer=base.language.tokenizer,
        renderer=base.renderer,
        engine=engine,
        learner=learner,
    )


def embedded_engine(model: Any, store: WeightStore, config: RunConfig) -> EmbeddedEngine:
    """The engine of the process itself."""
    runtime = config.runtime
    return EmbeddedEngine(
        model,
        store,
        max_rows=runtime.decode_rows,
        chunk_tokens=runtime.decode_chunk_tokens,
        prefill_tokens=runtime.micro_batch_tokens,
    )


def value_system(model: Any, store: WeightStore, config: RunConfig, context_length: int) -> ValueSystem:
    """Evaluator, trainer and replay of a new critic."""
    critic, seed = config.critic, config.run.seed
    head_seed = derive_seed(seed, "value_head")
    max_tokens = config.runtime.micro_batch_tokens
    replay = critic.replay
    assert replay.batch_size is not None
    return ValueSystem(
        evaluator=ValueEvaluator(
            ValueModel.from_policy(model, critic.loss, seed=head_seed),
            store,
            max_tokens=max_tokens,
            context_length=context_length,
        ),
        trainer=ValueTrainer(
            ValueModel.from_policy(model, critic.loss, seed=head_seed), critic.optimizer, store, max_tokens=max_tokens
        ),
        replay=ReplayBuffer(
            batch_size=replay.batch_size,
            capacity=replay.capacity,
            refill_size=replay.refill_size,
            max_uses=replay.max_uses,
            seed=derive_seed(seed, "replay"),
        ),
        updates_per_step=critic.updates_per_policy_step,
    )


def sampling_of(config: RunConfig) -> Sampling:
    """The sampling settings of rollouts."""
    section = config.sampling
    return Sampling(temperature=section.temperature, top_p=section.top_p, top_k=section.top_k)
