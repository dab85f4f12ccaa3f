"""Derives what was left open and refuses combinations that make no sense. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from lecritique.config.actors import ActorResources, TrainerResources
from lecritique.config.adapters import NoAdapter, SharedBackbone
from lecritique.config.engines import VLLM_TEMPERATURES, Vllm
from lecritique.config.estimators import USES_CRITIC, USES_GROUP, AdaptiveLambda, Discounting, GaeLambda, LengthLambda
from lecritique.config.losses import Opsd
from lecritique.config.schema import ReferenceContext, RunConfig, SiblingsContext, TrainThenScore
from lecritique.config.teachers import NoModulation, TeacherContent
from lecritique.core.errors import ConfigurationError

Varying = TypeVar("Varying", bound=LengthLambda | AdaptiveLambda)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a configuration cannot know by itself: facts of the machine, the model and the task."""

    device: str
    context_length: int
    reward_range: tuple[float, float]
    takes_packed: bool = True
    """Whether the model takes rows that lie end to end."""


def uses_critic(config: RunConfig) -> bool:
    """Whether the run builds and trains a value function."""
    return config.estimator.type in USES_CRITIC


def uses_teacher(config: RunConfig) -> bool:
    """Whether the run builds a self-teacher."""
    return isinstance(config.policy.loss, Opsd) or not isinstance(config.policy.modulation, NoModulation)


def teacher_content(config: RunConfig) -> TeacherContent:
    """What the teacher is told: by default the same fixed information as the critic, else the answer."""
    own, context = config.policy.teacher.content, config.critic.context
    if own is not None:
        return own
    return context.content if isinstance(context, ReferenceContext) else "answer"


def gae_lambda(value: float | GaeLambda | Varying) -> float | Varying:
    """A lambda as a number: `retained ** (1 / length)` for the length-calibrated form (LC).

    One that differs between responses or batches stays what it is.
    """
    if isinstance(value, LengthLambda | AdaptiveLambda):
        return value
    return value.retained ** (1.0 / value.length) if isinstance(value, GaeLambda) else float(value)


def micro_batch_tokens_on(device: str) -> int:
    """Tokens of a forward pass where none are given: on CPUs what fits into caches (docs/experiments/speed.md)."""
    return 2048 if device_kind(device) == "cpu" else 16384


def resolve(config: RunConfig, facts: Facts) -> RunConfig:
    """The configuration without None, checked.

    Raises:
        ConfigurationError: keys that contradict each other, both named.
    """
    replay = config.critic.replay
    batch_size = replay.batch_size or config.rollout.batch_size
    capacity = replay.capacity or replay.max_uses * batch_size
    tree = config.model_dump()
    tree["preset"] = config.preset or "custom"
    device = tree["runtime"]["device"] = device_of(config, facts.device)
    on_cpu = device_kind(device) == "cpu"
    # Measured on CPUs alone (docs/experiments/speed.md).
    packed = on_cpu and facts.takes_packed
    tree["runtime"]["layout"] = config.runtime.layout or ("packed" if packed else "padded")
    tree["runtime"]["micro_batch_tokens"] = config.runtime.micro_batch_tokens or micro_batch_tokens_on(device)
    limit = config.sampling.max_total_tokens
    tree["sampling"]["max_total_tokens"] = facts.context_length if limit is None else limit
    prompt_limit = config.data.max_prompt_tokens
    tree["data"]["max_prompt_tokens"] = (
        tree["sampling"]["max_total_tokens"] - 1 if prompt_limit is None else prompt_limit
    )
    tree["data"]["contexts"] = config.data.contexts or ()
    tree["data"]["teachers"] = config.data.teachers or ()
    tree["policy"]["teacher"]["content"] = teacher_content(config)
    for section in (tree["estimator"], tree["critic"]):
        for key in ("gae_lambda", "value_target_lambda"):
            if isinstance(section.get(key), dict) and "retained" in section[key]:
                section[key] = gae_lambda(GaeLambda.model_validate(section[key]))
    tree["critic"]["replay"].update(
        batch_size=batch_size, capacity=capacity, refill_size=replay.refill_size or capacity
    )
    if isinstance(config.critic.context, SiblingsContext) and config.critic.context.max_tokens is None:
        left = facts.context_length - tree["sampling"]["max_total_tokens"]
        tree["critic"]["context"]["max_tokens"] = left if left > 0 else facts.context_length
    batches_open = 1 if config.rollout.max_staleness == 0 else 2
    in_flight = config.rollout.in_flight or batches_open * config.rollout.batch_size
    tree["rollout"]["in_flight"] = in_flight
    tree["runtime"]["evaluator_queue_tokens"] = (
        config.runtime.evaluator_queue_tokens or in_flight * tree["sampling"]["max_total_tokens"]
    )
    tree["critic"]["init"] = config.critic.init or ""
    tree["policy"]["minibatch_size"] = config.policy.minibatch_size or config.rollout.batch_size
    for key in ("temperature", "top_p", "top_k"):
        own = getattr(config.eval, key)
        tree["eval"][key] = getattr(config.sampling, key) if own is None else own
    resolved = RunConfig.model_validate(tree)
    for problem in _problems(resolved, facts):
        raise ConfigurationError(problem)
    return resolved


def device_of(config: RunConfig, machine: str) -> str:
    """What a run computes on: where none is named, the machine's, and GPUs for actors that ask for any.

    Args:
        config: resolved or not.
        machine: the device of this machine that a run takes by itself.
    """
    if config.runtime.device is not None or config.runtime.type == "local":
        return config.runtime.device or machine
    actors = config.runtime.actors
    asked = (actors.engines, actors.evaluators, actors.policy, actors.critic)
    return "cuda" if any(actor.gpus for actor in asked) else "cpu"


def device_kind(device: str) -> str:
    """`cuda` of `cuda:1`."""
    return device.partition(":")[0]


def _problems(config: RunConfig, facts: Facts) -> Iterator[str]:
    yield from _group_problems(config)
    yield from _asynchronous_problems(config)
    yield from _sampling_problems(config, facts)
    yield from _policy_problems(config)
    yield from _distillation_problems(config)
    yield from _modulation_problems(config)
    yield from _dynamic_sampling_problems(config)
    yield from _evaluation_problems(config)
    yield from _engine_problems(config)
    yield from _ranks_problems(config)
    yield from _actor_problems(config)
    if uses_critic(config):
        yield from _critic_problems(config, facts)


def _group_problems(config: RunConfig) -> Iterator[str]:
    size, group = config.rollout.batch_size, config.rollout.group_size
    if size % group:
        yield (
            f"'rollout.batch_size' counts rollouts and must be a multiple of 'rollout.group_size', "
            f"got {size} and {group}."
        )
    if group == 1 and config.estimator.type in USES_GROUP:
        yield (
            f"'estimator.type' = '{config.estimator.type}' compares the rollouts of a group and needs "
            f"'rollout.group_size' of at least 2, got 1."
        )
    if group == 1 and uses_critic(config) and config.critic.warmup == "leave_one_out":
        yield (
            "'critic.warmup' = 'leave_one_out' needs 'rollout.group_size' of at least 2, got 1; "
            "use 'critic.warmup' = 'discard'."
        )


def _asynchronous_problems(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    size, group, in_flight = rollout.batch_size, rollout.group_size, rollout.in_flight or 0
    if in_flight < size or in_flight % group:
        yield (
            f"'rollout.in_flight' counts rollouts and must be a multiple of 'rollout.group_size' = {group} of at least "
            f"'rollout.batch_size' = {size}, got {in_flight}."
        )
    if rollout.max_staleness == 0 and in_flight > size:
        yield (
            f"'rollout.max_staleness' = 0 lets one batch be in flight, so 'rollout.in_flight' can only be "
            f"'rollout.batch_size' = {size}, got {in_flight}."
        )


def _shadow_problems(config: RunConfig) -> Iterator[str]:
    if config.critic.shadow and config.rollout.group_size == 1:
        yield (
            "'critic.shadow' = true credits the policy by leave-one-out and needs 'rollout.group_size' of at least 2, "
            "got 1."
        )


def _sibling_problems(config: RunConfig, facts: Facts) -> Iterator[str]:
    context = config.critic.context
    if not isinstance(context, SiblingsContext):
        return
    if config.rollout.group_size == 1:
        yield (
            "'critic.context.type' = 'siblings' shows the other rollouts of a group and needs 'rollout.group_size' "
            "of at least 2, got 1."
        )
    own, room = config.sampling.max_total_tokens or 0, context.max_tokens or 0
    if context.on_overflow == "trim_context" and (room < 1 or own + room > facts.context_length):
        yield (
            f"'critic.context.on_overflow' = 'trim_context' needs room of its own, whatever the length of a rollout: "
            f"'sampling.max_total_tokens' = {own} and 'critic.context.max_tokens' = {context.max_tokens} are over the "
            f"context length of {facts.context_length}; lower the first."
        )


def _sampling_problems(config: RunConfig, facts: Facts) -> Iterator[str]:
    sampling, loss = config.sampling, config.policy.loss
    ratio = loss.type == "dppo" or (loss.type == "reinforce" and not loss.on_policy)
    if ratio and (sampling.top_p < 1 or sampling.top_k > 0):
        key = "sampling.top_p" if sampling.top_p < 1 else "sampling.top_k"
        yield (
            f"'policy.loss.type' = '{loss.type}' compares log-probs of the full softmax with the sampler's, "
            f"so '{key}' must be off (top_p = 1.0, top_k = 0), got {getattr(sampling, key.split('.')[1])}."
        )
    limit, prompt = sampling.max_total_tokens or facts.context_length, config.data.max_prompt_tokens or 0
    if prompt >= limit:
        yield (
            f"'data.max_prompt_tokens' = {prompt} leaves no token of 'sampling.max_total_tokens' = {limit} "
            "for a response."
        )
    if limit > facts.context_length:
        yield (
            f"'sampling.max_total_tokens' = {limit} is over the context length of 'model.name' = "
            f"'{config.model.name}', which is {facts.context_length}."
        )


def _policy_problems(config: RunConfig) -> Iterator[str]:
    policy, size = config.policy, config.rollout.batch_size
    minibatch = policy.minibatch_size or size
    if size % minibatch:
        yield (
            f"'rollout.batch_size' must be a multiple of 'policy.minibatch_size', both in rollouts, got {size} and "
            f"{minibatch}."
        )
    if policy.loss.type == "reinforce" and policy.loss.on_policy and (minibatch < size or policy.epochs > 1):
        key, value = ("policy.epochs", policy.epochs) if policy.epochs > 1 else ("policy.minibatch_size", minibatch)
        yield (
            f"'policy.loss.on_policy' = true holds for the first optimizer step of a batch only, got '{key}' = "
            f"{value}; use 'policy.loss.on_policy' = false or another loss."
        )


def _distillation_problems(config: RunConfig) -> Iterator[str]:
    policy = config.policy
    if (config.estimator.type == "none") != isinstance(policy.loss, Opsd):
        yield (
            f"'policy.loss.type' = 'opsd' reads no advantages, every other loss does: it goes with 'estimator.type' = "
            f"'none' and only with it, got '{policy.loss.type}' and '{config.estimator.type}'."
        )
    if not isinstance(policy.loss, Opsd):
        return
    if not isinstance(policy.modulation, NoModulation):
        yield (
            f"'policy.modulation.type' = '{policy.modulation.type}' changes advantages, and 'policy.loss.type' = "
            "'opsd' reads none."
        )
    if policy.whiten:
        yield "'policy.whiten' = true changes advantages, and 'policy.loss.type' = 'opsd' reads none."


def _modulation_problems(config: RunConfig) -> Iterator[str]:
    policy, modulation = config.policy, config.policy.modulation
    if isinstance(modulation, NoModulation) or not policy.whiten:
        return
    late = {
        "'policy.modulation.denominator' = 'current'": modulation.denominator == "current",
        "'policy.teacher.rescore' = true": policy.teacher.rescore,
    }
    for key in (key for key, set_so in late.items() if set_so):
        yield (
            f"'policy.whiten' = true takes the mean over the whole batch before the first optimizer step, but {key} "
            "modulates advantages again at each of them; use one of the two."
        )


def _dynamic_sampling_problems(config: RunConfig) -> Iterator[str]:
    rounds = config.rollout.dynamic_sampling
    if not rounds:
        return
    if config.estimator.type not in ("mean", "leave_one_out"):
        yield (
            f"'rollout.dynamic_sampling' = {rounds} leaves out groups whose rollouts all earned the same, from which "
            f"'estimator.type' = '{config.estimator.type}' learns as well; use 'mean' or 'leave_one_out', or 0."
        )
    elif config.runtime.loop == "asynchronous":
        yield (
            f"'rollout.dynamic_sampling' = {rounds} asks again within a step, which 'runtime.loop' = 'asynchronous' "
            "does not have; use 'runtime.loop' = 'synchronous'."
        )


def _evaluation_problems(config: RunConfig) -> Iterator[str]:
    every = config.run.eval_every
    if not every:
        return
    if config.runtime.loop == "asynchronous":
        yield (
            f"'run.eval_every' = {every} evaluates between two steps, where 'runtime.loop' = 'asynchronous' never "
            "rests; use 'runtime.loop' = 'synchronous', or 'lecritique eval' on its checkpoints."
        )
    if not config.eval.tasks and not config.data.evaluation_fraction:
        yield (
            f"'run.eval_every' = {every} has nothing to evaluate on: every row is trained on; set "
            "'data.evaluation_fraction' or 'eval.tasks'."
        )


def _engine_problems(config: RunConfig) -> Iterator[str]:
    """Where vLLM's log-probs would be of another distribution than the trainer's."""
    runtime = config.runtime
    if not isinstance(runtime.engine, Vllm):
        return
    if runtime.dtype == "float64":
        yield (
            "'runtime.dtype' = 'float64' is not what vLLM computes in; use 'runtime.engine.type' = 'embedded' for "
            "equality tests, or 'float32' or 'bfloat16'."
        )
    device = (runtime.device or "").split(":")[0]
    if device not in ("cpu", "cuda"):
        yield f"'runtime.engine.type' = 'vllm' works with 'runtime.device' = 'cpu' or 'cuda', got '{runtime.device}'."
    yield from _transfer_problems(runtime.engine, device)
    low, high = VLLM_TEMPERATURES
    for key, section in (("sampling", config.sampling), ("eval", config.eval)):
        temperature = section.temperature
        if temperature is not None and not low <= temperature <= high:
            yield (
                f"'{key}.temperature' = {temperature} is not what vLLM would sample at: 'runtime.engine.type' = 'vllm' "
                f"takes temperatures from {low} to {high}."
            )


def _actor_problems(config: RunConfig) -> Iterator[str]:
    """What needs several roles in one process."""
    runtime = config.runtime
    if runtime.type == "local":
        return
    if runtime.loop == "synchronous" and runtime.placement == "colocated":
        yield (
            f"'runtime.placement' = 'colocated' with 'runtime.type' = '{runtime.type}' needs 'runtime.loop' = "
            "'asynchronous', got 'synchronous'; use 'runtime.placement' = 'dedicated'."
        )
    yield from _actor_device_problems(config)
    engine = runtime.engine
    if isinstance(engine, Vllm) and (engine.replicas > 1 or engine.first_gpu or engine.transfer != "file"):
        yield (
            f"'runtime.type' = '{runtime.type}' makes replicas and gives them GPUs by 'runtime.actors.engines': "
            "'runtime.engine.replicas' must be 1, 'first_gpu' 0 and 'transfer' 'file', got "
            f"{engine.replicas}, {engine.first_gpu} and '{engine.transfer}'."
        )


def _actor_device_problems(config: RunConfig) -> Iterator[str]:
    """Roles that would compute on a GPU which they did not ask for."""
    runtime, actors = config.runtime, config.runtime.actors
    if device_kind(runtime.device or "cpu") == "cpu":
        return
    seats: dict[str, ActorResources] = {"engines": actors.engines, "policy": actors.policy}
    if uses_critic(config):
        seats["critic"] = actors.critic
        if runtime.placement == "dedicated":
            seats["evaluators"] = actors.evaluators
    for name, asked in seats.items():
        ranks = asked.ranks if isinstance(asked, TrainerResources) else 1
        if not asked.gpus:
            yield (
                f"'runtime.device' = '{runtime.device}' is where every actor computes, and "
                f"'runtime.actors.{name}.gpus' = 0 gives this one none; give it one, or a fraction."
            )
        elif ranks > 1 and asked.gpus < 1:
            yield (
                f"'runtime.actors.{name}.ranks' = {ranks} processes need a GPU each, and "
                f"'runtime.actors.{name}.gpus' = {asked.gpus:g} lets them share one; give each of them 1, or use one "
                "rank."
            )


def _transfer_problems(engine: Vllm, device: str) -> Iterator[str]:
    """Where CUDA IPC does not reach: a handle opens on the trainer's own GPU alone."""
    if engine.transfer != "ipc":
        return
    if device == "cpu":
        yield "'runtime.engine.transfer' = 'ipc' shares a GPU's memory, and 'runtime.device' is 'cpu'; use 'file'."
    for key, got, expected in (
        ("replicas", engine.replicas, 1),
        ("tensor_parallel", engine.tensor_parallel, 1),
        ("first_gpu", engine.first_gpu, 0),
    ):
        if got != expected:
            yield (
                "'runtime.engine.transfer' = 'ipc' reaches a replica on the trainer's own GPU alone: "
                f"'runtime.engine.{key}' must be {expected}, got {got}; or use 'file'."
            )


def _ranks_problems(config: RunConfig) -> Iterator[str]:
    """Several processes that train in one process group, which does one thing at a time.

    On Ray each trainer has a group of its own.
    """
    runtime = config.runtime
    by_actors = "'runtime.actors.policy.ranks' and 'runtime.actors.critic.ranks'"
    if runtime.ranks > 1 and runtime.type == "ray":
        yield (
            f"'runtime.type' = 'ray' gives each trainer processes of its own, got 'runtime.ranks' = {runtime.ranks}; "
            f"use {by_actors}."
        )
    elif runtime.ranks > 1 and runtime.loop == "asynchronous" and uses_critic(config):
        yield (
            f"'runtime.ranks' = {runtime.ranks} trains policy and critic one after the other, and 'runtime.loop'"
            " = 'asynchronous' does both at the same time; use 'runtime.loop' = 'synchronous', or 'runtime.type' = "
            f"'ray' with {by_actors}."
        )


def _backbone_problems(config: RunConfig) -> Iterator[str]:
    if not isinstance(config.critic.backbone, SharedBackbone):
        return
    shared = "'critic.backbone.type' = 'shared'"
    if isinstance(config.model.adapter, NoAdapter):
        yield (
            f"{shared} puts the critic's adapter on the weights that the policy's adapter leaves frozen, and "
            "'model.adapter.type' = 'none' trains those; use 'model.adapter.type' = 'lora', or 'critic.backbone.type' "
            "= 'lora'."
        )
    if config.critic.init:
        yield (
            f"{shared} reads the policy's frozen weights, and 'critic.init' = '{config.critic.init}' brings others; "
            "use 'critic.backbone.type' = 'lora' or 'copy'."
        )
    if config.runtime.ranks > 1:
        yield (
            f"{shared} keeps one set of weights for two models, which 'runtime.ranks' = {config.runtime.ranks} would "
            "cut into shards of each; use 'critic.backbone.type' = 'lora' (the same numbers), or 'runtime.ranks' = 1."
        )
    if config.runtime.type == "ray":
        yield (
            f"{shared} keeps one set of weights for two models of a process, and 'runtime.type' = 'ray' gives each "
            "model a process of its own; use 'critic.backbone.type' = 'lora' (the same numbers), or 'runtime.type' = "
            "'local'."
        )


def _schedule_problems(config: RunConfig) -> Iterator[str]:
    if isinstance(config.critic.schedule, TrainThenScore) and config.runtime.loop == "asynchronous":
        yield (
            "'critic.schedule.type' = 'train_then_score' trains the critic before a batch is scored, and 'runtime.loop'"
            " = 'asynchronous' does both at the same time; use 'runtime.loop' = 'synchronous'."
        )


def _lambda_problems(config: RunConfig) -> Iterator[str]:
    estimator = config.estimator
    if not isinstance(estimator, Discounting) or not isinstance(estimator.gae_lambda, AdaptiveLambda):
        return
    if estimator.gamma != 1.0:
        yield (
            f"'estimator.gae_lambda' with 'bias_weight' is derived for 'estimator.gamma' = 1.0, got {estimator.gamma}."
        )
    if config.rollout.group_size == 1:
        yield (
            "'estimator.gae_lambda' with 'bias_weight' measures returns within groups and needs 'rollout.group_size' "
            "of at least 2, got 1."
        )


def _critic_problems(config: RunConfig, facts: Facts) -> Iterator[str]:
    low, high = config.critic.loss.support
    if facts.reward_range[0] < low or facts.reward_range[1] > high:
        yield (
            f"'critic.loss.type' = '{config.critic.loss.type}' covers values in [{low}, {high}], but 'task.type' = "
            f"'{config.task.type}' gives rewards in [{facts.reward_range[0]}, {facts.reward_range[1]}]."
        )
    replay = config.critic.replay
    batch, capacity, refill = replay.batch_size or 0, replay.capacity or 0, replay.refill_size or 0
    if not batch <= refill <= capacity:
        yield (f"'critic.replay' needs batch_size <= refill_size <= capacity, got {batch}, {refill} and {capacity}.")
    yield from _schedule_problems(config)
    yield from _backbone_problems(config)
    yield from _sibling_problems(config, facts)
    yield from _shadow_problems(config)
    yield from _warmup_problems(config)
    yield from _lambda_problems(config)


def _warmup_problems(config: RunConfig) -> Iterator[str]:
    critic, replay = config.critic, config.critic.replay
    if isinstance(critic.schedule, TrainThenScore):
        yield from _warmup_problems_without_replay(config)
        return
    if critic.warmup_updates and not critic.updates_per_policy_step:
        yield (
            f"'critic.warmup_updates' = {critic.warmup_updates} is never reached with "
            "'critic.updates_per_policy_step' = 0."
        )
        return
    size, batch, refill = config.rollout.batch_size, replay.batch_size or 1, replay.refill_size or 1
    # Replay must fill before the first update, and each rollout is trained on a limited number of times.
    filling = -(-refill // size)
    before_last = config.run.steps - 1
    rate = critic.updates_per_policy_step
    # A rate below 1 owes floor(rate n) updates after n steps; those of the steps in which replay fills lapse.
    owed = math.floor(rate * before_last + 1e-9) - math.floor(rate * (filling - 1) + 1e-9)
    most = min(owed, replay.max_uses * before_last * size // batch)
    if critic.warmup == "discard" and critic.warmup_updates and most < critic.warmup_updates:
        yield (
            f"'run.steps' = {config.run.steps} ends before 'critic.warmup_updates' = {critic.warmup_updates} "
            f"are done (replay fills for {filling} of them, and {max(most, 0)} updates fit in before the last), so no "
            "policy batch would ever be trained on; use more steps or 'critic.warmup' = 'leave_one_out'."
        )


def _warmup_problems_without_replay(config: RunConfig) -> Iterator[str]:
    critic, size = config.critic, config.rollout.batch_size
    assert isinstance(critic.schedule, TrainThenScore)
    # The last step's own updates come before its scores with `pre_update`, and after them without.
    steps = config.run.steps if critic.schedule.pre_update else config.run.steps - 1
    most = steps * size // (config.policy.minibatch_size or size)
    if critic.warmup == "discard" and most < critic.warmup_updates:
        yield (
            f"'run.steps' = {config.run.steps} ends before 'critic.warmup_updates' = {critic.warmup_updates} are done "
            f"({most} updates come before the last scores), so no policy batch would ever be trained on; use more "
            "steps or 'critic.warmup' = 'leave_one_out'."
        )


def differences(a: RunConfig, b: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Keys on which two resolved configurations differ, with both values."""
    flat_a, flat_b = _flat(a.model_dump(mode="json")), _flat(b.model_dump(mode="json"))
    return {
        key: (flat_a.get(key), flat_b.get(key))
        for key in sorted(flat_a.keys() | flat_b.keys())
        if flat_a.get(key) != flat_b.get(key)
    }


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves.update(_flat(value, f"{prefix}{key}."))
        else:
            leaves[prefix + key] = value
    return leaves
