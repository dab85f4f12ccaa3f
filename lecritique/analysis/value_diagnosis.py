"""What saved rollouts say of a critic: fit by place, turn, correctness and length, calibration, ranking, all paired.

`diagnose_values` gives one JSON record; `value_page.py` shows it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.read import Comparison, load_comparison
from lecritique.analysis.saved_rollouts import read_rollouts
from lecritique.analysis.value_statistics import (
    Resampled,
    Resampling,
    reliability_curve,
    resampled_calibration,
    resampled_fit,
    resampled_fits,
)
from lecritique.analysis.value_tokens import (
    VALUE_COLUMNS,
    Problems,
    ValueTokens,
    merged_tokens,
    read_value_tokens,
)
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.metrics import null_if_undefined
from lecritique.numerics.statistics.bootstrap import LEVEL, REPLICATES, BootstrapInterval
from lecritique.numerics.statistics.positions import POSITION_BINS, length_tertile, length_tertile_bounds

VALUES_SCHEMA = 1
CRITIC, LEAVE_ONE_OUT = "critic", "leave_one_out"
LENGTHS = ("short", "middle", "long")
# Each further turn has few rollouts: they are pooled as "8 and later".
_TURNS_SHOWN = 8

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a diagnosis is made of."""

    correct_from: float = 1.0
    """Rewards from here on count as correct."""
    every_step: bool = False
    """All saved steps instead of those of the last third."""
    replicates: int = REPLICATES
    """Bootstrap replicates."""


def diagnose_values(directory: str | Path, settings: Settings | None = None) -> dict[str, Any]:
    """Diagnose the values that the runs in `directory` saved with their rollouts.

    Args:
        directory: a run or a comparison, finished or not.
        settings: what counts as correct, and which steps are read.

    Returns:
        A JSON object; what is undefined is null. Damaged files of rollouts are left out and named in `cautions`.

    Raises:
        ConfigurationError: a threshold that is not finite.
        DataError: the directory is neither, or no rollout with a reward has been saved.
    """
    settings = settings or Settings()
    if not math.isfinite(settings.correct_from):
        raise ConfigurationError(f"a reward counts as correct from {settings.correct_from} on: expected a number.")
    comparison = load_comparison(directory)
    problems, cautions = Problems(), list[str]()
    tokens = {arm: _tokens_of(comparison, arm, settings, problems, cautions) for arm in comparison.arms}
    if not len(problems):
        told = f" {cautions[0]}" if cautions else ""
        raise DataError(f"{directory} has no saved rollout with a reward and a value target.{told}")
    draws = Resampling(len(problems), replicates=settings.replicates)
    bounds = length_tertile_bounds(np.concatenate([found.rollout_length for found in tokens.values()]))
    return {
        "schema": VALUES_SCHEMA,
        "directory": str(directory),
        "recipe": comparison.recipe,
        "method": {
            "interval": "percentile bootstrap over problems, the same draws for every critic",
            "replicates": settings.replicates,
            "level": LEVEL,
            "steps": "all saved" if settings.every_step else "saved ones of the last third",
            "correct_from": settings.correct_from,
            "length_bounds_tokens": list(bounds),
        },
        "problems": len(problems),
        "cautions": list(dict.fromkeys(cautions)),
        "arms": {arm: _arm(found, draws, settings, bounds) for arm, found in tokens.items()},
        "paired": _paired(tokens, draws, settings),
    }


def _tokens_of(
    comparison: Comparison, arm: str, settings: Settings, problems: Problems, cautions: list[str]
) -> ValueTokens:
    parts = []
    for run in comparison.runs_of(arm):
        if run is None:
            continue
        for path in run.rollout_files if settings.every_step else run.late_rollout_files():
            try:
                parts.append(read_value_tokens(read_rollouts(path, VALUE_COLUMNS), problems))
            except DataError as error:
                cautions.append(f"Left out: {error}.")
    return merged_tokens(parts)


def _arm(tokens: ValueTokens, draws: Resampling, settings: Settings, bounds: tuple[float, float]) -> dict[str, Any]:
    slices = _slices(tokens, settings, bounds)
    predictions = {CRITIC: tokens.values.astype(np.float64), LEAVE_ONE_OUT: tokens.baselines}
    known = {name: np.isfinite(column) for name, column in predictions.items()}
    fits = {name: _fits(tokens, predictions[name], slices, known[name], draws) for name in known if known[name].any()}
    both = known[CRITIC] & known[LEAVE_ONE_OUT]
    against = None
    if both.any():
        of_both = [
            fits[name] if np.array_equal(known[name], both) else _fits(tokens, predictions[name], slices, both, draws)
            for name in (CRITIC, LEAVE_ONE_OUT)
        ]
        against = {
            kind: {label: _record(one.minus(of_both[1][kind][label])) for label, one in fitted.items()}
            for kind, fitted in of_both[0].items()
        }
    return {
        "tokens": len(tokens),
        "tokens_left_out": tokens.left_out,
        "rollouts": len(tokens.rollout_reward),
        "problems": len(np.unique(tokens.rollout_problem)),
        "critics": {
            name: {
                **{
                    kind: {label: _counted_record(fit) for label, fit in fitted.items()}
                    for kind, fitted in fits[name].items()
                },
                **_calibration_record(tokens, predictions[name], known[name], draws, settings),
            }
            for name in fits
        },
        "critic_minus_leave_one_out": against,
    }


def _fits(
    tokens: ValueTokens, predictions: Floats, slices: dict[str, dict[str, Mask]], known: Mask, draws: Resampling
) -> dict[str, dict[str, Resampled]]:
    """The fit on every slice."""
    chosen = (mask & known for masks in slices.values() for mask in masks.values())
    found = iter(resampled_fits((_columns(tokens, predictions, each) for each in chosen), draws))
    return {kind: {label: next(found) for label in masks} for kind, masks in slices.items()}


def _calibration_record(
    tokens: ValueTokens, predictions: Floats, known: Mask, draws: Resampling, settings: Settings
) -> dict[str, Any]:
    found = _calibration(tokens, predictions, known, draws, settings)
    if found is None:
        return {"calibration": None, "reliability": None}
    return {
        "calibration": _record(found.intervals()),
        "reliability": reliability_curve(predictions[known], tokens.rewards[known]),
    }


def _slices(tokens: ValueTokens, settings: Settings, bounds: tuple[float, float]) -> dict[str, dict[str, Mask]]:
    """The subsets of tokens that the fit is measured on."""
    correct = tokens.rewards >= settings.correct_from
    tertile = length_tertile(tokens.length, bounds)
    turns = np.minimum(tokens.turn, _TURNS_SHOWN)
    named = {int(k): str(k) if k < _TURNS_SHOWN else f"{k} and later" for k in np.unique(turns)}
    return {
        "pooled": {"all": np.ones(len(tokens), dtype=np.bool_)},
        "position": {str(b): tokens.position == b for b in range(POSITION_BINS)},
        "turn": {label: turns == k for k, label in named.items()},
        "correctness": {"correct": correct, "incorrect": ~correct},
        "length": {label: tertile == t for t, label in enumerate(LENGTHS)},
    }


def _columns(tokens: ValueTokens, predictions: Floats, chosen: Mask) -> tuple[Floats, Floats, NDArray[np.int64]]:
    problem = tokens.rollout_problem[tokens.rollout[chosen]]
    return predictions[chosen], tokens.targets[chosen].astype(np.float64), problem


def _calibration(
    tokens: ValueTokens, predictions: Floats, chosen: Mask, draws: Resampling, settings: Settings
) -> Resampled | None:
    rewards = tokens.rewards[chosen]
    return resampled_calibration(
        predictions[chosen], rewards, rewards >= settings.correct_from, tokens.problem[chosen], draws
    )


def _paired(tokens: Mapping[str, ValueTokens], draws: Resampling, settings: Settings) -> list[dict[str, Any]]:
    """Differences of the critics of every two arms on the problems that both have played."""
    found = []
    for (a, of_a), (b, of_b) in itertools.combinations(tokens.items(), 2):
        with_a, with_b = np.isfinite(of_a.values), np.isfinite(of_b.values)
        shared = np.intersect1d(of_a.problem[with_a], of_b.problem[with_b])
        if not len(shared):
            continue
        chosen = [known & np.isin(of.problem, shared) for of, known in ((of_a, with_a), (of_b, with_b))]
        pairs = [(of, of.values.astype(np.float64), c) for of, c in zip((of_a, of_b), chosen, strict=True)]
        fits = [resampled_fit(*_columns(*pair), draws) for pair in pairs]
        differences = fits[0].minus(fits[1])
        calibrations = [_calibration(*pair, draws, settings) for pair in pairs]
        if calibrations[0] is not None and calibrations[1] is not None:
            differences |= calibrations[0].minus(calibrations[1])
        found.append({"a": a, "b": b, "problems": len(shared), "differences": _record(differences)})
    return found


def _counted_record(found: Resampled) -> dict[str, Any]:
    return {"tokens": found.tokens, "problems": found.problems, **_record(found.intervals())}


def _record(intervals: Mapping[str, BootstrapInterval]) -> dict[str, Any]:
    return {
        name: {
            "estimate": null_if_undefined(interval.estimate),
            "low": null_if_undefined(interval.low),
            "high": null_if_undefined(interval.high),
            "undefined_replicates": interval.undefined,
        }
        for name, interval in intervals.items()
    }
