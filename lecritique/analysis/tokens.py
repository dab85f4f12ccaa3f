"""Which saved trajectories the page shows, token by token, and the record that its script reads.

`tokens.js` draws such a record, in the report and in the live page alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.read import Comparison
from lecritique.analysis.saved_rollouts import RolloutTable, SavedRollout
from lecritique.core.metrics import null_if_undefined

LONGEST_SHOWN_TOKENS = 4000
_LONGEST_TEXT = 20_000
_LONGEST_TOKEN = 400


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
        samples = [{"kind": kind, "seed": seed, **sample(rollout)} for kind, seed, rollout in pick_samples(of_arm)]
        if samples:
            arms.append({"name": arm, "index": index, "samples": samples})
    every = [sample for arm in arms for sample in arm["samples"]]
    return {"arms": arms, "scale": scales(every), "first": first}


def pick_samples(tables: dict[int, RolloutTable]) -> list[tuple[str, int, SavedRollout]]:
    """Best and worst reward, largest advantage, and the one nearest the mean reward: (kind, seed, rollout).

    Ties go to the larger |advantage|. A rollout is shown once.
    """
    entries = [
        (seed, index, reward, size)
        for seed, table in tables.items()
        for index, (reward, size) in enumerate(zip(table.scalars("reward"), table.largest("advantages"), strict=True))
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


def _last_if_nan(keys: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(keys), keys, -np.inf)


def sample(rollout: SavedRollout, *, longest: int = LONGEST_SHOWN_TOKENS) -> dict[str, Any]:
    """One segment as the page shows it, its first `longest` tokens; per-token columns are null off the action mask."""
    T = min(len(rollout.token_text), longest)
    mask = rollout.action_mask[:T]
    return {
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
        "context": None if rollout.context is None else _cut(rollout.context, _LONGEST_TEXT),
        "omitted": len(rollout.token_text) - T,
        "text": [_cut(text, _LONGEST_TOKEN) for text in rollout.token_text[:T]],
        "action": [int(act) for act in mask],
        "turn": [int(turn) for turn in rollout.turn_index[:T]],
        "value": _column(rollout.values, mask),
        "advantage": _column(rollout.advantages, mask),
        "modulated": _column(rollout.modulated_advantages, mask),
        "gap": _column(teacher_gaps(rollout), mask),
        "logprob": _column(rollout.sampler_logprobs, mask),
    }


def teacher_gaps(rollout: SavedRollout) -> NDArray[np.float64] | None:
    """Teacher minus student log-prob of each token [T] in nats, None without a teacher.

    The student is the policy before it was updated on the batch; where that was not saved, as it sampled.
    """
    student = rollout.old_logprobs if rollout.old_logprobs is not None else rollout.sampler_logprobs
    if rollout.teacher_logprobs is None or student is None:
        return None
    gaps: NDArray[np.float64] = rollout.teacher_logprobs - student
    return gaps


def scales(samples: Iterable[dict[str, Any]]) -> dict[str, float]:
    """What the colours of these samples range over: values from `low` to `high`, the others up to a size."""
    values, sizes = [0.0, 1.0], dict.fromkeys(("advantage", "modulated", "gap", "logprob"), 1e-3)
    for each in samples:
        values += [value for value in each["value"] or () if value is not None]
        values += [each["reward"]] if each["reward"] is not None else []
        for name in sizes:
            sizes[name] = max([sizes[name], *(abs(value) for value in each[name] or () if value is not None)])
    # A modulated advantage is shown beside the raw one: one scale for both.
    sizes["advantage"] = sizes["modulated"] = max(sizes["advantage"], sizes["modulated"])
    return {"low": min(values), "high": max(values), **sizes}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}\u2026 ({len(text) - longest} further characters)"


def _column(values: NDArray[np.float64] | None, mask: NDArray[np.bool_]) -> list[float | None] | None:
    """Values of action tokens, null elsewhere; four decimals are more than a colour shows."""
    if values is None:
        return None
    pairs = zip(values[: len(mask)], mask, strict=True)
    return [round(float(value), 4) if act and np.isfinite(value) else None for value, act in pairs]
