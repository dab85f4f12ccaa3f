"""Which saved trajectories the page shows, token by token, and the record that its script reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.read import Comparison
from lecritique.analysis.saved_rollouts import RolloutTable, SavedRollout
from lecritique.core.metrics import null_if_undefined

LONGEST_SHOWN_TOKENS = 4000


def token_view(
    comparison: Comparison, tables: dict[tuple[str, int], RolloutTable], first: str | None
) -> dict[str, Any]:
    """The record of the token view: per arm its samples, and the colour scales that all of them share.

    Args:
        comparison: what the arms are.
        tables: the newest saved rollouts of each run that has any, by (arm, seed).
        first: the arm to show first, None for any.
    """
    arms: list[dict[str, Any]] = []
    for index, arm in enumerate(comparison.arms):
        of_arm = {seed: tables[arm, seed] for seed in comparison.seeds if (arm, seed) in tables}
        samples = [_sample(kind, seed, rollout) for kind, seed, rollout in pick_samples(of_arm)]
        if samples:
            arms.append({"name": arm, "index": index, "samples": samples})
    every = [sample for arm in arms for sample in arm["samples"]]
    return {"arms": arms, "scale": _scales(every), "first": first}


def pick_samples(tables: dict[int, RolloutTable]) -> list[tuple[str, int, SavedRollout]]:
    """Best and worst reward, largest advantage, and the one nearest the mean reward: (kind, seed, rollout).

    Ties go to the larger |advantage|. A rollout is shown once.
    """
    entries = [
        (seed, index, reward, size)
        for seed, table in tables.items()
        for index, (reward, size) in enumerate(zip(table.scalars("reward"), _largest_advantages(table), strict=True))
    ]
    rewards = np.array([reward for _, _, reward, _ in entries])
    sizes = np.array([size for _, _, _, size in entries])
    mean = float(rewards[np.isfinite(rewards)].mean()) if np.isfinite(rewards).any() else 0.0
    ranked = (
        ("best", rewards, sizes),
        ("worst", -rewards, sizes),
        ("largest advantage", sizes, rewards),
        ("typical", -np.abs(rewards - mean), -sizes),
    )
    found, used = [], set()
    for kind, first, second in ranked:
        order = np.lexsort((_last_if_nan(second), _last_if_nan(first)))[::-1]
        chosen = next((i for i in order if i not in used and np.isfinite(first[i])), None)
        if chosen is not None:
            used.add(chosen)
            seed, index, _, _ = entries[chosen]
            found.append((kind, seed, tables[seed].rollout(index)))
    return found


def _largest_advantages(table: RolloutTable) -> NDArray[np.float64]:
    """Largest |advantage| over a row's action tokens [N], NaN where it has none."""
    sizes = np.full(len(table), np.nan)
    for index, (advantages, mask) in enumerate(
        zip(table.per_token("advantages"), table.per_token("action_mask"), strict=True)
    ):
        if advantages is not None and mask is not None:
            known = np.abs(advantages[mask == 1])
            known = known[np.isfinite(known)]
            sizes[index] = known.max() if len(known) else np.nan
    return sizes


def _last_if_nan(keys: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(keys), keys, -np.inf)


def _sample(kind: str, seed: int, rollout: SavedRollout) -> dict[str, Any]:
    T = min(len(rollout.token_text), LONGEST_SHOWN_TOKENS)
    mask = rollout.action_mask[:T]
    return {
        "kind": kind,
        "seed": seed,
        "step": rollout.step,
        "task": rollout.task_id,
        "id": f"{rollout.row}.{rollout.attempt}.{rollout.member}",
        "segment": rollout.segment_index,
        "status": rollout.status,
        "estimator": rollout.estimator,
        "reward": null_if_undefined(rollout.reward),
        "baseline": null_if_undefined(rollout.baseline),
        "rho": null_if_undefined(rollout.rho),
        "version": rollout.value_version,
        "context": rollout.context,
        "omitted": len(rollout.token_text) - T,
        "text": list(rollout.token_text[:T]),
        "action": [int(act) for act in mask],
        "turn": [int(turn) for turn in rollout.turn_index[:T]],
        "value": _column(rollout.values, mask),
        "advantage": _column(rollout.advantages, mask),
        "logprob": _column(rollout.sampler_logprobs, mask),
    }


def _column(values: NDArray[np.float64] | None, mask: NDArray[np.bool_]) -> list[float | None] | None:
    """Values of action tokens, null elsewhere; four decimals are more than a colour shows."""
    if values is None:
        return None
    pairs = zip(values[: len(mask)], mask, strict=True)
    return [round(float(value), 4) if act and np.isfinite(value) else None for value, act in pairs]


def _scales(samples: Iterable[dict[str, Any]]) -> dict[str, float]:
    values, sizes = [0.0, 1.0], [1e-3]
    for sample in samples:
        values += [value for value in sample["value"] or () if value is not None]
        values += [sample["reward"]] if sample["reward"] is not None else []
        sizes += [abs(value) for value in sample["advantage"] or () if value is not None]
    return {"low": min(values), "high": max(values), "advantage": max(sizes)}
