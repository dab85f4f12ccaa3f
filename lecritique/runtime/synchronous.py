"""The synchronous loop: collect a batch, run the schedule, publish the policy, record.

stream ─► collect (engine + environments) ─► score ─► credit ─► policy step ─► critic updates ─┐
  ▲                                                                                            │
  └──────────────────────────── engine adopts the policy's new weights ◄───────────────────────┘
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from lecritique.config.schema import RunConfig
from lecritique.core.errors import BudgetExceeded, DataError, DivergenceError, LecritiqueError, RoleFailure
from lecritique.core.metrics import Mean
from lecritique.core.rollout import GroupRequest, Rollout
from lecritique.credit.schedules import Group, StepOutcome, score_then_train
from lecritique.critic.context import context_text
from lecritique.rollout.collect import collect
from lecritique.rollout.trajectories import trajectory_of
from lecritique.runs.directory import RunDirectory
from lecritique.runs.rollouts import save_rollouts
from lecritique.runs.sinks import Sink, open_sinks
from lecritique.runs.weights import save_weights
from lecritique.runtime.build import Parts, sampling_of
from lecritique.tasks.protocol import checked_task

OnStep = Callable[[int, dict[str, float]], None]


def train(parts: Parts, directory: RunDirectory, *, on_step: OnStep = lambda step, metrics: None) -> None:
    """Run all steps and save the weights; the status on disk says how it ended.

    Raises:
        LecritiqueError: what ended the run early. Whatever ends it is recorded and passed on.
    """
    config = parts.config
    steps, done = config.run.steps, 0
    sinks: list[Sink] = []
    directory.set_status("running", step=0, steps=steps)
    directory.append_event("started")
    try:
        sinks.extend(open_sinks(config.run.sinks, directory.path))
        for step in range(steps):
            metrics = train_step(parts, step, directory)
            _record(step, metrics, directory, sinks)
            done = step + 1
            directory.set_status("running", step=done, steps=steps)
            on_step(step, metrics)
        _save_weights(parts, directory)
    except BaseException as error:
        state, message = ending(error)
        directory.set_status(state, step=done, steps=steps, message=message)
        directory.append_event(state, step=done, message=message)
        raise
    finally:
        for sink in sinks:
            sink.close()
        parts.engine.close()
    directory.append_event("finished")
    directory.set_status("finished", step=steps, steps=steps)


def ending(error: BaseException) -> tuple[str, str]:
    """State and message of a run that `error` ended."""
    if isinstance(error, KeyboardInterrupt | SystemExit):  # a closed pipe is a SystemExit
        return "interrupted", "interrupted"
    if isinstance(error, DivergenceError):
        return "diverged", str(error)
    return "failed", str(error) if isinstance(error, LecritiqueError) else f"{type(error).__name__}: {error}"


def train_step(parts: Parts, step: int, directory: RunDirectory | None) -> dict[str, float]:
    """One rollout batch from request to record; returns its metrics."""
    started = time.perf_counter()
    per_step = parts.config.rollout.batch_size // parts.config.rollout.group_size
    requests = group_requests(parts, start=step * per_step, count=per_step)
    rollouts = collect(requests, environment=parts.environment, renderer=parts.renderer, engine=parts.engine)
    seconds_rollout = time.perf_counter() - started
    _require_enough(rollouts, parts.config)
    outcome = score_then_train(parts.learner, valid_groups(rollouts))
    if outcome.trained:
        parts.engine.adopt(parts.learner.policy.publish())
    if directory is not None and _saves(parts.config, step):
        _save(parts, step, rollouts, outcome, directory)
    return {
        **rollout_metrics(rollouts, seconds_rollout),
        **outcome.metrics,
        "seconds_rollout": seconds_rollout,
        "seconds": time.perf_counter() - started,
    }


def group_requests(parts: Parts, *, start: int, count: int) -> list[GroupRequest]:
    """Requests for the groups at stream positions start .. start + count - 1."""
    config = parts.config
    limit = config.sampling.max_total_tokens
    assert limit is not None
    return [
        GroupRequest(
            group_id=group_id,
            task=checked_task(parts.environment, group_id.row),
            group_size=config.rollout.group_size,
            sampling=sampling_of(config),
            max_turn_tokens=config.sampling.max_turn_tokens,
            max_total_tokens=limit,
            seed=config.run.seed,
        )
        for group_id in parts.stream.groups(start, count)
    ]


def valid_groups(rollouts: Sequence[tuple[Rollout, ...]]) -> list[Group]:
    """Groups of the rollouts that have a reward; a failed one is excluded, never counted as wrong."""
    groups = []
    for members in rollouts:
        valid = [member for member in members if member.reward is not None]
        if valid:
            groups.append(
                Group(
                    group_id=valid[0].rollout_id.group,
                    task=valid[0].task,
                    trajectories=tuple(trajectory_of(member) for member in valid),
                )
            )
    return groups


def rollout_metrics(rollouts: Sequence[tuple[Rollout, ...]], seconds: float) -> dict[str, float]:
    """Metrics of what was collected."""
    members = [member for group in rollouts for member in group]
    valid = [member for member in members if member.reward is not None]
    tokens = [sum(len(turn.completion.token_ids) for turn in member.turns) for member in valid]
    return {
        "reward": Mean(math.fsum(member.reward or 0.0 for member in valid), len(valid)).value(),
        "rollouts": float(len(members)),
        "rollouts_failed": float(len(members) - len(valid)),
        "truncated_fraction": Mean(float(sum(member.truncated for member in valid)), len(valid)).value(),
        "response_tokens": Mean(float(sum(tokens)), len(valid)).value(),
        "turns": Mean(float(sum(len(member.turns) for member in valid)), len(valid)).value(),
        "tokens_per_second": sum(tokens) / seconds,
    }


def _require_enough(rollouts: Sequence[tuple[Rollout, ...]], config: RunConfig) -> None:
    members = [member for group in rollouts for member in group]
    failed = [member for member in members if member.error is not None]
    if len(failed) <= config.rollout.max_failed_fraction * len(members):
        return
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(m.status for m in failed).most_common())
    message = (
        f"{len(failed)} of {len(members)} rollouts failed ({kinds}), more than 'rollout.max_failed_fraction' = "
        f"{config.rollout.max_failed_fraction} allows; the first: {failed[0].error}"
    )
    # A prompt over the limit is a matter of the data, not of a role.
    raise DataError(message) if isinstance(failed[0].error, BudgetExceeded) else RoleFailure(message)


def _record(step: int, metrics: dict[str, float], directory: RunDirectory, sinks: Sequence[Sink]) -> None:
    directory.append_metrics(step, metrics)
    for sink in sinks:
        sink.write(step, metrics)


def _save_weights(parts: Parts, directory: RunDirectory) -> None:
    values = parts.learner.values
    save_weights(
        directory.path / "weights",
        policy=parts.learner.policy.model,
        tokenizer=parts.tokenizer,
        critic=values.trainer.model if values else None,
    )


def _saves(config: RunConfig, step: int) -> bool:
    every = config.run.save_rollouts_every
    return bool(every) and ((step + 1) % every == 0 or step == 0 or step + 1 == config.run.steps)


def _save(
    parts: Parts,
    step: int,
    rollouts: Sequence[tuple[Rollout, ...]],
    outcome: StepOutcome,
    directory: RunDirectory,
) -> None:
    whole_groups = -(-parts.config.run.saved_rollouts // parts.config.rollout.group_size)
    members = [member for group in rollouts[:whole_groups] for member in group]
    contexts = (
        {m.rollout_id.group.row: context_text(m.task, parts.config.critic.context) for m in members}
        if parts.learner.values is not None
        else {}
    )
    save_rollouts(
        directory.path / "rollouts",
        step=step,
        rollouts=members,
        credited=outcome.credit.members,
        contexts=contexts,
        renderer=parts.renderer,
    )
