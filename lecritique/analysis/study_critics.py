"""Critics of a study of fixed responses: fitted on the spot, or saved by a run or by `pretrain-value`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from lecritique.config.schema import (
    Context,
    EnvContext,
    NoContext,
    ReferenceContext,
    RubricContext,
    RunConfig,
    SiblingsContext,
)
from lecritique.core.errors import CheckpointError, ConfigurationError, DivergenceError
from lecritique.core.seeds import derive_seed
from lecritique.core.trajectory import ContextInsertion, Trajectory, ValueSample
from lecritique.credit.schedules import Group, group_contexts
from lecritique.critic.context import ContextBuilder
from lecritique.models.scoring import TokenRow, token_row, values
from lecritique.models.value_model import (
    ValueModel,
    load_value_weights,
    save_value_model,
    saved_value_loss,
    value_model_folder,
)
from lecritique.runs.directory import read_config, write_json
from lecritique.runtime.build import Base
from lecritique.runtime.policies import is_run
from lecritique.runtime.pretraining import Point, fit_critic, loss_of
from lecritique.runtime.warm_start import load_critic

_FIT = "fit.json"
_CONTEXT: TypeAdapter[Context] = TypeAdapter(Context)
NAMED: dict[str, Context] = {
    "clean": NoContext(),
    "answer": ReferenceContext(content="answer"),
    "solution": ReferenceContext(content="solution"),
    "both": ReferenceContext(content="both"),
    "siblings": SiblingsContext(),
    "rubric": RubricContext(),
    "env": EnvContext(),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyCritic:
    """A critic that stays as it is, with what it is told; `origin` says where it is from.

    `updates` are those that it was fitted with on the spot, None for one that was given.
    """

    name: str
    origin: str
    updates: int | None = None
    context: ContextBuilder
    model: ValueModel

    def contexts(self, group: Group) -> list[ContextInsertion | None] | None:
        """What it reads beside each response of a group; None where it cannot read the group."""
        return group_contexts(self.context, group)

    def values(self, rows: Sequence[TokenRow], *, max_tokens: int) -> list[NDArray[np.float64]]:
        """Values of the wanted tokens of each row, reward units.

        Raises:
            DivergenceError: one that is not finite.
        """
        found = values(self.model, rows, max_tokens=max_tokens)
        if not all(np.isfinite(column).all() for column in found):
            raise DivergenceError(f"the critic '{self.name}' ({self.origin}) gave a value that is not finite.")
        return found


def named_context(name: str, placement: str) -> Context:
    """What a critic of this name is told, put where the recipe puts its own context.

    Raises:
        ConfigurationError: the name says nothing.
    """
    context = NAMED.get(name)
    if context is None:
        raise ConfigurationError(f"--critics: there is no critic '{name}'; known: {', '.join(NAMED)}, leave_one_out.")
    if not isinstance(context, NoContext):
        context = context.model_copy(update={"placement": placement})
    return _never_an_error(context)


def _never_an_error(context: Context) -> Context:
    """Siblings that are too long are left out and counted; they do not end a study."""
    if isinstance(context, SiblingsContext) and context.on_overflow == "error":
        return context.model_copy(update={"on_overflow": "skip"})
    return context


def given_critic(base: Base, name: str, path: Path) -> StudyCritic:
    """A critic that a run or `pretrain-value` saved, or a folder with a value model whose name says what it is told.

    Raises:
        ConfigurationError: it is not known what it was told, or it was told something else than its name says.
        CheckpointError: there is no critic, or one that does not fit the policy's architecture.
    """
    told = _recorded_context(path)
    if told is None and name not in NAMED:
        raise ConfigurationError(
            f"--critic {name}={path}: nothing there says what this critic is told; name it {', '.join(NAMED)}."
        )
    if told is not None and name in NAMED and _kind(told) != _kind(NAMED[name]):
        raise ConfigurationError(
            f"--critic {name}={path}: this critic was trained with the context {_kind(told)}, expected "
            f"{_kind(NAMED[name])}; give it another name."
        )
    folder = value_model_folder(path)
    config = base.config
    loss = saved_value_loss(folder) if folder is not None else config.critic.loss
    if is_run(path) and folder is None:
        loss = read_config(path).critic.loss
    model = ValueModel.from_policy(base.language.model, loss, seed=derive_seed(config.run.seed, "value_head"))
    load_critic(model, path)
    return _critic(base, name, told or NAMED[name], model, origin=str(path))


def _recorded_context(path: Path) -> Context | None:
    """What the critic in a folder is told, by its run or by `pretrain-value`; None where nothing says it."""
    if is_run(path):
        config: RunConfig = read_config(path)
        return config.critic.context
    record = path.parent / "pretrain.json"
    if path.name == "clean" and record.is_file():
        return NoContext()
    try:
        told = json.loads(record.read_text(encoding="utf-8"))["config"]["critic"]["context"]
        return _CONTEXT.validate_python(told)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ValidationError):
        return None


def _kind(context: Context) -> str:
    return f"'{context.type}'" + (f" ({context.content})" if isinstance(context, ReferenceContext) else "")


def fitted_critic(
    base: Base,
    name: str,
    context: Context,
    groups: Sequence[Group],
    measured: Sequence[Group],
    folder: Path,
    *,
    epochs: int,
    most_seconds: float,
    on_point: Callable[[Point], None],
) -> StudyCritic:
    """A critic fitted to the returns of `groups`, as `pretrain-value` does, and saved in `folder`; or the saved one.

    Args:
        base: whose language model it starts from.
        name: of the critic.
        context: what it is told.
        groups: responses to fit on.
        measured: responses to other problems, for the curve alone.
        folder: of this critic.
        epochs: how often the responses are gone through.
        most_seconds: of fitting.
        on_point: told of each point of the curve.

    Raises:
        DivergenceError: a loss or gradient that is not finite.
    """
    seed = derive_seed(base.config.run.seed, "value_head")
    if value_model_folder(folder) is not None:
        model = ValueModel.from_policy(base.language.model, loss_of(base.config), seed=seed)
        load_value_weights(model, folder)
        return _critic(base, name, context, model, origin=_fitted(groups, folder), updates=_updates(folder))
    builder = ContextBuilder(context, base.renderer, context_length=base.language.context_length)
    fitted = fit_critic(
        base,
        _samples(base, builder, groups),
        _samples(base, builder, measured),
        epochs=epochs,
        measurements=2,
        most_seconds=most_seconds,
        on_point=on_point,
    )
    aside = folder.with_name(f".writing-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        save_value_model(fitted.model, aside)
        write_json(aside / _FIT, {"updates": fitted.curve[-1].update, "seconds": fitted.seconds})
        aside.rename(folder)
    except OSError as error:
        raise ConfigurationError(f"'{folder}' cannot be written: {error}.") from error
    return _critic(base, name, context, fitted.model, origin=_fitted(groups, folder), updates=_updates(folder))


def _fitted(groups: Sequence[Group], folder: Path) -> str:
    return f"fitted on {len(groups)} problems with {_updates(folder)} updates"


def _updates(folder: Path) -> int:
    """How many updates a critic was fitted with.

    Raises:
        CheckpointError: its folder does not say.
    """
    try:
        return int(json.loads((folder / _FIT).read_text(encoding="utf-8"))["updates"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"'{folder / _FIT}' cannot be read ({error!r}); remove '{folder}'.") from error


def _samples(base: Base, builder: ContextBuilder, groups: Sequence[Group]) -> list[ValueSample]:
    """Responses that fit into the critic's limit, each with its return as the target of all its action tokens."""
    found = []
    for group in groups:
        contexts = group_contexts(builder, group)
        for trajectory, context in zip(group.trajectories, contexts or (), strict=contexts is not None):
            if trajectory.action_tokens and token_row(trajectory, context).read_tokens <= builder.context_length:
                found.append(_sample(trajectory, context))
    return found


def _sample(trajectory: Trajectory, context: ContextInsertion | None) -> ValueSample:
    return ValueSample(
        rollout_id=trajectory.rollout_id,
        trajectories=(trajectory,),
        contexts=(context,),
        value_targets=(np.where(trajectory.action_mask, trajectory.episode_return, 0.0),),
        value_version=0,
    )


def _critic(
    base: Base, name: str, context: Context, model: ValueModel, *, origin: str, updates: int | None = None
) -> StudyCritic:
    builder = ContextBuilder(_never_an_error(context), base.renderer, context_length=base.language.context_length)
    return StudyCritic(name=name, origin=origin, updates=updates, context=builder, model=model)
