"""Action tokens of saved rollouts as flat columns: what the critic said of each, and what came of it.

N tokens of an arm, K members of a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_COLUMNS = ("problem", "values", "baselines", "targets", "rewards", "position", "turn", "length")
_INTEGERS = frozenset({"problem", "position", "turn", "length"})


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
    """Action tokens of one arm, [N] each; values, targets, rewards and baselines are in reward units.

    `values` and `baselines` (the mean reward of the other members of the group) are NaN where there is none. `length`
    is the number of action tokens of the response that the token is in; `left_out` tokens had no finite target.
    """

    problem: Integers
    values: Floats
    baselines: Floats
    targets: Floats
    rewards: Floats
    position: Integers
    turn: Integers
    length: Integers
    lengths_of_rollouts: Integers
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.targets)


def read_value_tokens(table: RolloutTable, problems: Problems) -> ValueTokens:
    """The action tokens of the rollouts in one file that have a reward.

    Args:
        table: saved rollouts, read with `VALUE_COLUMNS`; groups do not span files.
        problems: numbers the problems; shared by all arms that are to be compared.

    Raises:
        DataError: the file's task ids or prompts cannot be read.
    """
    pieces: list[dict[str, Any]] = []
    left_out = 0
    for piece in _episodes(table, problems):
        known = np.isfinite(piece["targets"])
        left_out += int((~known).sum())
        pieces.append({name: column[known] for name, column in piece.items()})
    columns = {name: np.concatenate([piece[name] for piece in pieces] or [np.zeros(0)]) for name in _COLUMNS}
    lengths = [int(piece["length"][0]) for piece in pieces if len(piece["length"])]
    return _of_columns(columns, np.array(lengths, dtype=np.int64), left_out)


def merged_tokens(parts: Sequence[ValueTokens]) -> ValueTokens:
    """The tokens of several files."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0)]) for name in _COLUMNS}
    lengths = np.concatenate([part.lengths_of_rollouts for part in parts] or [np.zeros(0, dtype=np.int64)])
    return _of_columns(columns, lengths, sum(part.left_out for part in parts))


def _of_columns(columns: Mapping[str, NDArray[Any]], lengths: Integers, left_out: int) -> ValueTokens:
    typed = {name: columns[name].astype(np.int64 if name in _INTEGERS else np.float64) for name in _COLUMNS}
    return ValueTokens(**typed, lengths_of_rollouts=lengths, left_out=left_out)


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


def _episodes(table: RolloutTable, problems: Problems) -> Iterator[dict[str, Any]]:
    """The columns of each episode that has a reward and action tokens."""
    rewards = table.scalars("reward")
    values, targets, masks, turns = (
        table.per_token(name) for name in ("values", "value_targets", "action_mask", "turn_index")
    )
    task_ids, prompts = _texts(table.path, len(table))
    episodes = list(table.episodes())
    baselines = _baselines(episodes, rewards)
    for episode, rows in episodes:
        reward = rewards[rows[0]]
        G, turn = _joined(targets, masks, rows), _joined(turns, masks, rows)
        if not math.isfinite(reward) or G is None or turn is None or not len(G):
            continue
        V = _joined(values, masks, rows)
        T = len(G)
        yield {
            "problem": np.full(T, problems.number(episode[1], task_ids[rows[0]], prompts[rows[0]])),
            "values": np.full(T, np.nan) if V is None else V,
            "baselines": np.full(T, baselines[episode]),
            "targets": G,
            "rewards": np.full(T, reward),
            "position": position_bins(T),
            "turn": np.nan_to_num(turn).astype(np.int64),
            "length": np.full(T, T),
        }


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
