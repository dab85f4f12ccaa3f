"""Continuation study: what critics say of prefixes against what the frozen policy makes of them (VP G.2-G.4).

Shapes: N items (a prefix of a problem), K continuations of each, F fractions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.continuation_statistics import Items, continuation_statistics
from lecritique.analysis.response_study import (
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
from lecritique.core.errors import DataError, EngineFailure, RoleFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import Rollout
from lecritique.core.seeds import derive_seed
from lecritique.core.trajectory import ContextInsertion, Trajectory
from lecritique.credit.schedules import Group
from lecritique.models.scoring import TokenRow, token_row
from lecritique.models.weights import MemoryWeightStore
from lecritique.numerics.statistics.bootstrap import LEVEL, REPLICATES
from lecritique.numerics.statistics.positions import length_tertile, length_tertile_bounds, prefix_actions
from lecritique.rollout.collect import collect
from lecritique.rollout.prefixed import Beginning, PrefixedEngine
from lecritique.runs.directory import write_json
from lecritique.runtime.engines import embedded_engine
from lecritique.runtime.pretraining import Point
from lecritique.runtime.steps import group_request

CONTINUATIONS_SCHEMA = 1
# Items whose continuations are on the disk once all of them are complete.
ITEMS_OF_A_PART = 32
_KEYS = ("reward", "tokens", "truncated", "error")


@dataclass(frozen=True, kw_only=True)
class ContinuationWishes:
    """`problems`, half of them to fit the tertiles of length and half to evaluate; the rest is VP's."""

    problems: int = 256
    continuations: int = 8
    fractions: tuple[float, ...] = (0.2, 0.5, 0.8)
    replicates: int = REPLICATES


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A problem's response whose prefixes are continued, with the mean return of the others of its group.

    `contexts` are what each critic reads beside it.
    """

    trajectory: Trajectory
    others: float
    contexts: Mapping[str, ContextInsertion | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefix:
    """One item: the first `actions` action tokens of a source; `fraction` is the index of its fraction."""

    source: Source
    fraction: int
    actions: int

    @property
    def group_id(self) -> GroupId:
        """Of the group of its continuations."""
        return GroupId(self.source.trajectory.group_id.row, self.fraction)


def study_continuations(
    frozen: FrozenPolicy,
    names: Sequence[str],
    wishes: StudyWishes,
    own: ContinuationWishes,
    folder: Path,
    *,
    on_part: Callable[[str, int, int], None] = lambda what, done, parts: None,
    on_point: Callable[[str, Point], None] = lambda name, point: None,
) -> dict[str, Any]:
    """Sample responses and continuations, fit or load critics, and compare; everything is kept in `folder`.

    Returns:
        a JSON object; what is undefined is null.

    Raises:
        DataError: too few problems, or fewer than two with an item that every critic can read.
        RoleFailure: the policy could not generate.
    """
    half = own.problems // 2
    wanted = {"bounds": half, "study": own.problems - half}
    if needs_fitting(names, wishes):
        wanted["critics"] = wishes.critic_problems
    rows = part_problems(frozen, wanted, held_out=wishes.held_out)

    def responses(done: int, parts: int) -> None:
        on_part("responses", done, parts)

    for_bounds, _ = responses_to(frozen, rows["bounds"], folder / "responses-bounds", on_part=responses)
    groups, collected = responses_to(frozen, rows["study"], folder / "responses", on_part=responses)
    bounds = length_tertile_bounds([group.trajectories[0].action_tokens for group in for_bounds])
    critics = critics_of(
        frozen, names, wishes, rows.get("critics", ()), groups, folder, on_part=responses, on_point=on_point
    )
    counts = {"groups_left_out": 0, "over_length": 0, "failed": 0}
    prefixes = prefixes_of(frozen, critics, groups, names, own.fractions, counts)
    outcomes = continued(frozen, prefixes, own.continuations, folder / "continuations", on_part=on_part)
    items, lengths, truncated = items_of(frozen, critics, names, prefixes, outcomes, bounds, counts)
    problems = len(np.unique(items.problem_N))
    if problems < 2:
        raise DataError(f"a continuation study needs two problems that every critic can read, got {problems}.")
    return {
        "schema": CONTINUATIONS_SCHEMA,
        "origin": frozen.origin,
        "task": frozen.base.environment.name,
        "cautions": cautions_of(frozen, critics),
        "problems": problems,
        "items": len(items),
        "continuations": own.continuations,
        "fractions": list(own.fractions),
        "counts": {"failed_responses": collected.failed, **counts, "truncated": truncated},
        "mean_outcome": {
            f"{fraction:g}": _mean(items.outcomes_NK[items.fraction_N == f]) for f, fraction in enumerate(own.fractions)
        },
        "mean_continuation_tokens": _mean(lengths),
        "method": {
            "interval": "percentile bootstrap over problems, the same draws for every critic",
            "replicates": own.replicates,
            "level": LEVEL,
            "length_bounds_tokens": list(bounds),
            "bounds_fitted_on": len(for_bounds),
        },
        "origins": {critic.name: critic.origin for critic in critics},
        **continuation_statistics(items, own.fractions, Resampling(problems, replicates=own.replicates)),
    }


def prefixes_of(
    frozen: FrozenPolicy,
    critics: Sequence[StudyCritic],
    groups: Sequence[Group],
    names: Sequence[str],
    fractions: Sequence[float],
    counts: dict[str, int],
) -> list[Prefix]:
    """Every fraction of the first response of every group; an item that one critic cannot read is left out for all."""
    limit = frozen.base.language.context_length
    found = []
    for group in groups:
        source = _source_of(critics, group, names)
        if source is None:
            counts["groups_left_out"] += 1
            continue
        for index, fraction in enumerate(fractions):
            actions = prefix_actions(source.trajectory.action_tokens, fraction)
            prefix = Prefix(source=source, fraction=index, actions=actions)
            if all(_row(prefix, critic.name).read_tokens <= limit for critic in critics):
                found.append(prefix)
            else:
                counts["over_length"] += 1
    return found


def _source_of(critics: Sequence[StudyCritic], group: Group, names: Sequence[str]) -> Source | None:
    contexts = {critic.name: critic.contexts(group) for critic in critics}
    first = group.trajectories[0]
    alone = LEAVE_ONE_OUT in names and len(group.trajectories) < 2
    if alone or not first.action_tokens or any(built is None for built in contexts.values()):
        return None
    return Source(
        trajectory=first,
        others=float(others_mean([trajectory.episode_return for trajectory in group.trajectories])[0]),
        contexts={name: built[0] for name, built in contexts.items() if built is not None},
    )


def _row(prefix: Prefix, critic: str) -> TokenRow:
    """What a critic reads of a prefix: the value wanted is that of the state before the first token left out."""
    row = token_row(prefix.source.trajectory, prefix.source.contexts[critic])
    mask = np.zeros_like(row.mask)
    mask[np.flatnonzero(row.mask)[prefix.actions]] = True
    return TokenRow(token_ids=row.token_ids, mask=mask)


def items_of(
    frozen: FrozenPolicy,
    critics: Sequence[StudyCritic],
    names: Sequence[str],
    prefixes: Sequence[Prefix],
    outcomes: Sequence[Mapping[str, list[Any]]],
    bounds: tuple[float, float],
    counts: dict[str, int],
) -> tuple[Items, NDArray[np.float64], int]:
    """Items whose continuations all have a label, the lengths [N, K] of these, and how many were truncated."""
    whole = [n for n, outcome in enumerate(outcomes) if all(error is None for error in outcome["error"])]
    counts["failed"] += len(outcomes) - len(whole)
    kept = [prefixes[n] for n in whole]
    most = frozen.base.config.runtime.micro_batch_tokens
    predictions = {
        critic.name: _first(critic.values([_row(prefix, critic.name) for prefix in kept], max_tokens=most))
        for critic in critics
    }
    predictions[LEAVE_ONE_OUT] = np.array([prefix.source.others for prefix in kept])
    lengths = np.array([prefix.source.trajectory.action_tokens for prefix in kept], dtype=np.float64)
    problem_N = np.unique([prefix.group_id.row for prefix in kept], return_inverse=True)[1].astype(np.int64)
    items = Items(
        problem_N=problem_N,
        fraction_N=np.array([prefix.fraction for prefix in kept], dtype=np.int64),
        stratum_N=length_tertile(lengths, bounds).astype(np.int64),
        outcomes_NK=np.array([outcomes[n]["reward"] for n in whole], dtype=np.float64),
        predictions={name: predictions[name] for name in names},
    )
    tokens = np.array([outcomes[n]["tokens"] for n in whole], dtype=np.float64)
    return items, tokens, sum(sum(outcomes[n]["truncated"]) for n in whole)


def continued(
    frozen: FrozenPolicy,
    prefixes: Sequence[Prefix],
    continuations: int,
    folder: Path,
    *,
    on_part: Callable[[str, int, int], None] = lambda what, done, parts: None,
) -> list[dict[str, list[Any]]]:
    """What came of each prefix's continuations, in order; parts that are in `folder` already are read from there.

    Samples depend on the seed, the row, the fraction's index and the prefix alone.

    Raises:
        DataError: a part that does not hold what it should.
        RoleFailure: the policy could not generate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, list[Any]]] = []
    starts = range(0, len(prefixes), ITEMS_OF_A_PART)
    beginnings = {p.group_id: Beginning(trajectory=p.source.trajectory, actions=p.actions) for p in prefixes}
    # Embedded whatever is configured: a part's samples are the same again when the study is gone on with.
    engine = PrefixedEngine(embedded_engine(frozen.model, MemoryWeightStore(), frozen.base.config), beginnings)
    try:
        for number, start in enumerate(starts):
            chosen, file = prefixes[start : start + ITEMS_OF_A_PART], folder / f"part-{number:05d}.json"
            if not file.is_file():
                played = _played(frozen, chosen, continuations, engine)
                write_json(file, [_outcome(prefix, of) for prefix, of in zip(chosen, played, strict=True)])
            found += _read_part(file, chosen, continuations)
            on_part("continuations", number + 1, len(starts))
    finally:
        engine.close()
    return found


def _played(
    frozen: FrozenPolicy, prefixes: Sequence[Prefix], continuations: int, engine: PrefixedEngine
) -> list[tuple[Rollout, ...]]:
    base, config = frozen.base, frozen.base.config
    seed = derive_seed(config.run.seed, "continuation")
    requests = [
        group_request(base.environment, config, prefix.group_id, group_size=continuations, seed=seed)
        for prefix in prefixes
    ]
    played = collect(requests, environment=base.environment, renderer=base.renderer, engine=engine)
    failures = [member.error for members in played for member in members if member.error is not None]
    if failures and len(failures) == continuations * len(prefixes) and isinstance(failures[0], EngineFailure):
        raise RoleFailure(f"no prefix could be continued; the first failure: {failures[0]}.")
    return played


def _outcome(prefix: Prefix, members: Sequence[Rollout]) -> dict[str, Any]:
    """Reward, sampled tokens and end of each continuation; the reward is the verifier's, of the whole response."""
    tokens = [sum(len(turn.completion.token_ids) for turn in member.turns) - prefix.actions for member in members]
    return {
        "row": prefix.group_id.row,
        "fraction": prefix.fraction,
        "actions": prefix.actions,
        "reward": [member.reward for member in members],
        "tokens": tokens,
        "truncated": [member.truncated for member in members],
        "error": [None if member.error is None else member.error.kind for member in members],
    }


def _read_part(file: Path, prefixes: Sequence[Prefix], continuations: int) -> list[dict[str, list[Any]]]:
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        same = [(r["row"], r["fraction"], r["actions"]) for r in held] == [(*p.group_id, p.actions) for p in prefixes]
        whole = all(len(record[key]) == continuations for record in held for key in _KEYS)
        known = all(
            (error is not None or math.isfinite(reward)) and type(tokens) is int and type(truncated) is bool
            for record in held
            for reward, tokens, truncated, error in zip(*(record[key] for key in _KEYS), strict=True)
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"'{file}' is no part of this study ({error!r}); remove it to sample it again.") from error
    if not (same and whole and known):
        raise DataError(f"'{file}' is no part of this study; remove it to sample it again.")
    return [{key: record[key] for key in _KEYS} for record in held]


def _first(columns: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(columns) if columns else np.zeros(0)


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if values.size else None
