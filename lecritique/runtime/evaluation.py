"""Plays evaluation sets: K samples of every problem, and what became of each.

The same in a command of its own and between two steps of a run. A sample depends on the policy, the problem and the
seed alone, never on what is played beside it, so an evaluation that was interrupted goes on with the same samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from lecritique.core.errors import EngineFailure, RoleFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import GroupRequest, Rollout
from lecritique.core.task import Task
from lecritique.models.chat import ChatRenderer
from lecritique.numerics.statistics.accuracy import avg_at_k, mean_pass_at_k
from lecritique.rollout.engine import Engine
from lecritique.rollout.pump import RolloutPump
from lecritique.runs.evaluations import ProblemResult
from lecritique.runtime.build import Parts
from lecritique.runtime.evaluation_sets import EvalSet
from lecritique.tasks.protocol import Environment, checked_task

# Rollouts that are open at once: enough to keep the engine's rows busy while the last of a problem end.
_OPEN_ROLLOUTS = 256


def evaluate_set(
    problems: EvalSet,
    *,
    engine: Engine,
    renderer: ChatRenderer,
    done: Collection[int] = (),
    on_problem: Callable[[ProblemResult], None] = lambda result: None,
) -> list[ProblemResult]:
    """Play the problems of a set that are not done yet.

    Args:
        problems: the set.
        engine: holds the policy.
        renderer: of the policy.
        done: rows that are left out.
        on_problem: told of each problem as it is finished, in no fixed order.

    Returns:
        one result per problem that was played, in order of rows.

    Raises:
        DataError: a row that is no task.
        RoleFailure: the engine could not generate. That says nothing about the policy: the problem counts as not done.
    """
    waiting = [row for row in problems.rows if row not in done]
    pump = RolloutPump(environment=problems.environment, renderer=renderer, engine=engine)
    at_once = max(1, _OPEN_ROLLOUTS // problems.k)
    found: list[ProblemResult] = []
    try:
        while waiting or pump.open:
            room = at_once - len(pump.open)
            pump.start([_request(problems, row) for row in waiting[:room]])
            waiting = waiting[room:]
            for members in pump.pump():
                result = _result(problems, members)
                found.append(result)
                on_problem(result)
    except BaseException:
        # Nobody waits for what is open any more.
        for group_id in pump.open:
            pump.cancel(group_id)
        raise
    return sorted(found, key=lambda result: result.row)


def _request(problems: EvalSet, row: int) -> GroupRequest:
    return GroupRequest(
        group_id=GroupId(row, 0),
        task=checked_task(problems.environment, row),
        group_size=problems.k,
        sampling=problems.sampling,
        max_turn_tokens=problems.max_turn_tokens,
        max_total_tokens=problems.max_total_tokens,
        seed=problems.seed,
    )


def _result(problems: EvalSet, members: Sequence[Rollout]) -> ProblemResult:
    for member in members:
        if isinstance(member.error, EngineFailure):
            raise RoleFailure(
                f"the engine could not generate rollout {member.rollout_id} of the set '{problems.name}': "
                f"{member.error}. What is finished is kept; the same call again goes on from there."
            )
    task = members[0].task
    return ProblemResult(
        set=problems.name,
        row=members[0].rollout_id.group.row,
        task_id=task.task_id,
        split=None if problems.split_by is None else str(task.metadata.get(problems.split_by)),
        scores=tuple(member.reward for member in members),
        statuses=tuple(member.status for member in members),
        answered=tuple(_answered(problems.environment, task, member) for member in members),
        tokens=tuple(sum(len(turn.completion.token_ids) for turn in member.turns) for member in members),
    )


def _answered(environment: Environment, task: Task, member: Rollout) -> bool | None:
    """Whether the last turn holds an answer at all; None where the task cannot tell."""
    holds_answer = getattr(environment, "holds_answer", None)
    if holds_answer is None or not member.turns:
        return None
    try:
        return bool(holds_answer(task, member.turns[-1].text))
    except Exception:  # user code on a hostile text: a count that is missing must not end an evaluation
        return None


def lowest_and_highest(problems: EvalSet) -> tuple[float, float]:
    """The declared range of the set's rewards."""
    low, high = problems.environment.reward_range
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class SetScore:
    """avg@K and pass@K of one set (None where a problem has fewer than K samples), and counts over its samples."""

    problems: int
    samples: int
    score: float
    pass_at_k: float | None
    failed: int
    truncated: int
    unread: int
    readable: int


def scored(results: Sequence[ProblemResult], *, k: int, reward_range: tuple[float, float]) -> SetScore:
    """The figures of one set.

    A failed sample counts as wrong, which is the lowest reward; correct, for pass@K, is the highest.

    Args:
        results: of every problem, with the same number of samples.
        k: of pass@K.
        reward_range: lowest and highest reward.

    Raises:
        ValueError: no results, or different numbers of samples.

    Source: VP eq. 16; method sheet section 8.
    """
    low, high = reward_range
    scores_PK = np.array([[np.nan if s is None else s for s in r.scores] for r in results], dtype=np.float64)
    accuracy = avg_at_k(scores_PK - low)
    answered = [answer for result in results for answer in result.answered if answer is not None]
    return SetScore(
        problems=len(results),
        samples=accuracy.samples,
        score=accuracy.mean + low,
        pass_at_k=mean_pass_at_k(
            [len(result.scores) for result in results], [correct_samples(result, high) for result in results], k
        ),
        failed=accuracy.failed,
        truncated=sum(status == "truncated" for result in results for status in result.statuses),
        unread=answered.count(False),
        readable=len(answered),
    )


def correct_samples(result: ProblemResult, highest: float) -> int:
    """How many samples earned the highest reward (scores that are computed as ratios miss it by rounding)."""
    return sum(score is not None and score >= highest - 1e-9 for score in result.scores)


def evaluation_metrics(parts: Parts) -> tuple[dict[str, float], dict[str, dict[str, float | None]]]:
    """Evaluate the policy as the engine holds it; metrics, and the figures of each set.

    The engine is left with the weights and the version that it had, and without any cached key: no training number
    depends on whether this was called.
    """
    started = time.perf_counter()
    try:
        scores = {
            problems.name: scored(
                evaluate_set(problems, engine=parts.engine, renderer=parts.renderer),
                k=problems.k,
                reward_range=lowest_and_highest(problems),
            )
            for problems in parts.evaluation
        }
    finally:
        parts.engine.adopt(parts.learner.policy.publish())
    return {
        **_metrics(list(scores.values())),
        "seconds_evaluation": time.perf_counter() - started,
    }, {name: asdict(score) for name, score in scores.items()}


def _metrics(scores: Sequence[SetScore]) -> dict[str, float]:
    samples, readable = sum(s.samples for s in scores), sum(s.readable for s in scores)
    passes = [s.pass_at_k for s in scores if s.pass_at_k is not None]
    return {
        "evaluation_score": sum(s.score for s in scores) / len(scores),
        "evaluation_pass_at_k": sum(passes) / len(passes) if len(passes) == len(scores) else float("nan"),
        "evaluation_failed": float(sum(s.failed for s in scores)),
        "evaluation_truncated_fraction": sum(s.truncated for s in scores) / samples,
        "evaluation_unread_fraction": sum(s.unread for s in scores) / readable if readable else float("nan"),
    }


def evaluates(every: int, *, done: int, steps: int) -> bool:
    """Whether the policy is evaluated after `done` of `steps` steps: every so many, and after the last."""
    return bool(every) and (done % every == 0 or done == steps)
