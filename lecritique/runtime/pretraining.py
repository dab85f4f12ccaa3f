"""Fits critics to the returns of fixed responses, and measures them on problems that they have not seen (VP C, G.4)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.config.losses import ClippedMse, Mse, ValueLoss
from lecritique.config.schema import Context, NoContext, ReferenceContext, RunConfig
from lecritique.core.metrics import ValueFit
from lecritique.core.moments import Moments
from lecritique.core.seeds import derive_seed
from lecritique.core.trajectory import ContextInsertion, Trajectory, ValueBatch, ValueSample
from lecritique.credit.schedules import Group, with_contexts
from lecritique.critic.context import ContextBuilder
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.scoring import action_value_outputs, in_micro_batches, token_row
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore
from lecritique.runtime.build import Base, new_critic
from lecritique.runtime.pretraining_data import balanced_indices, is_right

VARIANTS = ("clean", "privileged")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A critic after so many updates, on the held-out problems as they come (nothing is balanced there).

    `train_loss` is the mean over the updates since the point before, NaN at the first.
    """

    update: int
    explained_variance: float
    bias: float
    mse: float
    loss: float
    train_loss: float
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """A critic that was pretrained, how it got there, and its fit on each held-out problem at the end."""

    model: ValueModel
    curve: tuple[Point, ...]
    fits: tuple[ValueFit, ...]
    problems: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Values against returns on the held-out problems; `fits` is in order of `problems`."""

    fits: tuple[ValueFit, ...]
    problems: tuple[int, ...]
    loss: float

    @property
    def fit(self) -> ValueFit:
        """Over all tokens of all problems."""
        whole = ValueFit()
        for fit in self.fits:
            whole = whole.merge(fit)
        return whole


def loss_of(config: RunConfig) -> ValueLoss:
    """The loss of pretraining: the critic's own, without the clip around values that nothing was credited with."""
    return Mse() if isinstance(config.critic.loss, ClippedMse) else config.critic.loss


def context_of(config: RunConfig, variant: str) -> Context:
    """What the critic of a variant reads: for the privileged one the recipe's context, or the reference answer."""
    if variant == "clean":
        return NoContext()
    own = config.critic.context
    return ReferenceContext() if isinstance(own, NoContext) else own


def samples_of(base: Base, groups: Sequence[Group], variant: str) -> list[ValueSample]:
    """Each response with its return as the target of all its action tokens, and what the variant's critic reads.

    Raises:
        DataError: a task without what the context is made from, or a context that is too long.
    """
    builder = ContextBuilder(
        context_of(base.config, variant), base.renderer, context_length=base.language.context_length
    )
    kept, contexts, _ = with_contexts(builder, groups)
    return [
        _sample(trajectory, context)
        for group, built in zip(kept, contexts, strict=True)
        for trajectory, context in zip(group.trajectories, built, strict=True)
        if trajectory.action_tokens
    ]


def _sample(trajectory: Trajectory, context: ContextInsertion | None) -> ValueSample:
    targets_T = np.where(trajectory.action_mask, trajectory.episode_return, 0.0)
    return ValueSample(
        rollout_id=trajectory.rollout_id,
        trajectories=(trajectory,),
        contexts=(context,),
        value_targets=(targets_T,),
        value_version=0,
    )


def fit_critic(
    base: Base,
    train: Sequence[ValueSample],
    held_out: Sequence[ValueSample],
    *,
    epochs: int,
    measurements: int,
    balance: bool = True,
    most_seconds: float = math.inf,
    on_point: Callable[[Point], None] = lambda point: None,
) -> Fitted:
    """Fit a critic that starts as a run's would: with 0 epochs it is that one, to the last bit.

    Order and balance come from the seed alone, so variants are fitted on the same responses in the same order.

    Args:
        base: model and resolved configuration: seed, optimizer, batch size (`critic.replay.batch_size`).
        train: what it is fitted on; wrong ones that are fewer are repeated with `balance`.
        held_out: of other problems.
        epochs: how often the balanced responses are gone through.
        measurements: points of the curve beside the first, evenly spaced.
        balance: whether to repeat.
        most_seconds: of fitting, measurements apart; what is left of the epochs is then left out.
        on_point: told of each point.

    Raises:
        DivergenceError: a loss or gradient that is not finite.
    """
    config = base.config
    # Nothing pretrained goes in, and adapters are merged when what comes out is saved.
    own = config.model_copy(update={"critic": config.critic.model_copy(update={"loss": loss_of(config), "init": ""})})
    trainer = ValueTrainer(
        new_critic(base.language.model, own),
        config.critic.optimizer,
        MemoryWeightStore(),
        max_tokens=config.runtime.micro_batch_tokens,
    )
    batches = _batches(base, train, epochs=epochs, balance=balance)
    due = {math.ceil(len(batches) * (i + 1) / measurements) for i in range(measurements)} if batches else set()
    curve: list[Point] = []
    losses: list[float] = []
    seconds = 0.0

    def measure(done: int) -> Measured:
        measured = measure_critic(trainer.model, held_out, max_tokens=config.runtime.micro_batch_tokens)
        curve.append(_point(measured, done, losses, seconds))
        losses.clear()
        on_point(curve[-1])
        return measured

    last = measure(0)
    for done, batch in enumerate(batches, start=1):
        started = time.perf_counter()
        losses.append(trainer.update(ValueBatch.of(batch))["value_loss"])
        seconds += time.perf_counter() - started
        over = seconds >= most_seconds
        if done in due or over:
            last = measure(done)
        if over:
            break
    return Fitted(model=trainer.model, curve=tuple(curve), fits=last.fits, problems=last.problems, seconds=seconds)


def _point(measured: Measured, done: int, losses: Sequence[float], seconds: float) -> Point:
    fit = measured.fit
    return Point(
        update=done,
        explained_variance=fit.value(),
        bias=fit.bias,
        mse=fit.mse,
        loss=measured.loss,
        train_loss=sum(losses) / len(losses) if losses else math.nan,
        seconds=seconds,
    )


def _batches(base: Base, train: Sequence[ValueSample], *, epochs: int, balance: bool) -> list[tuple[ValueSample, ...]]:
    """The optimizer batches of all epochs, in order; the last of an epoch may be short."""
    seed, size = base.config.run.seed, base.config.critic.replay.batch_size
    assert size is not None
    chosen = np.arange(len(train))
    if balance and len(train):
        right_N = np.array([is_right(sample.trajectories[0], base.environment.reward_range) for sample in train])
        chosen = balanced_indices(right_N, seed=derive_seed(seed, "pretrain_value.balance"))
    found = []
    for epoch in range(epochs):
        rng = np.random.default_rng(derive_seed(seed, "pretrain_value.order", attempt=epoch))
        order = rng.permutation(chosen)
        found += [tuple(train[i] for i in order[start : start + size]) for start in range(0, len(order), size)]
    return found


@torch.no_grad()
def measure_critic(model: ValueModel, samples: Sequence[ValueSample], *, max_tokens: int) -> Measured:
    """How well a critic fits the returns of responses, token by token.

    The loss is that of training, as a mean over tokens.
    """
    rows = [token_row(sample.trajectories[0], sample.contexts[0]) for sample in samples]
    targets = [sample.value_targets[0][sample.trajectories[0].action_mask] for sample in samples]
    problem_of = np.array([sample.rollout_id.group.row for sample in samples], dtype=np.int64)
    errors: dict[int, list[NDArray[np.float64]]] = {}
    returns: dict[int, list[NDArray[np.float64]]] = {}
    total, tokens = 0.0, 0
    for micro in in_micro_batches(model, rows, max_tokens=max_tokens):
        outputs_NA = action_value_outputs(model, micro)
        targets_N = micro.gathered(targets, outputs_NA.dtype)
        total += float(model.losses_of(outputs_NA, targets_N).double().sum())
        tokens += len(targets_N)
        values_N = model.values_of(outputs_NA).double().cpu().numpy()
        goal_N = micro.gathered(targets, torch.float64).cpu().numpy()
        row_N = problem_of[np.asarray(micro.indices)[micro.row_index_N().cpu().numpy()]]
        for problem in np.unique(row_N):
            of_problem = row_N == problem
            errors.setdefault(int(problem), []).append(goal_N[of_problem] - values_N[of_problem])
            returns.setdefault(int(problem), []).append(goal_N[of_problem])
    problems = tuple(sorted(errors))
    fits = tuple(
        ValueFit(error=Moments.of(np.concatenate(errors[problem])), target=Moments.of(np.concatenate(returns[problem])))
        for problem in problems
    )
    return Measured(fits=fits, problems=problems, loss=total / tokens if tokens else math.nan)
