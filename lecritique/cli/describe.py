"""What `--dry-run` prints: the resolved configuration, batch arithmetic, memory per role and placement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lecritique.actors.seats import described
from lecritique.cli.output import console
from lecritique.config.cluster import Cluster
from lecritique.config.load import Recipe
from lecritique.config.resolve import teacher_content, uses_critic, uses_teacher
from lecritique.config.schema import RunConfig, TrainThenScore
from lecritique.config.unread import unread

if TYPE_CHECKING:
    from lecritique.planning.placement import GpuMemory, Placement
    from lecritique.planning.shapes import ModelShape
    from lecritique.planning.weights import ModelWeights
    from lecritique.runtime.build import Base


def print_dry_run(recipe: Recipe, config: RunConfig) -> None:
    """Describe a run that is not started.

    A bundled model is loaded and the rows of the task are gone through, as a run would. Of any other model the sizes
    are enough: nothing is downloaded, no weight is read and no data file is opened.
    """
    from lecritique.models.loading import BUNDLED
    from lecritique.planning.facts import resolved_without_loading
    from lecritique.planning.shapes import shape_of
    from lecritique.runtime.build import load_base

    if config.model.name in BUNDLED:
        print_base(load_base(config), recipe.cluster)
        return
    import torch

    shape = shape_of(config.model.name)
    there = torch.cuda.is_available() or recipe.cluster is not None
    print_plan(resolved_without_loading(config, shape, device="cuda" if there else "cpu"), shape, recipe.cluster)
    console.print("Not looked at: the rows of the task, and the model's weights.", soft_wrap=True)


def print_base(base: Base, cluster: Cluster | None = None) -> None:
    """Describe a run whose model and task are loaded."""
    if base.data.counts.note:
        console.print(base.data.counts.note, soft_wrap=True)
    print_plan(base.config, loaded_shape(base), cluster)


def print_plan(config: RunConfig, shape: ModelShape, cluster: Cluster | None) -> None:
    """Print a resolved configuration, and what follows from it."""
    console.print_json(json.dumps(config.model_dump(mode="json")))
    for line in arithmetic(config):
        console.print(line, soft_wrap=True)
    if cluster is not None:
        console.print(
            "Memory: first of an engine, an evaluator and all trainer processes, where the embedded engine decodes "
            f"'runtime.decode_rows' = {config.runtime.decode_rows} rows at once; then of a GPU of its cluster.",
            soft_wrap=True,
        )
    for line in (*memory(config, shape), *placement(config, shape, cluster)):
        console.print(line, soft_wrap=True)


def loaded_shape(base: Base) -> ModelShape:
    """The sizes of a loaded model; of an architecture that calls them by other names, as far as they can be told."""
    from lecritique.core.errors import ConfigurationError
    from lecritique.planning.shapes import ModelShape, shape_from

    language = base.language
    model, own = language.model, language.model.config.get_text_config()
    try:
        return shape_from(own.to_dict(), name=language.name, source="the loaded model")
    except ConfigurationError:
        embeddings = model.get_input_embeddings().weight.numel()
        return ModelShape(
            name=language.name,
            source="the loaded model",
            parameters=model.num_parameters(),
            embedding_parameters=embeddings,
            hidden=own.hidden_size,
            intermediate=4 * own.hidden_size,
            layer_types=("full_attention",) * own.num_hidden_layers,
            heads=own.num_attention_heads,
            key_value_heads=own.num_attention_heads,
            head_width=own.hidden_size // own.num_attention_heads,
            vocabulary=own.vocab_size,
            context_length=language.context_length,
            tied=bool(getattr(own, "tie_word_embeddings", False)),
        )


def arithmetic(config: RunConfig) -> Iterator[str]:
    """Rollouts, groups, tokens and updates in words."""
    size, group = config.rollout.batch_size, config.rollout.group_size
    steps = config.run.steps
    yield (
        f"Batch: {size} rollouts = {size // group} groups of {group}; "
        f"{steps} steps = {steps * size:,} rollouts of {config.task.type}."
    )
    limits = {unit: limit for unit, limit in config.run.budget.model_dump().items() if limit}
    if limits:
        said = " or ".join(f"{limit:,.10g} {unit}" for unit, limit in limits.items())
        yield f"Budget: the run ends after the step that has spent {said}, after {steps} steps at the latest."
    longest = config.sampling.max_total_tokens or 0
    yield (
        f"Tokens: at most {longest:,} a rollout with its prompt and {size * longest:,} a batch, "
        f"{config.sampling.max_turn_tokens:,} a turn."
    )
    rounds, policy = config.rollout.dynamic_sampling, config.policy
    if rounds:
        yield f"Dynamic sampling: up to {rounds} rounds a step, so at most {(rounds + 1) * size:,} rollouts."
    minibatch = policy.minibatch_size or size
    updates = size // minibatch * policy.epochs
    yield (
        f"Policy: {updates} optimizer step{'s' * (updates > 1)} of {minibatch} rollouts a batch, "
        f"{steps * updates:,} in all; loss {policy.loss.type}, warm-up over {policy.optimizer.warmup_steps}."
    )
    if uses_teacher(config):
        yield f"Teacher: {policy.teacher.type}, told {teacher_content(config)}."
    yield from _critic_arithmetic(config, minibatch)
    if config.run.eval_every:
        sets = ", ".join(config.eval.tasks) or "the rows kept for evaluation"
        yield f"Evaluation: every {config.run.eval_every} steps, {config.eval.k} samples a problem of {sets}."


def _critic_arithmetic(config: RunConfig, minibatch: int) -> Iterator[str]:
    size, policy = config.rollout.batch_size, config.policy
    if not uses_critic(config):
        origin = (
            "the teacher stands in for advantages"
            if policy.loss.type == "opsd"
            else "the baseline comes from the group"
        )
        yield f"Critic: none, {origin}."
        return
    critic, replay = config.critic, config.critic.replay
    if isinstance(critic.schedule, TrainThenScore):
        passes = size // minibatch
        when = "before it is scored" if critic.schedule.pre_update else "after the policy"
        yield (
            f"Critic: {passes} update{'s' * (passes != 1)} of {minibatch} rollouts a step, "
            f"one epoch of the batch {when}, context {critic.context.type}."
        )
    else:
        a_step = critic.updates_per_policy_step
        updates = "1 update" if a_step == 1 else f"{a_step:g} updates"
        yield (
            f"Critic: {updates} of {replay.batch_size} rollouts a step, each rollout "
            f"at most {replay.max_uses} times, {replay.capacity} held, context {critic.context.type}."
        )
    if critic.init:
        yield f"Critic from: '{critic.init}'."
    if not critic.warmup_updates:
        yield "Warm-up: none, the critic counts from the first batch."
        return
    kind = "discarded" if critic.warmup == "discard" else "credited by leave-one-out"
    yield f"Warm-up: batches scored before critic version {critic.warmup_updates} are {kind}."


def memory(config: RunConfig, shape: ModelShape) -> Iterator[str]:
    """Bytes of each role over all its devices."""
    from lecritique.planning.memory import models_weights, role_memory, stored_weights

    yield f"Model: {shape.parameters:,} parameters, from {shape.source}."
    models = models_weights(config, shape)
    for role, model in models.items():
        if model.adapter:
            frozen = f"{model.frozen:,} are frozen" if model.frozen else "the policy's are frozen under them"
            yield f"Adapter: of the {role}, {model.trained:,} parameters train and {frozen}."
    if shape.partial_layers:
        yield (
            f"Model: it has layers of {', '.join(shape.partial_layers)}, which this version refuses to run; here are "
            "its sizes only."
        )
    roles = role_memory(config, shape)
    for role in roles:
        more = f", {size_text(role.passing)} of it in passing" if role.passing else ""
        yield f"Memory: {role.role} {size_text(role.total)} ({role.what}{more})"
    stored = stored_weights(config, shape)
    everything = sum(role.total for role in roles) + stored
    yield f"Memory: weight store {size_text(stored)}; all roles {size_text(everything)}"
    yield from _precision(config, shape, models)


def _precision(config: RunConfig, shape: ModelShape, models: Mapping[str, ModelWeights]) -> Iterator[str]:
    """What bfloat16 saves and costs a trainer, and what would save more."""
    from lecritique.planning.memory import activation_bytes

    if config.runtime.dtype != "bfloat16":
        return
    for role, model in models.items():
        if model.trains_narrow:
            yield (
                f"Memory: the {role} trains bfloat16 weights, gradients and moments, 8 bytes a parameter; several "
                f"processes hold them in float32 shards, 16 bytes a parameter: {size_text(model.trained * 16)}."
            )
    if not config.runtime.recompute_activations:
        kept = activation_bytes(config, shape, checkpointing=True)
        yield f"Memory: with 'runtime.recompute_activations' = true a micro-batch would keep {size_text(kept)}."


def placement(config: RunConfig, shape: ModelShape, cluster: Cluster | None) -> Iterator[str]:
    """Which role is where: on the recipe's cluster, or in one process."""
    yield from unread(config)
    if config.runtime.type == "ray":
        yield from described(config)
    elif cluster is None:
        yield f"Placement: {_in_one_place(config)}."
    if cluster is None:
        return
    from lecritique.planning.placement import placement_of

    placed = placement_of(config, cluster)
    yield from placed_roles(config, shape, placed)
    yield from _apart(config, placed)


def _in_one_place(config: RunConfig) -> str:
    ranks, device = config.runtime.ranks, config.runtime.device
    if ranks == 1:
        return f"one process on {device}, all roles beside each other"
    return f"{ranks} processes on {device} that train together, the first of them with all other roles"


def _apart(config: RunConfig, placed: Placement) -> Iterator[str]:
    """Where the GPUs that Ray is asked for are not those of the recipe's cluster, by which memory was counted."""
    actors = config.runtime.actors
    if config.runtime.type != "ray" or placed.shared:
        return
    asked = {"policy trainer": ("policy", actors.policy), "value trainer": ("critic", actors.critic)}
    for role, planned in placed.gpus.items():
        if role in asked:
            name, trainer = asked[role]
            found = trainer.ranks * trainer.gpus
            if found != planned:
                yield (
                    f"Placement: the recipe's cluster has {planned} GPUs for the {role}; 'runtime.actors.{name}' asks "
                    f"for {found:g} ('ranks' = {trainer.ranks}, 'gpus' = {trainer.gpus:g} each)."
                )


def placed_roles(config: RunConfig, shape: ModelShape, placed: Placement) -> Iterator[str]:
    """GPUs of each role, and what one of them holds."""
    from lecritique.planning.memory import longest_row
    from lecritique.planning.placement import in_flight, memory_on_gpus

    if placed.shared:
        yield f"Placement: {placed.total} {placed.gpu.name}, on which all roles take turns."
    else:
        whole = all(gpus % placed.per_node == 0 for gpus in placed.gpus.values())
        parts = [
            f"{role} {_nodes_text(gpus, placed.per_node) if whole else gpus}" for role, gpus in placed.gpus.items()
        ]
        of = f" of {placed.per_node} {placed.gpu.name}; {placed.total // placed.per_node} nodes," if whole else ";"
        yield f"Placement: {', '.join(parts)}{of} {placed.total} {'GPUs' if whole else placed.gpu.name}."
    for held in memory_on_gpus(config, shape, placed):
        verdict = "fits" if held.fits(placed.gpu) else "DOES NOT FIT"
        parts = [f"{size_text(held.fixed)} of weights and states"]
        if held.cache:
            rows = -(-in_flight(config) // placed.of("inference"))
            parts.append(f"up to {size_text(held.cache)} of cache for {rows} rows of {longest_row(config):,} tokens")
        if held.activations:
            parts.append(f"{size_text(held.activations)} of {_activations_text(config, held)}")
        yield (
            f"One GPU: {held.role}, {', '.join(parts)}; {verdict} {placed.gpu.memory / 1e9:.0f} GB"
            f"{' (the engine queues what its cache cannot hold)' if held.total > placed.gpu.memory else ''}."
        )


def _activations_text(config: RunConfig, held: GpuMemory) -> str:
    if not held.checkpointing:
        return "activations"
    wanted = config.runtime.recompute_activations
    return "recomputed activations" if wanted else "activations, with 'runtime.recompute_activations' = true"


def _nodes_text(gpus: int, per_node: int) -> str:
    nodes = gpus // per_node
    return f"{nodes} node{'s' * (nodes > 1)}"


def size_text(count: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
