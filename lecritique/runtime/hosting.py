"""What actors hold, built inside their processes from the run's configuration, as local roles are.

Every maker takes the resolved configuration as JSON and the folder of published weights.
"""

from __future__ import annotations

from pathlib import Path

from lecritique.actors.hosts import EngineHost, ScoringHost, TrainerHost, policy_figures, value_figures
from lecritique.config.engines import Vllm
from lecritique.config.schema import RunConfig
from lecritique.critic.trainer import ValueTrainer
from lecritique.distributed.weights import FileWeightStore
from lecritique.models.adapters import copied
from lecritique.models.loading import LanguageModel
from lecritique.runtime.build import configured_model, new_critic, policy_trainer, rollout_engine, trained_policy
from lecritique.runtime.engines import watch_replicas


def engine_host(config_json: str, folder: str) -> EngineHost:
    """An engine; of vLLM one replica, which has the actor's GPUs to itself: here its first weights are on the CPU."""
    config = RunConfig.model_validate_json(config_json)
    chosen, device = config.runtime.engine, config.runtime.device or "cpu"
    if isinstance(chosen, Vllm):
        alone = chosen.model_copy(update={"replicas": 1, "first_gpu": 0})
        config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"engine": alone})})
        device = "cpu"
    trained = trained_policy(configured_model(config, device).model, config)
    engine = rollout_engine(trained, config, FileWeightStore(Path(folder)))
    host = EngineHost(engine)
    watch_replicas(engine, host.note_loss)
    return host


def scoring_host(config_json: str, folder: str, copies: int) -> ScoringHost:
    """So many copies of the critic."""
    config, language = loaded(config_json)
    critic = new_critic(language.model, config)
    return ScoringHost([critic, *(copied(critic) for _ in range(copies - 1))], FileWeightStore(Path(folder)))


def policy_host(config_json: str, folder: str) -> TrainerHost:
    """The policy trainer, with its teacher."""
    config, language = loaded(config_json)
    store = policy_store(folder)
    trained = trained_policy(language.model, config)
    return TrainerHost(policy_trainer(trained, config, store, language.context_length), store, policy_figures)


def value_host(config_json: str, folder: str) -> TrainerHost:
    """The value trainer."""
    config, language = loaded(config_json)
    store = value_store(folder)
    trainer = ValueTrainer(
        new_critic(language.model, config),
        config.critic.optimizer,
        store,
        max_tokens=config.runtime.micro_batch_tokens,
    )
    return TrainerHost(trainer, store, value_figures)


def policy_store(folder: str) -> FileWeightStore:
    """Where the policy trainer publishes."""
    return FileWeightStore(Path(folder))


def value_store(folder: str) -> FileWeightStore:
    """Where the value trainer does."""
    # A replaced evaluator may ask for the version that serves while one is loaded and the next is published.
    return FileWeightStore(Path(folder), keep=3)


def loaded(config_json: str) -> tuple[RunConfig, LanguageModel]:
    """The run's configuration, and the model that it starts from on this actor's device."""
    config = RunConfig.model_validate_json(config_json)
    device = config.runtime.device or "cpu"
    return config, configured_model(config, device)
