"""Runs a configured loop from its first step to its last: record, checkpoint, interrupt, final weights, status."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lecritique.actors.cluster import TrainerLost
from lecritique.config.estimators import NoAdvantage
from lecritique.config.schema import RunConfig
from lecritique.core.errors import DivergenceError, Interrupted, LecritiqueError
from lecritique.core.ids import RolloutId
from lecritique.core.rollout import Rollout
from lecritique.core.trajectory import ContextInsertion, CreditedTrajectory
from lecritique.models.adapters import trained_parameters
from lecritique.runs.checkpoints import FOLDER
from lecritique.runs.directory import RunDirectory
from lecritique.runs.rollouts import save_rollouts
from lecritique.runs.sinks import Sink, open_sinks
from lecritique.runs.weights import save_weights
from lecritique.runtime.asynchronous import Orchestrator, Step
from lecritique.runtime.build import Parts
from lecritique.runtime.engines import watch_replicas
from lecritique.runtime.evaluation import evaluates, evaluation_metrics
from lecritique.runtime.interrupts import Interrupts
from lecritique.runtime.local_runtime import LocalRuntime
from lecritique.runtime.replacements import replacements_in
from lecritique.runtime.reward_watch import WATCHED_STEPS, RewardWatch
from lecritique.runtime.run_state import run_state
from lecritique.runtime.saving import Saver, Warn, warn_on_stderr
from lecritique.runtime.synchronous import train_step

# Gives everything that a resumed run needs.
TakeState = Callable[[], dict[str, Any]]
OnStep = Callable[[int, dict[str, float]], None]


def train(
    parts: Parts,
    directory: RunDirectory,
    *,
    first: int = 0,
    on_step: OnStep = lambda step, metrics: None,
    warn: Warn = warn_on_stderr,
    restores_left: int = 0,
) -> None:
    """Run all steps and save the weights; the status on disk says how it ended.

    Args:
        parts: the roles, restored when the run is resumed.
        directory: where everything is written.
        first: steps that are done already.
        on_step: told of every step.
        warn: told what went wrong without ending the run.
        restores_left: how often the caller may still go back to a checkpoint when a trainer's process is lost: that is
            then no end of the run.

    Raises:
        TrainerLost: that; an event says so.
        LecritiqueError: what ended the run early. Whatever ends it is recorded and passed on.
    """
    steps = parts.config.run.steps
    if (parts.group is None) != (parts.config.runtime.ranks == 1):
        raise ValueError(
            f"'runtime.ranks' = {parts.config.runtime.ranks}, and these roles were built for another number"
        )
    directory.set_status("running", step=first, steps=steps, spent=parts.spending.total.record())
    if not directory.resumes:
        directory.append_event(
            "started",
            data=parts.data.counts.record(),
            critic_from=parts.config.critic.init,
            trained_parameters={role: trained_parameters(model) for role, model in _models(parts).items()},
        )
    parts.ledger.write_with(directory.append_outcome)
    parts.store.watch(directory.append_version)
    watch_replicas(parts.engine, lambda lost: directory.append_event("replica_lost", **vars(lost)))
    recorder = Recorder(parts, directory, first=first, on_step=on_step, warn=warn)
    try:
        with Interrupts() as interrupts:
            recorder.open(interrupts)
            if parts.config.runtime.loop == "synchronous":
                _synchronous(parts, recorder, directory, first=first)
            else:
                _asynchronous(parts, recorder, directory, first=first)
            _save_weights(parts, directory)
    except BaseException as error:
        if isinstance(error, TrainerLost) and restores_left:
            directory.append_event("trainer_lost", step=recorder.done, message=str(error), restores_left=restores_left)
        else:
            record_end(directory, error, step=recorder.done, steps=steps, **recorder.spent)
        raise
    finally:
        recorder.close()
        parts.engine.close()
    ended_by = "budget" if parts.spending.exhausted else "steps"
    directory.append_event("finished", step=recorder.done, ended_by=ended_by)
    # Nothing more was to be done: a budget has said where the end is.
    directory.set_status("finished", step=recorder.done, steps=recorder.done, ended_by=ended_by, **recorder.spent)


def _synchronous(parts: Parts, recorder: Recorder, directory: RunDirectory, *, first: int) -> None:
    for index in range(first, parts.config.run.steps):
        if parts.spending.exhausted:  # of a run that was resumed behind its last step
            break
        done = train_step(parts, index)
        recorder.watch_rewards(index, done.rollouts)
        recorder.save_rollouts(index, done.rollouts, done.outcome.credit.members, done.outcome.contexts)
        recorder.record(index, done.metrics | _evaluation(parts, directory, done=index + 1))
        recorder.checkpoint(lambda save: save(lambda: run_state(parts)))


def _evaluation(parts: Parts, directory: RunDirectory, *, done: int) -> dict[str, float]:
    """What the policy earns on the evaluation sets, after the steps at which it is evaluated."""
    run = parts.config.run
    last = done if parts.spending.exhausted else run.steps
    if not evaluates(run.eval_every, done=done, steps=last):
        return {}
    metrics, sets = evaluation_metrics(parts)
    directory.append_event("evaluation", step=done, sets=sets)
    return metrics


def _asynchronous(parts: Parts, recorder: Recorder, directory: RunDirectory, *, first: int) -> None:
    runtime = LocalRuntime(parts)

    def on_step(step: Step) -> None:
        recorder.watch_rewards(step.index, step.rollouts)
        recorder.save_rollouts(step.index, step.rollouts, step.prepared.credit.members, step.contexts)
        for span in runtime.timeline.spans():
            directory.append_span(step.index, span.role, span.kind, span.start_seconds, span.end_seconds)
        recorder.record(step.index, step.metrics)
        # The critic must not move while its state is written.
        recorder.checkpoint(lambda save: runtime.while_critic_rests(lambda: save(lambda: run_state(parts))))

    orchestrator = Orchestrator(runtime, parts.ledger, on_step=on_step)
    try:
        orchestrator.run(first_step=first)
    except LecritiqueError as error:
        if not isinstance(error, Interrupted):
            directory.append_event("roles", step=recorder.done, roles=runtime.states())
        raise


class Recorder:
    """Writes what a loop has done, one step after the other.

    Args:
        parts: the roles.
        directory: where everything is written.
        first: steps that are done already.
        on_step: told of every step.
        warn: told what went wrong without ending the run.
    """

    def __init__(self, parts: Parts, directory: RunDirectory, *, first: int, on_step: OnStep, warn: Warn) -> None:
        self._parts = parts
        self._config = parts.config
        self._directory = directory
        self._first = first
        self._on_step = on_step
        self._warn = warn
        self._sinks: list[Sink] = []
        self._watch = RewardWatch(max(0, WATCHED_STEPS - first))
        # The engine counts from when it was made; the run may have had others before.
        self._replaced_before = replacements_in(directory.path)
        self.done = first

    @property
    def spent(self) -> dict[str, Any]:
        """What the status says of the run's spending."""
        return {"spent": self._parts.spending.total.record()}

    def open(self, interrupts: Interrupts) -> None:
        """Begin: sinks, and where checkpoints go."""
        self._interrupts = interrupts
        group, keep = self._parts.group, self._config.run.keep_checkpoints
        self._saver = Saver(
            self._directory,
            self._config,
            saved=self._first or None,
            warn=self._warn,
            checkpoints=group.checkpoints(self._directory.path / FOLDER, keep) if group else None,
        )
        self._sinks = open_sinks(self._config.run.sinks, self._directory.path, first_step=self._first)

    def record(self, index: int, metrics: dict[str, float]) -> None:
        """A step is done."""
        metrics["engine_restarts"] += self._replaced_before
        self._directory.append_metrics(index, metrics)
        for sink in self._sinks:
            sink.write(index, metrics)
        self.done = index + 1
        self._directory.set_status("running", step=self.done, steps=self._config.run.steps, **self.spent)
        self._metrics = metrics

    def checkpoint(self, hold: Callable[[Callable[[TakeState], bool]], object]) -> None:
        """Save a checkpoint if one is due.

        Args:
            hold: is given what takes a state and saves it, and calls it while nothing in the state moves.

        Raises:
            Interrupted: the run was asked to stop, and has been saved.
        """
        steps, requested = self._config.run.steps, self._interrupts.requested
        last = self.done == steps or self._parts.spending.exhausted
        if self._saver.due(self.done) or last or requested:
            hold(lambda state: self._saver.save(self.done, state))
        if requested and not last:
            raise Interrupted(self._saver.stopped(self.done, steps))
        self._on_step(self.done - 1, self._metrics)

    def watch_rewards(self, index: int, rollouts: Sequence[tuple[Rollout, ...]]) -> None:
        """Warn, once, when the first steps have brought no two different rewards; a teacher's signal needs none."""
        watch = self._watch
        if isinstance(self._config.estimator, NoAdvantage):
            return
        if watch.see(rollout for group in rollouts for rollout in group):
            self._directory.append_event(
                "equal_rewards", step=index + 1, steps=watch.steps, rollouts=watch.rollouts, reward=watch.reward
            )
            self._warn(watch.warning)

    def save_rollouts(
        self,
        index: int,
        rollouts: Sequence[tuple[Rollout, ...]],
        credited: Sequence[CreditedTrajectory],
        contexts: Mapping[RolloutId, ContextInsertion | None],
    ) -> None:
        """Write some of a step's rollouts, at the steps that save them."""
        run = self._config.run
        if not saves_rollouts(self._config, index, last=self._parts.spending.exhausted):
            return
        whole_groups = -(-run.saved_rollouts // self._config.rollout.group_size)
        save_rollouts(
            self._directory.path / "rollouts",
            step=index,
            rollouts=[member for group in rollouts[:whole_groups] for member in group],
            credited=credited,
            contexts=contexts,
            renderer=self._parts.renderer,
            judged=self._parts.learner.policy.judged,
        )

    def close(self) -> None:
        """Flush the sinks."""
        for sink in self._sinks:
            sink.close()


def record_end(directory: RunDirectory, error: BaseException, *, step: int, steps: int, **fields: Any) -> None:
    """Write how a run ended early, after `step` of `steps` steps."""
    state, message = ending(error)
    directory.set_status(state, step=step, steps=steps, message=message, **fields)
    directory.append_event(state, step=step, message=message)


def ending(error: BaseException) -> tuple[str, str]:
    """State and message of a run that `error` ended."""
    if isinstance(error, Interrupted):
        return "interrupted", str(error)
    if isinstance(error, KeyboardInterrupt | SystemExit):  # a closed pipe is a SystemExit
        return "interrupted", "interrupted"
    if isinstance(error, DivergenceError):
        return "diverged", str(error)
    return "failed", str(error) if isinstance(error, LecritiqueError) else f"{type(error).__name__}: {error}"


def saves_rollouts(config: RunConfig, index: int, *, last: bool = False) -> bool:
    """Whether the rollouts of a step are saved: the first, the last, and every so many in between."""
    every = config.run.save_rollouts_every
    return bool(every) and ((index + 1) % every == 0 or index == 0 or index + 1 == config.run.steps or last)


def _models(parts: Parts) -> dict[str, Any]:
    """What is trained."""
    values = parts.learner.values
    return {"policy": parts.learner.policy.model} | ({"critic": values.trainer.model} if values else {})


def _save_weights(parts: Parts, directory: RunDirectory) -> None:
    # Of several processes, or of actors.
    owner, trainers = parts.group or parts.actors, {"policy": parts.learner.policy}
    if parts.learner.values is not None:
        trainers["critic"] = parts.learner.values.trainer
    models = {role: owner.whole_model(role, one) if owner else one.model for role, one in trainers.items()}
    save_weights(
        directory.path / "weights", policy=models["policy"], tokenizer=parts.tokenizer, critic=models.get("critic")
    )
