"""What audits and gradient studies look at: a policy that stays as it is, rollouts of it, and critics.

From a recipe: the base policy, and critics trained for a few batches on its rollouts. From a run or a comparison: the
policy and the critics that were saved at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lecritique.analysis.read import load_comparison
from lecritique.config.adapters import CopyBackbone, NoAdapter
from lecritique.config.load import compose, load_recipe, parse_override, with_override
from lecritique.config.resolve import gae_lambda, uses_critic
from lecritique.config.schema import NoContext, RunConfig
from lecritique.core.errors import ConfigurationError
from lecritique.credit.crediting import Crediting
from lecritique.credit.estimators import ScoredGroup
from lecritique.credit.schedules import (
    Group,
    by_rollout,
    group_contexts,
    scored_groups,
    value_samples,
    with_contexts,
)
from lecritique.critic.context import ContextBuilder
from lecritique.critic.system import ValueSystem
from lecritique.models.weights import MemoryWeightStore
from lecritique.runs.directory import read_config
from lecritique.runtime.build import Parts, build, load_base, value_system
from lecritique.runtime.steps import require_enough, valid_groups
from lecritique.runtime.synchronous import collect_batch
from lecritique.runtime.threads import choose_threads

CRITICS = ("value", "pvf")


@dataclass(frozen=True, kw_only=True, eq=False)
class Critic:
    """A critic with what it is told; `name` is that of its arm."""

    name: str
    config: RunConfig
    context: ContextBuilder
    values: ValueSystem

    def scored(self, groups: Sequence[Group]) -> list[ScoredGroup]:
        """The groups with its values; those that its context does not fit are left out."""
        kept, contexts, _ = with_contexts(self.context, groups)
        return scored_groups(self.values, kept, contexts)

    def learn(self, groups: Sequence[Group]) -> None:
        """Train on a batch as a run would, the policy staying as it is."""
        kept, contexts, _ = with_contexts(self.context, groups)
        scored = scored_groups(self.values, kept, contexts)
        credit = self._crediting().credit(scored, warm=True)
        self.values.learn(value_samples(credit, by_rollout(kept, contexts)))

    def _crediting(self) -> Crediting:
        return Crediting(
            self.config.estimator,
            value_target_lambda=gae_lambda(self.config.critic.value_target_lambda),
            batch_size=self.config.rollout.batch_size,
            warmup_updates=0,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A policy, where its rollouts come from, and critics by the name of their arm."""

    parts: Parts
    critics: dict[str, Critic]
    origin: str

    @property
    def model(self) -> Any:
        """The policy."""
        return self.parts.learner.policy.model

    def groups(self) -> list[Group]:
        """The valid groups of the next rollout batch.

        Raises:
            RoleFailure: too many rollouts failed.
        """
        collected = collect_batch(self.parts)
        require_enough(collected.batch, self.parts.config)
        return valid_groups(collected.batch)

    def problems(self, count: int) -> list[Group]:
        """Groups of `count` different rows, or of as many as the data gives: one group a row.

        Raises:
            RoleFailure: too many rollouts failed.
        """
        rollout = self.parts.config.rollout
        wanted = min(count, len(self.parts.data.rows))
        found: dict[int, Group] = {}
        # Rows whose rollouts all fail would be waited for without end.
        for _ in range(2 + 3 * wanted * rollout.group_size // rollout.batch_size):
            for group in self.groups():
                found.setdefault(group.group_id.row, group)
            if len(found) >= wanted:
                break
        return list(found.values())[:wanted]

    def contexts_of(self, critic: Critic) -> Callable[[Group], list[Any] | None]:
        """What the critic reads beside each trajectory of a group."""
        return lambda group: group_contexts(critic.context, group)


def open_subject(
    target: str, overrides: Sequence[str], *, arm: str | None, critics: Sequence[str], warmup_batches: int
) -> Subject:
    """Load or train what is studied.

    Args:
        target: a recipe, a run directory or a comparison.
        overrides: `key.path=value`.
        arm: of a recipe, where it is not to be its own default.
        critics: arms of a recipe whose critics are wanted; a run or comparison brings its own.
        warmup_batches: rollout batches that the critics of a recipe are trained on.

    Raises:
        ConfigurationError: no such recipe or directory, or a run without final weights.
    """
    if Path(target).is_dir():
        return _of_directory(Path(target), overrides)
    if arm is not None:
        critics = [arm]
    recipe = load_recipe(target)
    configs = {name: _synchronous(compose(recipe, arm=name, overrides=overrides)) for name in critics}
    first = next(iter(configs.values()))
    subject = _built(first, configs, origin=f"recipe {target}, critics trained on {warmup_batches} batches")
    for _ in range(warmup_batches if subject.critics else 0):
        groups = subject.groups()
        for critic in subject.critics.values():
            critic.learn(groups)
    return subject


def _of_directory(path: Path, overrides: Sequence[str]) -> Subject:
    comparison = load_comparison(path)
    saved = {
        arm: run.path
        for arm in comparison.arms
        for run in comparison.runs_of(arm)[:1]
        if run is not None and (run.path / "weights" / "policy").is_dir()
    }
    if not saved:
        raise ConfigurationError(f"'{path}' has no final weights; a run saves them when it ends.")
    configs = {arm: _of_run(folder, overrides, critic=True) for arm, folder in saved.items()}
    arm, folder = next(iter(saved.items()))
    first = _of_run(folder, overrides, critic=False, policy=folder / "weights" / "policy")
    configs = {
        name: config.model_copy(update={"model": first.model})
        for name, config in configs.items()
        if uses_critic(config)
    }
    return _built(first, configs, origin=f"{path}: the policy at the end of arm {arm}, the critics of all arms")


def _of_run(folder: Path, overrides: Sequence[str], *, critic: bool, policy: Path | None = None) -> RunConfig:
    tree = read_config(folder).model_dump(mode="json", exclude_none=True)
    for text in overrides:
        tree = with_override(tree, *parse_override(text))
    config = RunConfig.model_validate(tree)
    # Adapters are merged into the weights that a run saves at its end.
    model: dict[str, Any] = {"adapter": NoAdapter()} | ({} if policy is None else {"name": str(policy)})
    config = config.model_copy(update={"model": config.model.model_copy(update=model)})
    init = str(folder) if critic and (folder / "weights" / "critic").is_dir() else None
    critic_section = config.critic.model_copy(update={"init": init, "backbone": CopyBackbone()})
    return _synchronous(config.model_copy(update={"critic": critic_section}))


def _synchronous(config: RunConfig) -> RunConfig:
    runtime = config.runtime.model_copy(update={"loop": "synchronous"})
    return config.model_copy(update={"runtime": runtime})


def _built(first: RunConfig, configs: dict[str, RunConfig], *, origin: str) -> Subject:
    base = load_base(first)
    choose_threads(base.language.model.num_parameters())
    parts = build(base)
    length = base.language.context_length
    critics = {}
    for name, config in configs.items():
        if not uses_critic(config):
            continue
        resolved = load_base(config).config
        critics[name] = Critic(
            name=name,
            config=resolved,
            context=ContextBuilder(resolved.critic.context, base.renderer, context_length=length),
            values=value_system(base.language.model, MemoryWeightStore(), resolved, length),
        )
    return Subject(parts=parts, critics=critics, origin=origin)


def is_clean(critic: Critic) -> bool:
    """Whether the critic reads the policy's own tokens alone."""
    return isinstance(critic.config.critic.context, NoContext)
