"""Fixed-response profiles: where in a response privileged critics and a teacher say something (VP G.1).

Shapes: A action tokens of a response, P problems, B bins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.analysis.continuation_statistics import interval_record, mean_intervals
from lecritique.analysis.response_study import (
    CLEAN,
    LEAVE_ONE_OUT,
    FrozenPolicy,
    StudyWishes,
    cautions_of,
    critics_of,
    needs_fitting,
    part_problems,
    responses_to,
)
from lecritique.analysis.study_critics import StudyCritic
from lecritique.analysis.value_statistics import Resampling
from lecritique.analysis.value_tokens import others_mean
from lecritique.config.schema import ReferenceContext
from lecritique.config.teachers import TeacherContent
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.trajectory import Trajectory
from lecritique.credit.schedules import Group
from lecritique.critic.teacher import TeacherPrompts
from lecritique.critic.views import supports
from lecritique.models.scoring import TokenRow, action_states, in_paired_micro_batches, token_row
from lecritique.numerics.distillation import opsd_divergence
from lecritique.numerics.statistics.bootstrap import LEVEL, REPLICATES
from lecritique.numerics.statistics.positions import POSITION_BINS, problem_profiles, squared_error_gain
from lecritique.policy.teacher import told_row
from lecritique.runtime.pretraining import Point
from lecritique.tasks.protocol import checked_task

PROFILES_SCHEMA = 1
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ProfileWishes:
    """`problems` to look at; `teacher` is what the teacher is told, None for the first that the task has of both, the
    solution and the answer.
    """

    problems: int = 128
    teacher: TeacherContent | None = None
    replicates: int = REPLICATES


@dataclass(frozen=True, kw_only=True, eq=False)
class Signals:
    """Per-token numbers of the responses that everyone could read, [A] each: values of each critic, the teacher's KL.

    A baseline that does not move has one number a response.
    """

    problem: list[int]
    returns: list[float]
    values: dict[str, list[Floats]]
    teacher: list[Floats] | None
    counts: dict[str, int]


def teacher_content(frozen: FrozenPolicy, wanted: TeacherContent | None) -> TeacherContent | None:
    """What the teacher is told; None where there is no teacher.

    Raises:
        ConfigurationError: the task does not have what is asked for.
    """
    if wanted == "none":
        return None
    task = checked_task(frozen.base.environment, frozen.base.data.rows[0])
    choices: tuple[TeacherContent, ...] = ("both", "solution", "answer") if wanted is None else (wanted,)
    for content in choices:
        if supports(task, ReferenceContext(content=content)):
            return content
    if wanted is not None:
        raise ConfigurationError(f"--teacher {wanted}: the task has no such reference; `none` does without a teacher.")
    return None


def study_profiles(
    frozen: FrozenPolicy,
    names: Sequence[str],
    wishes: StudyWishes,
    own: ProfileWishes,
    folder: Path,
    *,
    on_part: Callable[[int, int], None] = lambda done, parts: None,
    on_point: Callable[[str, Point], None] = lambda name, point: None,
) -> dict[str, Any]:
    """Sample responses, fit or load critics, and make the profiles; everything is kept in `folder`.

    Returns:
        a JSON object; what is undefined is null.

    Raises:
        DataError: too few problems, or fewer than two that everyone can read.
    """
    wanted = {"study": own.problems, **({"critics": wishes.critic_problems} if needs_fitting(names, wishes) else {})}
    rows = part_problems(frozen, wanted, held_out=wishes.held_out)
    groups, collected = responses_to(frozen, rows["study"], folder / "responses", on_part=on_part)
    critics = critics_of(
        frozen, names, wishes, rows.get("critics", ()), groups, folder, on_part=on_part, on_point=on_point
    )
    told = teacher_content(frozen, own.teacher)
    signals = signals_of(frozen, critics, groups, names, told)
    if len(set(signals.problem)) < 2:
        raise DataError(f"profiles need two problems that every critic can read, got {len(set(signals.problem))}.")
    return {
        "schema": PROFILES_SCHEMA,
        "origin": frozen.origin,
        "task": frozen.base.environment.name,
        "cautions": cautions_of(frozen, critics),
        "problems": len(set(signals.problem)),
        "responses": len(signals.problem),
        "counts": {"failed": collected.failed, "truncated": collected.truncated, **signals.counts},
        "mean_return": float(np.mean(signals.returns)),
        "method": {
            "interval": "percentile bootstrap over problems, the same draws for every critic",
            "replicates": own.replicates,
            "level": LEVEL,
            "bins": POSITION_BINS,
        },
        "critics": {critic.name: critic.origin for critic in critics},
        "teacher": told,
        **profile_statistics(signals, replicates=own.replicates),
    }


def profile_statistics(signals: Signals, *, replicates: int = REPLICATES) -> dict[str, Any]:
    """Profiles with intervals: the signal of every critic, every two critics apart, and the teacher's divergence.

    Returns:
        `signals` and `divergence` as `profile` (one interval a bin) and `mean` (over the whole response); `pairs` of
        critics by how much nearer to the return the first is.
    """
    problems = len(set(signals.problem))
    draws = Resampling(problems, replicates=replicates)
    number = {problem: index for index, problem in enumerate(sorted(set(signals.problem)))}
    of_problem = [number[problem] for problem in signals.problem]

    def both(columns: Sequence[Floats]) -> dict[str, Any]:
        profile = mean_intervals(problem_profiles(columns, of_problem), draws)
        (mean,) = mean_intervals(problem_profiles(columns, of_problem, bins=1), draws)
        return {
            "profile": [{"problems": one.units, **interval_record(one)} for one in profile],
            "mean": interval_record(mean),
        }

    def gain(worse: str, better: str) -> list[Floats]:
        columns = zip(signals.values[worse], signals.values[better], signals.returns, strict=True)
        return [squared_error_gain(a, b, R) for a, b, R in columns]

    pairs = [{"better": b, "worse": a, **both(gain(a, b))} for b, a in itertools.permutations(signals.values, 2)]
    return {
        "signals": {
            pair["better"]: {"profile": pair["profile"], "mean": pair["mean"]}
            for pair in pairs
            if pair["worse"] == CLEAN
        },
        "pairs": [
            {"a": pair["better"], "b": pair["worse"], **pair["mean"]}
            for pair in pairs
            if list(signals.values).index(pair["better"]) > list(signals.values).index(pair["worse"])
        ],
        "divergence": None if signals.teacher is None else both(signals.teacher),
    }


def signals_of(
    frozen: FrozenPolicy,
    critics: Sequence[StudyCritic],
    groups: Sequence[Group],
    names: Sequence[str],
    told: TeacherContent | None,
) -> Signals:
    """Values and divergences of the responses that every critic and the teacher can read; the rest is counted."""
    base, limit = frozen.base, frozen.base.language.context_length
    prompts = None if told is None else TeacherPrompts(told, base.renderer)
    kept: list[tuple[Trajectory, float]] = []
    rows: dict[str, list[TokenRow]] = {critic.name: [] for critic in critics}
    teacher_rows: list[TokenRow] = []
    counts = {"groups_left_out": 0, "over_length": 0, "without_tokens": 0}
    for group in groups:
        contexts = {critic.name: critic.contexts(group) for critic in critics}
        if any(built is None for built in contexts.values()) or (
            LEAVE_ONE_OUT in names and len(group.trajectories) < 2
        ):
            counts["groups_left_out"] += 1
            continue
        baselines = others_mean([trajectory.episode_return for trajectory in group.trajectories])
        for index, trajectory in enumerate(group.trajectories):
            read = {name: token_row(trajectory, (built or ())[index]) for name, built in contexts.items()}
            teacher = None if prompts is None else told_row(trajectory, prompts(group.task))
            every = [*read.values(), *([] if teacher is None else [teacher])]
            if not trajectory.action_tokens:
                counts["without_tokens"] += 1
            elif any(row.read_tokens > limit for row in every):
                counts["over_length"] += 1
            else:
                kept.append((trajectory, float(baselines[index])))
                for name, row in read.items():
                    rows[name].append(row)
                teacher_rows += [] if teacher is None else [teacher]
    most = base.config.runtime.micro_batch_tokens
    scored = {critic.name: critic.values(rows[critic.name], max_tokens=most) for critic in critics}
    alone = {LEAVE_ONE_OUT: [np.full(t.action_tokens, baseline) for t, baseline in kept]}
    return Signals(
        problem=[trajectory.group_id.row for trajectory, _ in kept],
        returns=[trajectory.episode_return for trajectory, _ in kept],
        values={name: alone[name] if name == LEAVE_ONE_OUT else scored[name] for name in names},
        teacher=None
        if prompts is None
        else divergences_from_teacher(
            frozen.model,
            [token_row(trajectory) for trajectory, _ in kept],
            teacher_rows,
            temperature=base.config.sampling.temperature,
            max_tokens=most,
        ),
        counts=counts,
    )


@torch.no_grad()
def divergences_from_teacher(
    model: Any, rows: Sequence[TokenRow], told: Sequence[TokenRow], *, temperature: float, max_tokens: int
) -> list[Floats]:
    """KL(student, teacher) of the next-token distributions at each wanted token, nats, [A] a row.

    The teacher is the policy itself, told what the policy is not: it differs by what it reads alone.
    """
    head = model.get_output_embeddings().weight
    found: list[Floats] = [np.zeros(0)] * len(rows)
    for read, other in in_paired_micro_batches(model, rows, told, max_tokens=max_tokens):
        kl_N = opsd_divergence(
            action_states(model, read),
            head,
            action_states(model, other),
            head,
            kind="reverse_kl",
            temperature=temperature,
        )
        flat = kl_N.double().cpu().numpy()
        for index, column in zip(read.indices, np.split(flat, np.cumsum(read.counts)[:-1]), strict=True):
            found[index] = column
    return found
