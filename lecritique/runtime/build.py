"""Builds the roles of a run from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lecritique.config.adapters import CopyBackbone, LoraAdapter, LoraBackbone, SharedBackbone
from lecritique.config.engines import Embedded
from lecritique.config.resolve import Facts, gae_lambda, resolve, teacher_content, uses_critic, uses_teacher
from lecritique.config.schema import NoContext, ReferenceContext, RunConfig, TaskSection
from lecritique.core.rollout import Sampling
from lecritique.core.seeds import derive_seed
from lecritique.credit.crediting import Crediting
from lecritique.credit.schedules import Learner
from lecritique.critic.context import ContextBuilder, context_text, needs_siblings
from lecritique.critic.evaluator import TrainersEvaluator, ValueEvaluator
from lecritique.critic.replay import ReplayBuffer
from lecritique.critic.system import ServesValues, ValueSystem
from lecritique.critic.teacher import TeacherPrompts
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.adapters import adapted, copied, merged, require_adaptable
from lecritique.models.chat import ChatRenderer
from lecritique.models.devices import default_device
from lecritique.models.loading import LanguageModel, load_causal_lm
from lecritique.models.merging import MergingStore
from lecritique.models.packed_attention import reads_packed
from lecritique.models.recomputation import recompute_activations
from lecritique.models.scoring import require_plain_head
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore, WeightStore
from lecritique.policy.teacher import SelfTeacher
from lecritique.policy.trainer import PolicyTrainer
from lecritique.rollout.engine import Engine
from lecritique.runs.sinks import require_sinks
from lecritique.runtime.data import DataSet, data_set
from lecritique.runtime.engines import configured_engine
from lecritique.runtime.evaluation_sets import EvalSet, sets_in_training
from lecritique.runtime.ledger import Ledger
from lecritique.runtime.spending import Spending
from lecritique.runtime.value_service import ValueService, colocated, dedicated
from lecritique.runtime.warm_start import load_critic
from lecritique.tasks.protocol import Environment, checked_task
from lecritique.tasks.registry import load_environment, resolve_options
from lecritique.tasks.stream import DataStream

if TYPE_CHECKING:
    from lecritique.actors.trainers import PublishedWeights
    from lecritique.runtime.actor_roles import ActorRoles
    from lecritique.runtime.training_group import TrainingGroup


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The roles of a run, and the resolved configuration that they were built from."""

    config: RunConfig
    environment: Environment
    data: DataSet
    stream: DataStream
    tokenizer: Any
    renderer: ChatRenderer
    engine: Engine
    learner: Learner
    store: MemoryWeightStore | PublishedWeights
    ledger: Ledger
    spending: Spending
    evaluation: tuple[EvalSet, ...] = ()
    """What is played at intervals; empty without `run.eval_every`."""
    service: ValueService | None = None
    """The evaluator thread of an asynchronous run with a critic."""
    group: TrainingGroup | None = None
    """The processes that train, where this one does not train alone."""
    actors: ActorRoles | None = None
    """What holds the models, where this process does not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """What can be known before any role exists: environment, model, resolved configuration."""

    config: RunConfig
    environment: Environment
    data: DataSet
    language: LanguageModel
    renderer: ChatRenderer
    evaluation: tuple[EvalSet, ...] = ()


def load_base(config: RunConfig) -> Base:
    """Load environment and model, and resolve the configuration against them.

    Raises:
        ConfigurationError: an unknown task or model, a sink that is not installed, or keys that contradict each other.
        DataError: a row that cannot be used, such as one without the reference that the critic's context needs.
    """
    require_sinks(config.run.sinks)
    environment = load_environment(config.task.type, config.task.options, seed=config.run.seed)
    # Where models are in actors, this process needs the tokenizer and the sizes only.
    own = "cpu" if config.runtime.type == "ray" else config.runtime.device
    device = own or default_device()
    language = configured_model(config, device)
    require_plain_head(language.model, language.name)
    require_adapters(language.model, config)
    resolved, renderer = resolved_against(config, environment, language), ChatRenderer(language.tokenizer)
    data = data_set(environment, renderer, resolved, context_length=language.context_length)
    return Base(
        config=resolved,
        environment=data.environment,
        data=data,
        language=language,
        renderer=renderer,
        evaluation=sets_in_training(resolved, environment),
    )


def require_adapters(model: Any, config: RunConfig) -> None:
    """Raise ConfigurationError when an adapter has no place in the model: before a run has a directory."""
    if isinstance(config.model.adapter, LoraAdapter):
        require_adaptable(model, config.model.adapter, key="model.adapter.target_modules")
    if uses_critic(config) and not isinstance(config.critic.backbone, CopyBackbone):
        require_adaptable(model, config.critic.backbone, key="critic.backbone.target_modules")


def configured_model(config: RunConfig, device: str | torch.device) -> LanguageModel:
    """The model that a run starts from, in its precision and with its layout of micro-batches."""
    runtime = config.runtime
    return load_causal_lm(
        config.model.name,
        dtype=getattr(torch, runtime.dtype),
        device=device,
        packed=None if runtime.layout is None else runtime.layout == "packed",
    )


def resolved_against(config: RunConfig, environment: Environment, language: LanguageModel) -> RunConfig:
    """The configuration without None, the environment's own options included, checked against task and model."""
    options = resolve_options(config.task.type, config.task.options, seed=config.run.seed)
    section = {**options.model_dump(mode="json", exclude_none=True), "type": config.task.type}
    filled = config.model_copy(update={"task": TaskSection.model_validate(section)})
    resolved = resolve(filled, facts_of(environment, language))
    if uses_critic(resolved) and not needs_siblings(resolved.critic.context):
        context_text(checked_task(environment, 0), resolved.critic.context)
    told = teacher_content(resolved)
    if uses_teacher(resolved) and told != "none":
        context_text(checked_task(environment, 0), ReferenceContext(content=told), key="policy.teacher.content")
    return resolved


def facts_of(environment: Environment, language: LanguageModel) -> Facts:
    """What resolving a configuration needs to know of model and task."""
    return Facts(
        device=str(language.model.device),
        context_length=language.context_length,
        reward_range=environment.reward_range,
        takes_packed=reads_packed(language.model),
    )


def build(base: Base, group: TrainingGroup | None = None, actors: ActorRoles | None = None) -> Parts:
    """The roles, all with version 0 of the weights.

    Args:
        base: resolved.
        group: whose trainers they are, where several processes train.
        actors: what holds the models, where this process does not.
    """
    config, model, length = base.config, base.language.model, base.language.context_length
    trained = trained_policy(model, config)
    store: MemoryWeightStore | PublishedWeights
    if actors is not None:
        actors.begin()
        store, engine, policy = actors.store, actors.engine(), actors.policy_trainer(trained)
    else:
        store = MemoryWeightStore()
        engine = rollout_engine(trained, config, store)
        make = group.policy_trainer if group else PolicyTrainer
        policy = policy_trainer(trained, config, store, length, make=make)
    # The critic starts as a copy of the policy's first weights.
    values = value_system(model, store, config, length, group=group, actors=actors) if uses_critic(config) else None
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
        context=ContextBuilder(
            critic.context if values else NoContext(), base.renderer, context_length=base.language.context_length
        ),
        warmup_updates=critic.warmup_updates,
        ship_while_cold=critic.warmup == "leave_one_out",
        shadow=critic.shadow,
        teacher_prompts=TeacherPrompts(teacher_content(config), base.renderer) if uses_teacher(config) else None,
    )
    return Parts(
        config=config,
        environment=base.environment,
        data=base.data,
        stream=DataStream(base.data.rows, derive_seed(config.run.seed, "data")),
        tokenizer=base.language.tokenizer,
        renderer=base.renderer,
        engine=engine,
        learner=learner,
        store=store,
        ledger=Ledger(),
        spending=Spending(learner, config.run.budget),
        evaluation=base.evaluation,
        service=values.evaluator if values and isinstance(values.evaluator, ValueService) else None,
        group=group,
        actors=actors,
    )


def rollout_engine(trained: Any, config: RunConfig, store: WeightStore) -> Engine:
    """The configured engine with the weights of the policy that is trained; see `configured_engine`."""
    longest = config.sampling.max_total_tokens
    assert longest is not None
    policy = merged(trained) if _merges(config) else trained
    return configured_engine(policy, store, config, max_length=longest)


def policy_trainer(
    trained: Any,
    config: RunConfig,
    store: WeightStore,
    context_length: int,
    *,
    make: Callable[..., PolicyTrainer] = PolicyTrainer,
) -> PolicyTrainer:
    """The policy trainer, with its teacher where one is read; `make` stands for the class."""
    return make(
        trained,
        config.policy,
        MergingStore(store, trained) if _merges(config) else store,
        temperature=config.sampling.temperature,
        max_tokens=config.runtime.micro_batch_tokens,
        teacher=self_teacher(trained, config, context_length) if uses_teacher(config) else None,
    )


def _merges(config: RunConfig) -> bool:
    """Whether an adapter is published merged: only the embedded engine knows adapters."""
    return isinstance(config.model.adapter, LoraAdapter) and not isinstance(config.runtime.engine, Embedded)


def self_teacher(model: Any, config: RunConfig, context_length: int) -> SelfTeacher:
    """A teacher that starts as the policy is now."""
    return SelfTeacher(
        model,
        config.policy.teacher,
        temperature=config.sampling.temperature,
        max_tokens=config.runtime.micro_batch_tokens,
        context_length=context_length,
    )


def trained_policy(model: Any, config: RunConfig) -> Any:
    """What the policy trainer trains: the model itself, or one with an adapter over its weights.

    Raises:
        ConfigurationError: see `adapters.adapted`.
    """
    adapter = config.model.adapter
    trained = model
    if isinstance(adapter, LoraAdapter):
        trained = adapted(model, adapter, seed=derive_seed(config.run.seed, "policy_adapter"))
    if config.runtime.recompute_activations:
        recompute_activations(trained)
    return trained


def new_critic(model: Any, config: RunConfig) -> ValueModel:
    """The critic that a run starts from: a copy of the policy with a new head, or the one of 'critic.init'.

    With an adapter it gives the same values at first.

    Args:
        model: the policy without an adapter.
        config: of the run.

    Raises:
        CheckpointError: 'critic.init' names something that is not a critic of this kind.
        ConfigurationError: see `adapters.adapted`.
    """
    section, seed = config.critic, derive_seed(config.run.seed, "value_head")
    lora_seed = derive_seed(config.run.seed, "critic_adapter")
    if isinstance(section.backbone, SharedBackbone):
        shared = adapted(model.get_decoder(), section.backbone, seed=lora_seed)
        critic = ValueModel(shared, section.loss, seed=seed)
    else:
        critic = ValueModel.from_policy(model, section.loss, seed=seed)
        if section.init:
            load_critic(critic, Path(section.init))
        if isinstance(section.backbone, LoraBackbone):
            critic = critic.with_adapter(section.backbone, seed=lora_seed)
    if config.runtime.recompute_activations:
        recompute_activations(critic)
    return critic


def value_system(
    model: Any,
    store: WeightStore | PublishedWeights,
    config: RunConfig,
    context_length: int,
    *,
    group: TrainingGroup | None = None,
    actors: ActorRoles | None = None,
) -> ValueSystem:
    """Evaluator, trainer and replay of a new critic.

    Raises:
        CheckpointError: see `new_critic`.
    """
    critic, seed = config.critic, config.run.seed
    replay = critic.replay
    assert replay.batch_size is not None
    trained = new_critic(model, config)
    if actors is not None:
        trainer = actors.value_trainer(trained)
        evaluator = actors.evaluator(trainer)
    else:
        if config.runtime.placement == "colocated" and isinstance(store, MemoryWeightStore):
            store.only_name("critic")  # values are scored with the trainer's own weights
        make = group.value_trainer if group else ValueTrainer
        trainer = make(trained, critic.optimizer, store, max_tokens=config.runtime.micro_batch_tokens)
        evaluator = _evaluator(trainer, trained, store, config, context_length)
    return ValueSystem(
        evaluator=evaluator,
        trainer=trainer,
        replay=ReplayBuffer(
            batch_size=replay.batch_size,
            capacity=replay.capacity,
            refill_size=replay.refill_size,
            max_uses=replay.max_uses,
            seed=derive_seed(seed, "replay"),
        ),
        updates_per_step=critic.updates_per_policy_step,
    )


def _evaluator(
    trainer: ValueTrainer, critic: ValueModel, store: WeightStore, config: RunConfig, context_length: int
) -> ServesValues:
    """What serves values: on the caller's thread, or on one of its own with copies or with the trainer's weights."""
    asynchronous = config.runtime.loop == "asynchronous"
    if config.runtime.placement == "colocated":
        if asynchronous:
            return colocated(trainer, config, context_length=context_length)
        return TrainersEvaluator(trainer, context_length=context_length)
    own = copied(critic)
    if asynchronous:
        return dedicated(own, store, config, context_length=context_length)
    return ValueEvaluator(own, store, max_tokens=config.runtime.micro_batch_tokens, context_length=context_length)


def sampling_of(config: RunConfig) -> Sampling:
    """The sampling settings of rollouts."""
    section = config.sampling
    return Sampling(temperature=section.temperature, top_p=section.top_p, top_k=section.top_k)
