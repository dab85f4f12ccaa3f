"""Action tokens of saved rollouts as flat columns: what the critic said of each, and what came of it.

N tokens of an arm, K members of a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lecritique.analysis.saved_rollouts import RolloutTable
from lecritique.core.errors import DataError
from lecritique.numerics.statistics.positions import position_bins

VALUE_COLUMNS = (
    "step", "row", "attempt", "member", "segment_index", "reward", "action_mask", "turn_index", "values",
    "value_targets",
)  # fmt: skip

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_PerToken = list[NDArray[np.float64] | None]
_PER_TOKEN_COLUMNS = ("values", "targets", "position", "turn")
_KINDS: Mapping[str, type[np.generic]] = {
    "values": np.float32,
    "targets": np.float32,
    "position": np.int8,
    "turn": np.int16,
    "rollout": np.int32,
    "rollout_problem": np.int64,
    "rollout_reward": np.float64,
    "rollout_baseline": np.float64,
    "rollout_length": np.int64,
}


class Problems:
    """Numbers problems as they are met. Two rows are one problem when row, task and prompt are the same."""

    def __init__(self) -> None:
        self._number_of: dict[tuple[int, str, str], int] = {}

    def __len__(self) -> int:
        return len(self._number_of)

    def number(self, row: int, task_id: str, prompt: str) -> int:
        """The problem's number, the next one when it is new."""
        return self._number_of.setdefault((row, task_id, prompt), len(self._number_of))


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueTokens:
    """Action tokens of one arm, [N] each, and the M rollouts that they are of.

    Kept narrow, for millions of tokens; values, targets, rewards and baselines are in reward units. `values` and
    `rollout_baseline` (the mean reward of the other members of the group) are NaN where there is none. `left_out`
    tokens had no finite target.
    """

    values: NDArray[np.float32]
    targets: NDArray[np.float32]
    position: NDArray[np.int8]
    turn: NDArray[np.int16]
    rollout: NDArray[np.int32]
    rollout_problem: Integers
    rollout_reward: Floats
    rollout_baseline: Floats
    rollout_length: Integers
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def problem(self) -> Integers:
        """The problem of each token."""
        return self.rollout_problem[self.rollout]

    @property
    def rewards(self) -> Floats:
        """The reward of each token's rollout."""
        return self.rollout_reward[self.rollout]

    @property
    def baselines(self) -> Floats:
        """The leave-one-out baseline of each token's rollout."""
        return self.rollout_baseline[self.rollout]

    @property
    def length(self) -> Integers:
        """Action tokens of each token's response."""
        return self.rollout_length[self.rollout]


def read_value_tokens(table: RolloutTable, problems: Problems) -> ValueTokens:
    """The action tokens of the rollouts in one file that have a reward.

    Args:
        table: saved rollouts, read with `VALUE_COLUMNS`; groups do not span files.
        problems: numbers the problems; shared by all arms that are to be compared.

    Raises:
        DataError: the file's task ids or prompts cannot be read.
    """
    episodes = list(_episodes(table, problems))
    tokens = [each.tokens for each in episodes]
    known = [np.isfinite(columns["targets"]) for columns in tokens]
    kept = [int(keep.sum()) for keep in known]
    return _of_columns(
        {name: [c[name][keep] for c, keep in zip(tokens, known, strict=True)] for name in _PER_TOKEN_COLUMNS}
        | {"rollout": [np.repeat(np.arange(len(episodes)), kept)]}
        | {
            "rollout_problem": [np.array([each.problem for each in episodes])],
            "rollout_reward": [np.array([each.reward for each in episodes])],
            "rollout_baseline": [np.array([each.baseline for each in episodes])],
            "rollout_length": [np.array([len(columns["targets"]) for columns in tokens])],
        },
        left_out=sum(map(len, known)) - sum(kept),
    )


def merged_tokens(parts: Sequence[ValueTokens]) -> ValueTokens:
    """The tokens of several files."""
    first = np.cumsum([0, *(len(part.rollout_reward) for part in parts)])
    columns = {name: [getattr(part, name) for part in parts] for name in _KINDS if name != "rollout"}
    rollouts = [part.rollout + start for part, start in zip(parts, first, strict=False)]
    return _of_columns(columns | {"rollout": rollouts}, left_out=sum(part.left_out for part in parts))


def _of_columns(columns: Mapping[str, Sequence[NDArray[Any]]], *, left_out: int) -> ValueTokens:
    with np.errstate(over="ignore"):  # a target beyond float32 is no target
        typed = {
            name: np.concatenate([np.asarray(part, dtype=kind) for part in columns[name]] or [np.zeros(0, dtype=kind)])
            for name, kind in _KINDS.items()
        }
    return ValueTokens(**typed, left_out=left_out)


def others_mean(rewards_K: Sequence[float]) -> Floats:
    """Mean of the other members' finite rewards [K]; NaN for a member that has no other."""
    rewards = np.asarray(rewards_K, dtype=np.float64)
    known = np.isfinite(rewards)
    found = np.full(len(rewards), np.nan)
    for member in range(len(rewards)):
        others = known.copy()
        others[member] = False
        if others.any():
            found[member] = rewards[others].mean()
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Episode:
    """An episode with a reward: its tokens' columns, and what they share."""

    problem: int
    reward: float
    baseline: float
    tokens: dict[str, NDArray[Any]]


def _episodes(table: RolloutTable, problems: Problems) -> Iterator[_Episode]:
    """The episodes that have a reward and action tokens."""
    rewards = table.scalars("reward")
    values, targets, masks, turns = (
        table.per_token(name) for name in ("values", "value_targets", "action_mask", "turn_index")
    )
    task_ids, prompts = _texts(table.path, len(table))
    episodes = list(table.episodes())
    baselines = _baselines(episodes, rewards)
    for episode, rows in episodes:
        reward = float(rewards[rows[0]])
        G, turn = _joined(targets, masks, rows), _joined(turns, masks, rows)
        if not math.isfinite(reward) or G is None or turn is None or not len(G):
            continue
        V = _joined(values, masks, rows)
        yield _Episode(
            problem=problems.number(episode[1], task_ids[rows[0]], prompts[rows[0]]),
            reward=reward,
            baseline=baselines[episode],
            tokens={
                "values": np.full(len(G), np.nan) if V is None else V,
                "targets": G,
                "position": _bins_of(len(G)),
                "turn": np.where(np.isfinite(turn), turn, 0.0),
            },
        )


@lru_cache(maxsize=1024)
def _bins_of(actions: int) -> Integers:
    return position_bins(actions)


def _baselines(episodes: Sequence[tuple[Any, list[int]]], rewards: Floats) -> dict[Any, float]:
    groups: dict[tuple[int, int, int], list[tuple[Any, float]]] = {}
    for episode, rows in episodes:
        groups.setdefault(episode[:3], []).append((episode, float(rewards[rows[0]])))
    return {
        episode: float(baseline)
        for members in groups.values()
        for (episode, _), baseline in zip(members, others_mean([reward for _, reward in members]), strict=True)
    }


def _joined(column: _PerToken, masks: _PerToken, rows: list[int]) -> Floats | None:
    """The column's action tokens over the segments of an episode, None when a segment has none saved."""
    parts = []
    for row in rows:
        values, mask = column[row], masks[row]
        if values is None or mask is None:
            return None
        parts.append(values[mask == 1])
    return np.concatenate(parts)


def _texts(path: Path, rows: int) -> tuple[list[str], list[str]]:
    """Task id and prompt of every row, empty where the file has none."""
    found = []
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=[name for name in ("task_id", "prompt") if name in file.schema_arrow.names])
        for name in ("task_id", "prompt"):
            column = table.column(name).to_pylist() if name in table.column_names else [None] * rows
            found.append([str(text) if text is not None else "" for text in column])
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path}: task ids and prompts cannot be read ({error})") from error
    return found[0], found[1]
